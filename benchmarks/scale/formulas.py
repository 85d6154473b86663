"""Formulas of what a conversion takes, for sizes that we cannot run; `python -m benchmarks.scale` checks them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from beam_pipelines.conversion.plan import BUCKET_BITS, range_bits
from beam_pipelines.dry_run import IMAGES_A_SECOND

HELD_ROWS = 1 << 16  # beam_pipelines.conversion.planning.row_batches
FOLDERS = 1000  # class folders, which are listed side by side
# Of docs/scale.md: images, bytes per record, bytes per shard.
SIZES = ((1_300_000, 110_000, 1e8), (100_000_000, 110_000, 1e8), (10_000_000_000, 110_000, 2e10))


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one of something costs, in bytes, with keys of 19 characters as in "class3/0012343.jpg".

    Fitted at 20,000 images; the runs of a tenth and of ten times as many check them.
    """

    shuffled_row: float = 54.7  # one of many rows of a range, with its position and its split
    packed_row: float = 16.8  # one of many consecutive rows of a shard, compressed together
    pack: float = 115  # rows that are packed together, without the rows
    shuffled_sums: float = 36_500  # what is known of all folders and rows, in 64 parts each
    row_file: float = 113.5  # its line of JSON in the working folder, with a path of 40 characters
    held_row: float = 60  # a row that the process which plans keeps, packed with others
    # A row of a range in the memory of the worker that cuts it, encoded and decoded to be sorted (tracemalloc).
    grouped_row: float = 558
    plan_bucket: float = 15  # "1234": 12345, for a bucket of a split
    receipt: float = 640
    manifest: float = 1_565  # without shards, for 10 classes
    manifest_shard: float = 195
    index_row: float = 105
    index_shard: float = 3_000  # a Parquet file without its rows
    rejection: float = 450  # a line of rejected.jsonl in the memory of the process that commits (tracemalloc)
    process: float = 115e6  # a process that plans few images, without Beam


@dataclasses.dataclass(frozen=True)
class Scale:
    """What a conversion of a folder takes."""

    shards: int
    shuffled_elements: float
    shuffled_bytes: float
    largest_range_rows: float
    planning_memory: float
    working_bytes: float
    manifest_bytes: float
    index_bytes: float
    reads: int
    writes: int
    stats: int


def formula(images: int, record_bytes: float, shard_bytes: float, unit: Unit = Unit()) -> Scale:
    """Returns the prediction for so many images whose records have so many bytes on average."""
    shards = sum(math.ceil(images * share * record_bytes / shard_bytes) for share in (0.9, 0.1))
    buckets = 1 << BUCKET_BITS
    # Those that hold a row.
    plan = unit.plan_bucket * sum(buckets * -math.expm1(-images * share / buckets) for share in (0.9, 0.1))
    ranges = 1 << range_bits(images)
    packs = ranges * max(images / HELD_ROWS, 1) + shards + 2 * (ranges - 1)  # by range, by shard
    return Scale(
        shards=shards,
        shuffled_elements=packs + 130,  # and the sums in 64 parts each, and the samples of two kinds
        shuffled_bytes=images * (unit.shuffled_row + unit.packed_row) + packs * unit.pack + unit.shuffled_sums,
        largest_range_rows=images / ranges + 4 * math.sqrt(images / ranges) * (ranges > 1),  # of Poisson draws
        planning_memory=unit.process + images * unit.held_row,
        working_bytes=images * unit.row_file + shards * unit.receipt + plan,
        manifest_bytes=unit.manifest + shards * unit.manifest_shard,
        index_bytes=images * unit.index_row + shards * unit.index_shard,
        reads=images + 130 + 4 * shards,  # images, a sample of two kinds; a shard's rows, twice, its receipt and index
        writes=4 * shards + 6,  # rows, shard, index, receipt
        stats=2 * shards + 1,  # whether the conversion is still under way, before and after a shard gets its names
    )


def predictions(sizes: Sequence[tuple[int, float, float]] = SIZES) -> list[str]:
    """Returns the lines of a Markdown table: the formulas for (images, bytes per record, bytes per shard)."""
    unit = Unit()
    scales = [formula(*scale) for scale in sizes]
    rates = {"reads": 5000 * 3600, "writes": 1000 * 3600}  # of a bucket, per hour, at first
    lines = {
        "bytes per shard": [in_units(shard) for _, _, shard in sizes],
        "bytes of all shards": [in_units(images * record) for images, record, _ in sizes],
        "shards": [counted(scale.shards) for scale in scales],
        "elements in the shuffle": [counted(scale.shuffled_elements) for scale in scales],
        "bytes in the shuffle": [in_units(scale.shuffled_bytes) for scale in scales],
        "rows of the largest range of the order": [counted(scale.largest_range_rows) for scale in scales],
        "memory to plan on one machine": [in_units(scale.planning_memory) for scale in scales],
        "memory to cut the largest range": [in_units(scale.largest_range_rows * unit.grouped_row) for scale in scales],
        "memory to commit, 1 % rejected": [in_units(images / 100 * unit.rejection) for images, _, _ in sizes],
        "working files": [in_units(scale.working_bytes) for scale in scales],
        "manifest": [in_units(scale.manifest_bytes) for scale in scales],
        "indexes": [in_units(scale.index_bytes) for scale in scales],
        "reads": [counted(scale.reads) for scale in scales],
        "writes": [counted(scale.writes) for scale in scales],
        "requests for a size": [counted(scale.stats) for scale in scales],
        "reads at 5,000 per second": [in_time(scale.reads / rates["reads"]) for scale in scales],
        "writes at 1,000 per second": [in_time(scale.writes / rates["writes"]) for scale in scales],
        f"listing {FOLDERS:,} class folders, 5,000 names per second each": [
            in_time(images / 5000 / FOLDERS / 3600) for images, _, _ in sizes
        ],
        "listing one class folder": [in_time(images / 5000 / 3600) for images, _, _ in sizes],
        f"writing on one core, {IMAGES_A_SECOND} images per second": [
            in_time(images / IMAGES_A_SECOND / 3600) for images, _, _ in sizes
        ],
    }
    header = ["| |", *(f" {images:,} images |" for images, _, _ in sizes)]
    rows = [f"| {' | '.join([name, *values])} |" for name, values in lines.items()]
    return ["".join(header), "|---|" + "---|" * len(sizes), *rows]


def in_units(num_bytes: float) -> str:
    """Returns a number of bytes with three digits: "143 GB"."""
    for power, unit in ((5, "PB"), (4, "TB"), (3, "GB"), (2, "MB")):
        if num_bytes >= 1000**power:
            return f"{_three_digits(num_bytes / 1000**power)} {unit}"
    return f"{_three_digits(num_bytes / 1000)} KB"


def counted(number: float) -> str:
    """Returns a number with three digits: "2,600,000", "20 billion"."""
    if number >= 1e9:
        return f"{_three_digits(number / 1e9)} billion"
    if number >= 1e6:
        return f"{_three_digits(number / 1e6)} million"
    return _three_digits(number)


def in_time(hours: float) -> str:
    """Returns a time with two or three digits: "4.3 min", "5.6 h", "23 days"."""
    if hours * 60 < 1:
        return f"{hours * 3600:.2g} s"
    if hours < 1:
        return f"{hours * 60:.2g} min"
    return f"{hours:.2g} h" if hours < 72 else f"{_three_digits(round(hours / 24))} days"


def _three_digits(number: float) -> str:
    """Returns a number rounded to three digits, without an exponent."""
    return f"{float(f'{number:.3g}'):,.10g}"
