"""Sizes of records, estimated before an image is stored: the bytes of its source, times a ratio that its kind has.

[Row] ──sample──▶ {kind: first rows in the order of the dataset} ──measure──▶ {kind: ratio} ──size_rows──▶ [Row]
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterable, Mapping

from beam_pipelines.conversion.plan import choose_split, hash_position, in_order
from beam_pipelines.options import ConvertOptions
from beam_pipelines.runners import phases
from beam_pipelines.sources.read_ahead import map_images
from beam_pipelines.sources.rows import Row, check_names, kind, locate, size_row
from tpu_input.command_line.cores import num_cores
from tpu_input.stored_images.check import Rejected, stored_bytes

_SAMPLE = 64  # images read per kind to estimate the ratio of stored bytes to source bytes


class FirstRows:
    """The first rows of some, in the order of the dataset; as many as a sample has.

    Attributes:
      rows: These rows, and more that came last.
    """

    def __init__(self, seed: int) -> None:
        """Begins with no rows; `seed` is the conversion's."""
        self.rows: list[Row] = []
        self._seed, self._last = seed, 1 << 64  # position of the last row that may still be one of the first

    def add(self, row: Row, position: int) -> None:
        """Adds a row whose hash_position() is given."""
        if position <= self._last:
            self.rows.append(row)
            if len(self.rows) == 4 * _SAMPLE:
                self.rows = first_rows(self.rows, self._seed)
                self._last = hash_position(self._seed, self.rows[-1].key)


def first_rows(rows: Iterable[Row], seed: int) -> list[Row]:
    """Returns the first rows in the order of the dataset, as many as a sample has."""
    return heapq.nsmallest(_SAMPLE, rows, key=functools.partial(in_order, seed=seed))


class Samples:
    """The sample of each kind of image, of the rows that were added."""

    def __init__(self, seed: int) -> None:
        """Begins without rows; `seed` is the conversion's."""
        self._seed = seed
        self._kinds: dict[str, FirstRows] = {}

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if not row.reason:
                name = kind(row)
                first = self._kinds.get(name) or self._kinds.setdefault(name, FirstRows(self._seed))
                first.add(row, hash_position(self._seed, row.key))

    def by_kind(self) -> dict[str, list[Row]]:
        """Returns the rows of the sample of each kind."""
        return {name: first_rows(first.rows, self._seed) for name, first in self._kinds.items()}


def measure(rows: list[Row], options: ConvertOptions) -> float:
    """Returns the ratio of stored bytes to source bytes of a sample; files that are not images count as 0 stored."""
    phases.advance("planning", 0)  # all is listed
    located = [locate(row, options) for row in rows]
    sizes = map_images(located, lambda _row, data: stored_bytes(data, options.images), num_cores())
    stored = [size for _, size in sizes if not isinstance(size, Rejected)]
    return sum(stored) / max(sum(row.num_bytes for row in rows), 1)


def size_rows(rows: list[Row], ratios: Mapping[str, float], options: ConvertOptions) -> list[Row]:
    """Returns rows that have a label with their estimated record sizes, or with a reason for a wrong name or size."""
    labels = options.label_kind
    sized = []
    for listed in rows:
        row = check_names(listed, options)
        is_counted = options.num_shards and options.shards_of(choose_split(row, options))
        sized.append(size_row(row, ratios, 0 if is_counted else options.shard_bytes, labels))
    return sized
