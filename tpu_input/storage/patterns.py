"""Patterns of files: what is one, and the message for one that matches no file."""

from __future__ import annotations

import os
import re
import shlex

SIGNS = "*?["


def is_pattern(path: str) -> bool:
    """Returns whether a path is a pattern of files; a local path that exists is none, whatever its name."""
    return any(sign in path for sign in SIGNS) and not os.path.exists(path)


def no_match(pattern: str) -> str:
    """Returns the message that a pattern matches no file, with a command that shows what there is."""
    folder = folder_of(pattern) or "."
    return f"no file matches {pattern!r}; quote the pattern, and check it with: ls {shlex.quote(folder)}"


def folder_of(pattern: str) -> str:
    """Returns the folder that all matches of a pattern are below; "" if the pattern names none."""
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]
