"""Checks of JSON that is read back: a file of ours may have been damaged, or written by somebody else.

text ──load()──▶ any JSON value ──text(), count(), …──▶ the same value, of the type and in the range that is needed

Each check returns the value that it was given. It raises a ValueError that names the field and shows the value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from typing import Any

LARGEST = 2**53  # the largest count that every JSON reader keeps exactly (RFC 8259, section 6)


def load(content: str | bytes) -> Any:
    """Returns the value that JSON text or its UTF-8 bytes hold.

    Raises:
      ValueError: It is no JSON, is nested too deeply, or holds NaN or Infinity, which JSON has no words for.
    """
    try:
        return json.loads(content, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def fields(value: Any, name: str, needed: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """Returns an object that has all the fields needed and, but for the optional ones, no others."""
    found = mapping(value, name)
    if absent := [field for field in needed if field not in found]:
        raise ValueError(f"{name} lacks {', '.join(map(repr, absent))}")
    if unknown := found.keys() - set(needed) - set(optional):
        raise ValueError(f"{name} has the unknown field {shown(min(unknown))}")
    return found


def mapping(value: Any, name: str) -> dict[str, Any]:
    """Returns an object of any fields."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {shown(value)}")
    return value


def array(value: Any, name: str, length: int | None = None) -> list[Any]:
    """Returns a list, of `length` items if that is given."""
    if not isinstance(value, list) or length not in (None, len(value)):
        raise ValueError(f"{name} must be a list" + (f" of {length}" if length is not None else "") + _got(value))
    return value


def text(value: Any, name: str, least: int = 0) -> str:
    """Returns a string of at least so many characters, all of which UTF-8 can write."""
    if not isinstance(value, str) or len(value) < least:
        raise ValueError(f"{name} must be text" + (" that is not empty" if least else "") + _got(value))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be text that UTF-8 can write{_got(value)}") from None
    return value


def count(value: Any, name: str, least: int = 0, most: int = LARGEST) -> int:
    """Returns a whole number in [least, most]; true and false are none."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}{_got(value)}")
    return value


def counts(value: Any, name: str, least: int = 0) -> dict[str, int]:
    """Returns an object whose fields are all whole numbers from `least` up."""
    for key, number in mapping(value, name).items():
        count(number, f"{name} of {shown(key)}", least)
        text(key, f"a name in {name}")
    return dict(value)


def number(value: Any, name: str, least: float, most: float) -> float:
    """Returns a finite number in [least, most]."""
    if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}{_got(value)}")
    return float(value) if isinstance(value, float) else value


_HEX = re.compile(r"[0-9a-f]{64}")


def sha256(value: Any, name: str) -> str:
    """Returns a SHA-256 in hexadecimal digits."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError(f"{name} must be 64 hexadecimal digits{_got(value)}")
    return value


def shown(value: Any) -> str:
    """Returns a value as a message shows it: in one line, and of a long one the beginning."""
    seen = repr(value)
    return seen if len(seen) <= 80 else f"{seen[:77]}…"


def _got(value: Any) -> str:
    return f", got {shown(value)}"
