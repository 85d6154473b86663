"""One mischief a command."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

PHOTO = Path("precious/photo.jpg")


def main(argv: list[str]) -> int:
    what = argv[0]
    if what == "fine":
        Path("out").mkdir()
        Path("out/shard").write_text("mine")
        print("a\nb\nc", file=sys.stderr)
    elif what == "raise":
        raise ValueError("unexpected")
    elif what == "exit 3":
        return 3
    elif what == "abort":
        os.abort()
    elif what == "talk":
        print("a\nb\nc\nd", file=sys.stderr)
    elif what == "read":
        PHOTO.read_bytes()
    elif what == "change":
        PHOTO.write_bytes(PHOTO.read_bytes()[::-1])
    elif what == "remove":
        PHOTO.unlink()
    elif what == "make":
        Path("../beside").mkdir()
    elif what == "leave":
        Path(os.environ["TMPDIR"], "scratch").write_text("forgotten")
    elif what == "import":
        importlib.import_module("evil")
    else:
        os.symlink("/", "out of here")
    return 1
