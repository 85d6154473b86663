"""Batches that are kept until others are known, and batches grouped by a key in bounded memory.

[Batch] ──RowStore──▶ [Batch], packed in the meantime
[Batch] ──by_hash──▶ Parts ──▶ (part, packed rows) ──groups_of──▶ (key, [Row]), one of 1,024 parts at a time
"""

from __future__ import annotations

import collections
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from beam_pipelines.sources.row_columns import Batch, joined
from beam_pipelines.sources.rows import Row

_PARTS = 1024  # in which rows are grouped by a key, each part in the memory of one process
_BUFFER_ROWS = 1 << 16  # of all parts, that are collected before they are packed: 20 MB


class RowStore:
    """Batches of rows that are kept packed until they are used again.

    Attributes:
      num_rows: Number of rows that were added.
      num_bytes: Size of their images in storage.
    """

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        """Keeps these batches."""
        self._packed: collections.deque[bytes] = collections.deque()
        self.num_rows, self.num_bytes = 0, 0
        for batch in batches:
            self.add(batch)

    def add(self, batch: Batch) -> None:
        self._packed.append(batch.pack())
        self.num_rows += batch.num_rows
        self.num_bytes += int(np.sum(batch.column("num_bytes")))

    def __iter__(self) -> Iterator[Batch]:
        return map(Batch.unpack, self._packed)

    def drain(self) -> Iterator[Batch]:
        """Yields the batches, and forgets each."""
        while self._packed:
            yield Batch.unpack(self._packed.popleft())


# A batch, and for each of its rows the number of the part that it is in.
Numbered = tuple[Batch, Sequence[int]]


class Parts:
    """Rows by the number of the part that they are in, collected until there are so many that it is worth packing.

    Packed, they are smaller than in memory, and the rows of a part stay together.
    """

    def __init__(self) -> None:
        """Begins with nothing collected."""
        self._batches: list[Numbered] = []
        self._num_rows = 0

    def add(self, batch: Batch, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Adds a batch; yields (part, packed rows) of all parts if many rows are collected now."""
        self._batches.append((batch, numbers))
        self._num_rows += batch.num_rows
        if self._num_rows >= _BUFFER_ROWS:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[int, bytes]]:
        """Yields (part, packed rows) of all that is collected."""
        batches, self._batches, self._num_rows = [pair for pair in self._batches if pair[0].num_rows], [], 0
        if not batches:
            return
        rows = joined([batch for batch, _ in batches])
        numbers = np.concatenate([numbers for _, numbers in batches])
        order = np.argsort(numbers, kind="stable")
        parts, begins = np.unique(numbers[order], return_index=True)
        for number, selected in zip(parts.tolist(), np.split(order, begins[1:]), strict=True):
            yield number, (rows if len(parts) == 1 else rows.take(selected.tolist())).pack()


def in_parts(batches: Iterable[Numbered]) -> dict[int, list[bytes]]:
    """Returns the packed rows by part."""
    parts, packed = Parts(), dict[int, list[bytes]]()
    pieces = itertools.chain.from_iterable(parts.add(*numbered) for numbered in batches)
    for number, piece in itertools.chain(pieces, parts.rest()):
        packed.setdefault(number, []).append(piece)
    return packed


def by_hash(rows: Sequence[Row], keys: Sequence[str]) -> Numbered:
    """Returns rows with their keys, for groups_of(): all rows of a key are in one part."""
    numbers = [zlib.crc32(key.encode(errors="surrogatepass")) % _PARTS for key in keys]
    return Batch.from_rows(rows).replace(group_key=list(keys)), numbers


def groups_of(packed: Iterable[bytes]) -> Iterator[tuple[str, list[Row]]]:
    """Yields (key, its rows) for the keys in a part of by_hash()."""
    groups: dict[str, list[Row]] = {}
    for batch in map(Batch.unpack, packed):
        for key, row in zip(batch.column("group_key"), batch.rows(), strict=True):
            groups.setdefault(key, []).append(row)
    yield from groups.items()
