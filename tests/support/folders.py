"""Content of folders, to be compared."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path


def files(folder: Path) -> dict[str, str]:
    """Every file below `folder` with the hash of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def without_edition(folder: Path) -> dict[str, str]:
    """files() of a dataset under names without edition, but its manifest and lengths, which contain these names."""
    prefixes = ("manifest.json", "lengths")
    return {
        re.sub(r"-[0-9a-f]{8}(?=\.\w+$)", "", path): digest
        for path, digest in files(folder).items()
        if not path.startswith(prefixes)
    }
