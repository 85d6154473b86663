"""One mischief a command."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

PHOTO = Path("precious/photo.jpg")


def main(argv: list[str]) -> int:
    action = argv[0]
    if action == "fine":
        Path("out").mkdir()
        Path("out/shard").write_text("mine")
        print("a\nb\nc", file=sys.stderr)
    elif action == "raise":
        raise ValueError("unexpected")
    elif action == "exit 3":
        return 3
    elif action == "abort":
        os.abort()
    elif action == "talk":
        print("a\nb\nc\nd", file=sys.stderr)
    elif action == "read":
        PHOTO.read_bytes()
    elif action == "change":
        PHOTO.write_bytes(PHOTO.read_bytes()[::-1])
    elif action == "remove":
        PHOTO.unlink()
    elif action == "make":
        Path("../beside").mkdir()
    elif action == "leave":
        Path(os.environ["TMPDIR"], "scratch").write_text("forgotten")
    elif action == "import":
        importlib.import_module("evil")
    else:
        os.symlink("/", "out of here")
    return 1
