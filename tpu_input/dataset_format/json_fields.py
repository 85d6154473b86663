"""Validation of JSON read from files, which may be damaged or come from an untrusted source.

text ──load()──▶ any JSON value ──text(), count(), …──▶ the same value, with its type and range checked

Each check returns the value that it was given, or raises a ValueError that names the field and shows the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

LARGEST = 2**53  # the largest count that every JSON reader keeps exactly (RFC 8259, section 6)


def load(content: str | bytes) -> Any:
    """Returns the value that JSON text or its UTF-8 bytes hold.

    Raises:
      ValueError: It is not JSON, is nested too deeply, or holds NaN or Infinity, which JSON does not allow.
    """
    try:
        text = content if isinstance(content, str) else content.decode(json.detect_encoding(content), "surrogatepass")
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # json.loads() would make one per call, in half of its time


def fields(value: object, name: str, needed: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """Returns an object after a check that it has all needed fields, and no others except optional ones."""
    members = mapping(value, name)
    if absent := [field for field in needed if field not in members]:
        raise ValueError(f"{name} lacks {', '.join(map(repr, absent))}")
    if len(members) > len(needed) and (unknown := members.keys() - set(needed) - set(optional)):
        raise ValueError(f"{name} has the unknown field {short_repr(min(unknown))}")
    return members


def mapping(value: object, name: str) -> dict[str, Any]:
    """Returns an object with any fields."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {short_repr(value)}")
    return value


def array(value: object, name: str, length: int | None = None) -> list[Any]:
    """Returns a list, of `length` items if that is given."""
    if not isinstance(value, list) or length not in (None, len(value)):
        raise ValueError(f"{name} must be a list" + (f" of {length}" if length is not None else "") + _got(value))
    return value


def text(value: object, name: str, least: int = 0) -> str:
    """Returns a string of at least `least` characters that can be encoded as UTF-8."""
    if not isinstance(value, str) or len(value) < least:
        raise ValueError(f"{name} must be text" + (" that is not empty" if least else "") + _got(value))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be text that can be encoded as UTF-8{_got(value)}") from None
    return value


def count(value: object, name: str, least: int = 0, most: int = LARGEST) -> int:
    """Returns an integer in [least, most]; booleans are refused."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}{_got(value)}")
    return value


def counts(value: object, name: str, least: int = 0) -> dict[str, int]:
    """Returns an object whose values are all integers of at least `least`."""
    members = mapping(value, name)
    for key, number in members.items():
        count(number, f"{name} of {short_repr(key)}", least)
        text(key, f"a name in {name}")
    return dict(members)


def number(value: Any, name: str, least: float, most: float) -> float:
    """Returns a number in [least, most], both finite."""
    # NaN is in no range. math.isfinite() raises OverflowError for an integer that is larger than any float.
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}{_got(value)}")
    return float(value) if isinstance(value, float) else value


_HEX = re.compile(r"[0-9a-f]{64}")


def sha256(value: object, name: str) -> str:
    """Returns a SHA-256 in hexadecimal digits."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError(f"{name} must be 64 hexadecimal digits{_got(value)}")
    return value


def short_repr(value: object) -> str:
    """Returns a value as text for a message: one line of at most 80 characters."""
    full_repr = repr(value)
    return full_repr if len(full_repr) <= 80 else f"{full_repr[:77]}…"


def _got(value: object) -> str:
    return f", got {short_repr(value)}"
