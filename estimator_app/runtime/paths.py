"""Paths as users write them; TensorFlow-free."""

from __future__ import annotations

import os
import re


def absolute(path: str | os.PathLike[str]) -> str:
    """Returns the absolute path of a file or folder, so that processes in other directories find it; or a URI."""
    text = os.fspath(path)
    return text.rstrip("/") if "://" in text else os.path.abspath(os.path.expanduser(text))


def absolute_patterns(text: str) -> str:
    """Returns a path, GLOB, or SPLIT=GLOB,SPLIT=GLOB, with absolute paths; folders may be called date=2026."""
    if not any(sign in text for sign in "*?[") or not re.match(r"\w+=", text):
        return absolute(text)
    parts = (part.partition("=") for part in text.split(","))
    return ",".join(f"{split}={absolute(pattern)}" for split, _, pattern in parts)
