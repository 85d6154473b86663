"""Wording that messages of all packages have in common."""

from __future__ import annotations

from collections.abc import Sequence


def enumerated(items: Sequence[object], most: int, more: str = "more") -> str:
    """Returns the first `most` items with commas between them, and the number of the others: "a, b and 3 more"."""
    others = f" and {len(items) - most:,} {more}" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + others


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; of an error without one, its name."""
    return (str(error).splitlines() or [repr(error)])[0]
