"""Paths as users write them; TensorFlow-free."""

from __future__ import annotations

import os


def absolute(path: str | os.PathLike[str]) -> str:
    """Returns the absolute path of a file or folder, so that processes in other directories find it; or a URI."""
    text = os.fspath(path)
    return text.rstrip("/") if "://" in text else os.path.abspath(os.path.expanduser(text))


def absolute_patterns(text: str) -> str:
    """Returns GLOB, or SPLIT=GLOB,SPLIT=GLOB, with absolute paths."""
    if "=" not in text:
        return absolute(text)
    parts = (part.partition("=") for part in text.split(","))
    return ",".join(f"{split}={absolute(pattern)}" for split, _, pattern in parts)
