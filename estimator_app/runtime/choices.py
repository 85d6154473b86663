"""Check of an option with a fixed set of choices, with a suggestion in the error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Checks that `value` is one of `known`.

    Raises:
      ValueError: It is not; the message lists all choices and suggests the most similar one.
    """
    known = tuple(known)
    if value not in known:
        near = difflib.get_close_matches(str(value), known, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}{meant}")
