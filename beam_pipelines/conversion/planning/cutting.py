"""The cut: placed rows, grouped by ranges of the order, become the rows of shards.

    [Placed] ──by_range──▶ Parts ──▶ (range, packed rows) ──cut──▶ (shard, Row), in the order of the examples

A range is one of the 4,096 buckets of the plan on an engine, and several of them in one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from beam_pipelines.conversion.plan import BUCKET_BITS, HASH_BITS, Placed, Plan, assign_shards
from beam_pipelines.conversion.planning.row_batches import new_row, unpacked
from beam_pipelines.options import ConvertOptions
from beam_pipelines.sources.rows import Row, locate

_RANGE_ROWS = 1 << 14  # of a range in one process, about


def range_bits(num_rows: int) -> int:
    """Returns the number of bits of a position that name its range, for so many rows."""
    return min(BUCKET_BITS, max(num_rows // _RANGE_ROWS, 1).bit_length() - 1)


def by_range(placed: Iterable[Placed], bits: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yields (one of 2**bits ranges, (position, split, *row)), for row_batches.Parts."""
    shift = HASH_BITS - bits
    for position, split, row in placed:
        yield position >> shift, (position, split, *row)


def cut(
    number: int, bits: int, packed: Iterable[bytes], plan: Plan, options: ConvertOptions
) -> Iterator[tuple[str, Row]]:
    """Yields (shard name, row with its URI) for all rows of one of 2**bits ranges, in the order of the examples.

    Args:
      number: Number of the range.
      bits: As of by_range().
      packed: The packed tuples of the range.
      plan: The plan of all rows.
      options: Options of the conversion.
    """
    placed: list[Placed] = [(position, split, new_row(fields)) for position, split, *fields in unpacked(packed)]
    for shard, row in assign_shards(placed, number << (BUCKET_BITS - bits), plan, options):
        yield shard, locate(row, options)
