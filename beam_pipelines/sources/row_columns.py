"""Batches of rows by column, in which planning works: most columns have one value for all rows.

    [Row] ──Batch.from_rows──▶ Batch ──pack──▶ bytes ──unpack──▶ Batch ──rows──▶ [Row]

Making a Row object costs as much as all that planning does per row in columns, so only rows that are looked at one by
one become objects. A row takes some 45 bytes packed, and 350 as an object.

marshal is smaller and faster than pickle. Its format may differ between Python versions, but all workers of a pipeline
run the same version.
"""

from __future__ import annotations

import collections
import functools
import itertools
import marshal
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from beam_pipelines.options import Source
from beam_pipelines.sources.rows import Row, locate

BATCH_ROWS = 1000  # most rows of a batch, about
LINE_ROWS = 256  # of a list, as each of them may take a request of its own
_DEFAULTS = {"key": "", **Row._field_defaults}
_Item = TypeVar("_Item")
_Column = Any  # a list or a NumPy array with a value for each row, or the one value of all rows

new_row = functools.partial(tuple.__new__, Row)  # as Row._make(), in a third of the time


class Batch:
    """Some rows.

    Attributes:
      num_rows: Number of rows.
      columns: The fields of Row, and what steps of planning add for each row: a list or a NumPy array with a value for
        each row, or the one value that all rows have.
    """

    __slots__ = ("columns", "num_rows")

    def __init__(self, num_rows: int, columns: dict[str, _Column]) -> None:
        """Makes a batch; fields of Row that are missing in `columns` have their defaults."""
        self.num_rows, self.columns = num_rows, _DEFAULTS | columns

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> Batch:
        """Returns a batch of rows."""
        columns = map(_constant, map(list, zip(*rows, strict=True)))
        return cls(len(rows), dict(zip(Row._fields, columns, strict=False)))

    def column(self, name: str) -> Sequence[Any]:
        """Returns the values of a column, one for each row."""
        column: Any = self.columns[name]
        is_varied = isinstance(column, (list, np.ndarray))
        return column if is_varied else [column] * self.num_rows

    def zipped(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Returns the values of some columns for each row."""
        return zip(*map(self.column, names), strict=True)

    def is_all(self, name: str, value: object) -> bool:
        """Returns whether a column is known to have this value in all rows."""
        column = self.columns[name]
        return not isinstance(column, (list, np.ndarray)) and bool(column == value)

    def rows(self) -> list[Row]:
        """Returns the rows."""
        return list(map(new_row, self.zipped(*Row._fields)))

    def row(self, number: int) -> Row:
        """Returns one of the rows."""
        return self.take([number]).rows()[0]

    def replace(self, **columns: _Column) -> Batch:
        """Returns the rows with other columns: for each a list or an array, or one value for all rows."""
        changed = {name: _constant(column) for name, column in columns.items()}
        return Batch(self.num_rows, self.columns | changed)

    def with_rows(self, numbered: dict[int, Row]) -> Batch:
        """Returns the rows with others at some places, by their numbers."""
        if not numbered:
            return self
        rows = self.rows()
        for number, row in numbered.items():
            rows[number] = row
        added = {name: column for name, column in self.columns.items() if name not in _DEFAULTS}
        return Batch.from_rows(rows).replace(**added)

    def map_rows(self, function: Callable[..., Iterable[Row]], *arguments: Any) -> Batch:
        """Returns the batch of the rows that a function returns for these."""
        return Batch.from_rows(list(function(self.rows(), *arguments)))

    def take(self, numbers: Sequence[int]) -> Batch:
        """Returns the rows with these numbers, in their order."""
        pick = operator.itemgetter(*numbers) if len(numbers) > 1 else None
        picked: dict[str, _Column] = {}
        for name, column in self.columns.items():
            if isinstance(column, np.ndarray):
                picked[name] = column[numbers]
            elif isinstance(column, list):
                picked[name] = list(pick(column)) if pick else [column[number] for number in numbers]
            else:
                picked[name] = column
        return Batch(len(numbers), picked)

    def pack(self) -> bytes:
        """Returns the batch as bytes for unpack()."""
        defaults = {name for name, value in _DEFAULTS.items() if self.is_all(name, value)}
        changed = {name: value for name, value in self.columns.items() if name not in defaults}
        numbers = {name: column for name, column in changed.items() if isinstance(column, np.ndarray)}
        packed = {name: (column.dtype.str, column.tobytes()) for name, column in numbers.items()}
        return marshal.dumps((self.num_rows, changed | packed))

    @classmethod
    def unpack(cls, packed: bytes) -> Batch:
        """Returns the batch in the bytes of pack()."""
        num_rows, columns = marshal.loads(packed)
        for name, column in columns.items():
            if isinstance(column, tuple):
                columns[name] = np.frombuffer(column[1], column[0])
        return cls(num_rows, columns)


def _constant(column: _Column) -> _Column:
    """Returns the one value of a column, if all rows have the same."""
    if isinstance(column, list) and column and column[0] == column[-1] and column.count(column[0]) == len(column):
        return column[0]
    return column


def joined(batches: Sequence[Batch]) -> Batch:
    """Returns the rows of batches with the same columns as one batch."""
    if len(batches) == 1:
        return batches[0]
    columns: dict[str, _Column] = {}
    for name in batches[0].columns if batches else ():
        parts = [batch.columns[name] for batch in batches]
        if isinstance(parts[0], np.ndarray):
            columns[name] = np.concatenate(parts)
        elif any(isinstance(column, list) for column in parts) or parts.count(parts[0]) < len(parts):
            columns[name] = list(itertools.chain.from_iterable(batch.column(name) for batch in batches))
        else:
            columns[name] = parts[0]
    return Batch(sum(batch.num_rows for batch in batches), columns)


def locate_rows(batch: Batch, sources: Sequence[Source]) -> Batch:
    """Returns rows with their URIs, as rows.locate() does."""
    if len(sources) > 1 or not batch.is_all("uri", ""):
        return batch.map_rows(lambda rows: [locate(row, sources) for row in rows])
    folder = sources[0].path
    return batch.replace(uri=[f"{folder}/{key}" for key in batch.column("key")])


def merge_batches(batches: Iterable[Batch], size: int = BATCH_ROWS) -> Iterator[Batch]:
    """Yields the rows in batches of at least `size` rows, but the last.

    Rows with labels or reasons, which steps may look at one by one, are not put together with others.
    """
    pending: dict[tuple[bool, bool], list[Batch]] = {}
    num_rows = collections.Counter[tuple[bool, bool]]()
    for batch in batches:
        kind = batch.is_all("label", ""), batch.is_all("reason", "")
        pending.setdefault(kind, []).append(batch)
        num_rows[kind] += batch.num_rows
        if num_rows[kind] >= size:
            yield joined(pending.pop(kind))
            num_rows[kind] = 0
    yield from map(joined, pending.values())


def batched(items: Iterable[_Item], size: int = BATCH_ROWS) -> Iterator[list[_Item]]:
    """Yields the items in lists of `size`; the last may be shorter."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def batches_of(rows: Iterable[Row], size: int = BATCH_ROWS) -> Iterator[Batch]:
    """Yields the rows in batches of `size`."""
    return map(Batch.from_rows, batched(rows, size))
