"""The cut: placed rows, grouped by ranges of the order, become the rows of shards.

    Batch ──by_range──▶ Parts ──▶ (range, packed rows) ──cut──▶ (shard, Batch), in the order of the examples

The more rows there are, the more ranges: at most the 4,096 buckets of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from beam_pipelines.conversion.plan import BUCKET_BITS, HASH_BITS, Plan, assign_shards
from beam_pipelines.conversion.planning.row_batches import Numbered
from beam_pipelines.options import ConvertOptions
from beam_pipelines.sources.row_columns import Batch, joined

_RANGE_ROWS = 1 << 14  # of a range, about


def range_bits(num_rows: int) -> int:
    """Returns the number of bits of a position that name its range, for so many rows."""
    return min(BUCKET_BITS, max(num_rows // _RANGE_ROWS, 1).bit_length() - 1)


def by_range(placed: Batch, bits: int) -> Numbered:
    """Returns placed rows, and the number of the range of each, one of 2**bits."""
    # In Python's integers, as NumPy shifts none by all of its bits.
    shift = HASH_BITS - bits
    return placed, [position >> shift for position in placed.columns["position"].tolist()]


def cut(
    number: int, bits: int, packed: Iterable[bytes], plan: Plan, options: ConvertOptions
) -> Iterator[tuple[str, Batch]]:
    """Yields (shard, rows) for all rows of one of 2**bits ranges, in the order of the examples within a shard.

    Args:
      number: Number of the range.
      bits: As of by_range().
      packed: The packed rows of the range.
      plan: The plan of all rows.
      options: Options of the conversion.
    """
    placed = joined(list(map(Batch.unpack, packed)))
    return assign_shards(placed, number << (BUCKET_BITS - bits), plan, options)
