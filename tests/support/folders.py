"""Content of folders, to be compared."""

from __future__ import annotations

import hashlib
from pathlib import Path


def files(folder: Path) -> dict[str, str]:
    """Every file below `folder` with the hash of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
