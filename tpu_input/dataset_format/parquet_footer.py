"""What the footer of a Parquet file states of its columns: read as numbers, before Arrow makes memory of anything.

    … ColumnChunk … FileMetaData, LENGTH, "PAR1" ──column_chunks()──▶ ColumnChunk(group, path, values, bytes)

pyarrow offers the same numbers as metadata.row_group(…).column(…), but that ends the whole process if a damaged schema
contradicts a column's statistics, as its binding does not expect an exception there. So the few numbers are parsed
here; the footer is a struct of Thrift in its compact protocol (thrift-compact-protocol.md of Apache Thrift), and
parquet.thrift of Apache Parquet numbers its fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

_MAX_BYTES = 1 << 26  # of a footer: some 300,000 chunks of columns
_MAX_DEPTH = 32  # of structs and lists in each other; a footer has 8
_END = 8  # bytes of the length and the magic
_MAGIC = b"PAR1"

# Types of the compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_VARINTS = (_I16, _I32, _I64)
# Numbers of fields in parquet.thrift.
_ROW_GROUPS = 4  # of FileMetaData
_COLUMNS, _NUM_ROWS = 1, 3  # of RowGroup
_META_DATA = 3  # of ColumnChunk
_PATH, _NUM_VALUES, _UNPACKED_BYTES = 3, 5, 6  # of ColumnMetaData


class ColumnChunk(NamedTuple):
    """A column of one row group, as the footer states it.

    Attributes:
      group: Number of the row group.
      num_rows: Number of its rows.
      path: Path of the column in the schema, such as ("probabilities", "list", "element").
      num_values: Number of values in it, with nulls: as many as rows, unless it is a list.
      unpacked_bytes: Size of its pages, encoded but uncompressed.
    """

    group: int
    num_rows: int
    path: tuple[str, ...]
    num_values: int
    unpacked_bytes: int


def column_chunks(file: IO[bytes]) -> list[ColumnChunk]:
    """Returns all columns of all row groups of a Parquet file, whose position in the file changes.

    Raises:
      ValueError: The file does not end as Parquet does, or its footer is damaged or larger than 64 MiB.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - _END, 0))
    tail = file.read(_END)
    num_bytes = int.from_bytes(tail[:4], "little")
    if len(tail) < _END or tail[4:] != _MAGIC or num_bytes > end - _END:
        raise ValueError("it does not end with the footer of a Parquet file")
    if num_bytes > _MAX_BYTES:
        raise ValueError(f"its footer has {num_bytes:,} bytes, more than {_MAX_BYTES:,}")
    file.seek(end - _END - num_bytes)
    try:
        return list(_chunks(_Parser(file.read(num_bytes)).struct({_ROW_GROUPS})))
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError("its footer is damaged") from error


def _chunks(footer: dict[int, Any]) -> Iterator[ColumnChunk]:
    for number, group in enumerate(footer[_ROW_GROUPS]):
        for column in group[_COLUMNS]:
            stated = column[_META_DATA]
            path = tuple(part.decode() for part in stated[_PATH])
            numbers = group[_NUM_ROWS], stated[_NUM_VALUES], stated[_UNPACKED_BYTES]
            if any(value < 0 for value in numbers):
                raise ValueError("its footer is damaged: it has a negative size")
            yield ColumnChunk(number, numbers[0], path, *numbers[1:])


class _Parser:
    """Parser of structs in Thrift's compact protocol, as {number of a field: value}."""

    def __init__(self, content: bytes) -> None:
        self._content, self._offset = content, 0

    def struct(self, selected: set[int] | None = None, depth: int = 0) -> dict[int, Any]:
        """Returns the fields of the struct that begins here; only the `selected` ones if they are given."""
        fields: dict[int, Any] = {}
        number = 0
        while (header := self._byte()) & 15 != _STOP:
            number = number + (header >> 4) if header >> 4 else self._signed()
            value = self._value(header & 15, depth + 1)
            if selected is None or number in selected:
                fields[number] = value
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("its footer is damaged: it is nested too deep")
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in _VARINTS:
            return self._signed()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind == _STRUCT:
            return self.struct(depth=depth)
        raise ValueError(f"its footer is damaged: it has a value of the type {kind}")  # Parquet has no maps

    def _list(self, depth: int) -> list[Any]:
        header = self._byte()
        count, kind = header >> 4, header & 15
        count = self._varint() if count == 15 else count
        if count > len(self._content) - self._offset:  # each takes a byte at least
            raise IndexError
        one_byte = kind in (_TRUE, _FALSE, _BYTE)
        return [self._byte() if one_byte else self._value(kind, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        self._offset += 1
        return self._content[self._offset - 1]

    def _bytes(self, count: int) -> bytes:
        if count > len(self._content) - self._offset:
            raise IndexError
        self._offset += count
        return self._content[self._offset - count : self._offset]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise IndexError

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
