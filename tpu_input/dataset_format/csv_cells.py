"""Text in cells of CSV files, which spreadsheets run as a formula if it begins as one: OWASP, "CSV Injection".

    =HYPERLINK("http:x") ──csv_cell()──▶ '=HYPERLINK("http:x") ──text_of_cell()──▶ =HYPERLINK("http:x")

The apostrophe is how spreadsheets themselves mark text. Names of files and classes, and of variables in files of
others, are written so, and are read back as they were.
"""

from __future__ import annotations

import re

_BEGINNING = r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]"  # also the full-width forms of the first four
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_FORMULA = re.compile("'*" + _BEGINNING)
_ESCAPED = re.compile("'+" + _BEGINNING)


def csv_cell(text: str) -> str:
    """Returns text as the cell that stands for it: with an apostrophe before it if a spreadsheet would run it."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def text_of_cell(cell: str) -> str:
    """Returns the text that a cell from csv_cell() stands for."""
    return cell[1:] if _ESCAPED.match(cell) else cell
