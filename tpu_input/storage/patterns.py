"""Patterns of files: what is one, and the message for one that matches no file."""

from __future__ import annotations

import os
import shlex

SIGNS = "*?["


def is_pattern(path: str) -> bool:
    """Returns whether a path is a pattern of files; a local path that exists is none, whatever its name."""
    return any(sign in path for sign in SIGNS) and not os.path.exists(path)


def no_match(pattern: str) -> str:
    """Returns the message that a pattern matches no file, with a command that shows what there is."""
    folder = next((part for part in _parents(pattern) if not any(sign in part for sign in SIGNS)), "")
    return f"no file matches {pattern!r}; quote the pattern, and check it with: ls {shlex.quote(folder or '.')}"


def _parents(pattern: str) -> list[str]:
    parts = pattern.split("/")[:-1]
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
