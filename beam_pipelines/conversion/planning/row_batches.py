"""Batches of rows, the elements of planning: packed to be kept or sent, and grouped by a key in bounded memory.

    [Row] ──pack──▶ bytes ──unpack──▶ [Row]         some 45 bytes per row, where its object takes 350
    (key, Row) ──by_hash──▶ Parts ──groups_of──▶ (key, [Row])        of all rows, one of 1,024 parts at a time

marshal is smaller and faster than pickle, which stores the name of the class with each row. Its format may differ
between Python versions, but all workers of a pipeline run the same version.
"""

from __future__ import annotations

import collections
import functools
import itertools
import marshal
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from beam_pipelines.sources.rows import Row

BATCH_ROWS = 1000  # most rows of a batch
LINE_ROWS = 256  # of a list, as each of them may take a request of its own
_PARTS = 1024  # in which rows are grouped by a key, each part in the memory of one process
_HELD_ROWS = 1 << 16  # of all parts, that are collected before they are packed: 20 MB
_Item = TypeVar("_Item")

new_row = functools.partial(tuple.__new__, Row)  # as Row._make(), in a third of the time


def batched(items: Iterable[_Item], size: int = BATCH_ROWS) -> Iterator[list[_Item]]:
    """Yields the items in lists of `size`; the last may be shorter."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def pack_tuples(tuples: Sequence[tuple[Any, ...]]) -> bytes:
    """Returns tuples of one length, whose values are numbers and texts, as bytes for unpack_tuples()."""
    # By columns: many have one value for all rows, which is stored once.
    columns = zip(*tuples, strict=True)
    values = [column[0] if column.count(column[0]) == len(column) else column for column in columns]
    return marshal.dumps((len(tuples), values))


def unpack_tuples(packed: bytes) -> Iterator[tuple[Any, ...]]:
    """Returns the tuples in the bytes of pack_tuples()."""
    number, values = marshal.loads(packed)
    columns = (column if isinstance(column, tuple) else itertools.repeat(column, number) for column in values)
    return zip(*columns, strict=True)


def pack(rows: list[Row]) -> bytes:
    """Returns rows as bytes for unpack()."""
    return pack_tuples(rows)


def unpack(packed: bytes) -> list[Row]:
    """Returns the rows in the bytes of pack()."""
    return list(map(new_row, unpack_tuples(packed)))


class RowStore:
    """Batches of rows that are kept packed until they are used again.

    Attributes:
      num_rows: Number of rows that were added.
    """

    def __init__(self, batches: Iterable[list[Row]] = ()) -> None:
        """Keeps these batches."""
        self._packed: collections.deque[bytes] = collections.deque()
        self.num_rows = 0
        for rows in batches:
            self.add(rows)

    def add(self, rows: list[Row]) -> None:
        self._packed.append(pack(rows))
        self.num_rows += len(rows)

    def __iter__(self) -> Iterator[list[Row]]:
        return map(unpack, self._packed)

    def taken(self) -> Iterator[list[Row]]:
        """Yields the batches, and forgets each."""
        while self._packed:
            yield unpack(self._packed.popleft())


class Parts:
    """Tuples by the number of the part that they are in, collected until there are so many that it is worth packing.

    Packed, they are smaller than in memory, and the rows of a part stay together.
    """

    def __init__(self) -> None:
        """Begins with nothing collected."""
        self._parts: dict[int, list[tuple[Any, ...]]] = {}
        self._num_held = 0

    def add(self, numbered: Iterable[tuple[int, tuple[Any, ...]]]) -> Iterator[tuple[int, bytes]]:
        """Adds (part, tuple); yields (part, packed tuples) of all parts if many are collected now."""
        parts = self._parts
        for number, values in numbered:
            parts.setdefault(number, []).append(values)
            self._num_held += 1
        if self._num_held >= _HELD_ROWS:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[int, bytes]]:
        """Yields (part, packed tuples) of all that is collected."""
        parts, self._parts, self._num_held = self._parts, {}, 0
        for number in list(parts):
            yield number, pack_tuples(parts.pop(number))


def in_parts(batches: Iterable[Iterable[tuple[int, tuple[Any, ...]]]]) -> dict[int, list[bytes]]:
    """Returns the packed tuples by part, of batches of (part, tuple)."""
    parts, packed = Parts(), dict[int, list[bytes]]()
    pieces = itertools.chain.from_iterable(map(parts.add, batches))
    for number, piece in itertools.chain(pieces, parts.rest()):
        packed.setdefault(number, []).append(piece)
    return packed


def unpacked(packed: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
    """Yields the tuples of a part."""
    return itertools.chain.from_iterable(map(unpack_tuples, packed))


def by_hash(keyed: Iterable[tuple[str, Row]]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yields (part, (key, *row)), in which all rows of a key are in one part."""
    for key, row in keyed:
        yield zlib.crc32(key.encode(errors="surrogatepass")) % _PARTS, (key, *row)


def groups_of(packed: Iterable[bytes]) -> Iterator[tuple[str, list[Row]]]:
    """Yields (key, its rows) for the keys in a part of by_hash()."""
    groups: dict[str, list[Row]] = {}
    for key, *fields in unpacked(packed):
        groups.setdefault(key, []).append(new_row(fields))
    yield from groups.items()
