"""The file of a shard's rows, a line of JSON each, and the units in which they are written.

    Batch ──lines_of()──▶ SHARD.rows ──units()──▶ Unit, for a worker ──rows_of()──▶ [Row]

Whoever divides the rows checks them, but hands the lines on as they are: for a worker process they need not be pickled.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from beam_pipelines.runners.executors import UNIT_BYTES
from beam_pipelines.sources.row_columns import Batch, batches_of
from beam_pipelines.sources.rows import Row
from tpu_input.dataset_format import json_fields

MOST_ROWS = 256  # of a unit
# All fields but `number`, which is used only to choose among rows with the same key.
_NAMES = Row._fields[:-1]
_INTEGERS = tuple(map(_NAMES.index, ("num_bytes", "record_bytes", "version")))
_NUM_BYTES = _NAMES.index("num_bytes")
_TYPES = tuple(int if number in _INTEGERS else str for number in range(len(_NAMES)))
# Half a character of UTF-16, escaped or as it is, which is not valid in UTF-8 unless the other half follows.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_MOST = 2**63  # the generation of a GCS object is a time in microseconds


class Unit(NamedTuple):
    """Consecutive rows of a shard, which are written in one piece.

    Attributes:
      lines: Their lines, each with its end.
      num_rows: Number of rows.
      num_bytes: Sum of the sizes of their sources.
    """

    lines: bytes
    num_rows: int
    num_bytes: int


def lines_of(batch: Batch) -> bytes:
    """Returns the lines of rows, each with its end."""
    columns = [_encoded(batch.columns[name]) for name in _NAMES]
    # What all rows have in common is formatted once; a line is json.dumps(row).
    template = ", ".join("%s" if isinstance(column, list) else column.replace("%", "%%") for column in columns)
    varying = [column for column in columns if isinstance(column, list)]
    lines = map(f"[{template}]\n".__mod__, zip(*varying, strict=True) if varying else [()] * batch.num_rows)
    return "".join(lines).encode("ascii")


def _encoded(column: Any) -> Any:
    """Returns the value or the values of a column as JSON."""
    if isinstance(column, list):
        return list(map(encode_basestring_ascii if isinstance(column[0], str) else str, column))
    return json.dumps(column)


def units(content: bytes, most_rows: int = MOST_ROWS) -> Iterator[Unit]:
    """Yields the units of the lines in `content`, in order, of at most `most_rows` rows and UNIT_BYTES of sources.

    A larger source is a unit of its own.

    Raises:
      ValueError: A line is not a row.
    """
    file = io.BytesIO(content)
    while lines := list(itertools.islice(file, most_rows)):
        begin = num_bytes = 0
        for number, row in enumerate(_checked(lines)):
            size = row[_NUM_BYTES]
            if number > begin and num_bytes + size > UNIT_BYTES:
                yield Unit(b"".join(lines[begin:number]), number - begin, num_bytes)
                begin, num_bytes = number, 0
            num_bytes += size
        yield Unit(b"".join(lines[begin:]), len(lines) - begin, num_bytes)


def units_of(rows: Iterable[Row]) -> Iterator[Unit]:
    """Yields the units of rows that are in no file."""
    return units(b"".join(map(lines_of, batches_of(rows))))


def rows_of(unit: Unit) -> list[Row]:
    """Returns the rows of a unit."""
    return [Row(*values) for values in _values(unit.lines)]


def _values(lines: bytes) -> Any:
    return json_fields.load(b"[%b]" % lines.rstrip(b"\n").replace(b"\n", b","))


def _checked(lines: list[bytes]) -> list[Any]:
    """Returns the values of each line; raises ValueError if one is not a row.

    Parsed as one array, which is four times as fast; only if that fails is each line checked, for its error message.
    """
    joined = b"".join(lines)
    try:
        rows = _values(joined)
    except ValueError:
        rows = []
    is_right = len(rows) == len(lines) and all(
        type(row) is list and tuple(map(type, row)) == _TYPES and all(0 <= row[number] <= _MOST for number in _INTEGERS)
        for row in rows
    )
    if is_right and not _HALF.search(joined):
        return rows  # type: ignore[no-any-return]
    return [_checked_line(line) for line in lines]


def _checked_line(line: bytes) -> list[Any]:
    values = json_fields.array(json_fields.load(line), "a row", len(_NAMES))
    for number, (name, value) in enumerate(zip(_NAMES, values, strict=True)):
        if number in _INTEGERS:
            json_fields.count(value, name, most=_MOST)
        else:
            json_fields.text(value, name)
    return values
