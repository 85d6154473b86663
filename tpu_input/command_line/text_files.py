"""Text files that a user hands to a command: one reading of encodings, byte order marks and line ends for all of them.

bytes ──encoding_of()──▶ UTF-8, or UTF-16 or UTF-32 by their byte order mark ──decoded()──▶ text ──lines_of()──▶ lines

Editors of Windows write UTF-8 with a mark, PowerShell 5 writes UTF-16 with one, and old ones of Macs end lines with CR.
"""

from __future__ import annotations

import codecs
import os
import re
import stat

MAX_TEXT_BYTES = 1 << 28  # 13 million lines of 20 letters
# UTF-32's mark begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LINE_END = re.compile(r"\r\n|\r|\n")


def encoding_of(beginning: bytes) -> str:
    """Returns the encoding of a text file from its first four bytes."""
    return next((encoding for mark, encoding in _MARKS if beginning.startswith(mark)), "utf-8")


def decoded(content: bytes, path: str) -> str:
    """Returns the text of a file, without its byte order mark.

    Raises:
      ValueError: It is not in the encoding of its mark, or without one not UTF-8, or has a null character.
    """
    encoding = encoding_of(content[:4])
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        raise ValueError(f"{path!r} is not {name}; save it as UTF-8: {error}") from error
    if "\0" in text:
        raise ValueError(f"{path!r} has null characters, so it is not UTF-8 text; save it as UTF-8")
    return text


def lines_of(content: bytes, path: str) -> list[str]:
    """Returns the lines of a text file without their ends: CR, LF or both; only these end a line.

    Raises:
      ValueError: As decoded().
    """
    lines = _LINE_END.split(decoded(content, path))
    return lines if lines[-1] else lines[:-1]


def read_text(path: str) -> str:
    """Returns the text of a local file.

    Raises:
      ValueError: As decoded(); or it is not a regular file, or has more than MAX_TEXT_BYTES.
      OSError: It cannot be read.
    """
    return decoded(_content(path), path)


def read_lines(path: str) -> list[str]:
    """Returns the lines of a local file, as lines_of().

    Raises:
      ValueError, OSError: As read_text().
    """
    return lines_of(_content(path), path)


def _content(path: str) -> bytes:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path!r} is not a regular file")
    if status.st_size > MAX_TEXT_BYTES:
        raise ValueError(f"{path!r} has {status.st_size:,} bytes, too many for a list or a recipe")
    with open(path, "rb") as file:
        return file.read(MAX_TEXT_BYTES + 1)
