"""Wording that messages of all packages have in common."""

from __future__ import annotations

from collections.abc import Sequence


def enumerated(items: Sequence[object], most: int, more: str = "more") -> str:
    """Returns the first `most` items with commas between them, and the number of the others: "a, b and 3 more"."""
    others = f" and {len(items) - most:,} {more}" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + others
