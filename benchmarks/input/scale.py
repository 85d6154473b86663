"""How the first batch and the memory of training's input grow: with shards, with images, with hosts.

Each is a part of __main__.py; given a number of images, to try it out, it takes fewer shards and hosts too.
"""

from __future__ import annotations

import functools
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks import measure
from benchmarks.input.start import make_dataset, run_ours
from benchmarks.measure import Table
from tpu_input.dataset_format.lengths import LENGTHS_NAME, write_lengths
from tpu_input.dataset_format.manifest import MANIFEST_NAME, Manifest, Shard, Split, shard_name

COUNT = 4000
AT_A_TIME = 2  # hosts simulated at the same time: a core each
MEMORY = ((2_000, 8), (4_000, 16), (16_000, 64), (16_000, 640))  # images, shards
MEMORY_COLUMNS = {
    "images": "images:,",
    "shards": "shards",
    "dataset MB": "dataset_mb:,.0f",
    "before": "start_mb:,.0f",
    "buffers, at most": "buffers_mb:,.0f",
    "peak": "peak_mb:,.0f",
    "without what is freed": "trimmed_mb:,.0f",
}
RECORDS_A_SHARD = 130
PLAN_COLUMNS = {
    "shards": "shards:,",
    "examples": "examples:,",
    "manifest and places read after, seconds": "seconds:.2f",
    "MB": "peak_mb:,.0f",
}
START_COLUMNS = {"shards": "shards:,", "first batch after, seconds": "seconds:.2f"}
HOSTS_COLUMNS = {
    "shards": "shards:,",
    "hosts": "hosts",
    "first batch after": "seconds:.2f",
    "slowest host": "slowest:.2f",
    "peak MB of a host": "peak_mb:,.0f",
    "largest": "largest_mb:,.0f",
}


def start(folder: Path, count: int | None, repeats: int | None) -> Table:
    """First batch from 8 and from 1,024 shards of the same images."""
    rows = []
    for shards in (8, 64) if count else (8, 1024):
        dataset = make_sharded(folder, count or COUNT, shards)
        seconds = statistics.median(run_ours(dataset, "first_batch")["seconds"] for _ in range(repeats or 3))
        rows.append({"shards": shards, "seconds": seconds})
    starts = {f"{row['shards']:,} shards": row["seconds"] for row in rows}
    few, many = starts
    return Table(rows, START_COLUMNS, measure.against([(many, few, 3)], starts, "first batch"))


def plan(folder: Path, count: int | None, repeats: int | None) -> Table:
    """Reading the manifest and the places of all records, of 1,000, 10,000 and 100,000 shards of 130 records."""
    rows = []
    for shards in (10, 100) if count else (1_000, 10_000, 100_000):
        dataset = make_listed(folder / "listed" / str(shards), shards)
        figures = measure.medians([run_ours(dataset, "plan") for _ in range(repeats or 3)])
        rows.append({"shards": shards, "examples": shards * RECORDS_A_SHARD} | figures)
    return Table(rows, PLAN_COLUMNS)


def make_listed(folder: Path, shards: int) -> Path:
    """Writes a dataset's manifest and lengths, and shards that have their size but no content."""
    if (folder / MANIFEST_NAME).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    lengths = np.random.default_rng(0).integers(700_000, 900_000, (shards, RECORDS_A_SHARD))
    entries = []
    for number, shard_lengths in enumerate(lengths):
        entries.append(Shard(shard_name("train", number, shards), RECORDS_A_SHARD, int(shard_lengths.sum()), "0" * 64))
        with (folder / entries[-1].name).open("wb") as file:
            file.truncate(entries[-1].num_bytes)
    sides, channels = (500, 500.0, 500), (120.0, 120.0, 120.0)
    counts = (shards * RECORDS_A_SHARD // 2,) * 2
    split = Split(tuple(entries), counts, sides, sides, channels, channels)
    manifest = Manifest(str(folder), ("a", "b"), 0, {"train": split}, sum(counts), {}, {}, "0" * 64)
    with (folder / LENGTHS_NAME).open("wb") as file:
        write_lengths(file, {shard.name: shard_lengths for shard, shard_lengths in zip(entries, lengths, strict=True)})
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return folder


def memory(folder: Path, count: int | None, repeats: int | None) -> Table:
    """Peak memory by size of the dataset, beside pipeline/memory.py's sum; and without what malloc keeps of it."""
    rows = []
    for images, shards in ((count, 2), (count, 8)) if count else MEMORY:
        dataset = make_sharded(folder, images, shards)
        size = sum(path.stat().st_size for path in dataset.glob("*.tfrecord")) / 1e6
        rows.append({"images": images, "shards": shards, "dataset_mb": size} | run_ours(dataset, "memory"))
    return Table(rows, MEMORY_COLUMNS)


def hosts(folder: Path, count: int | None, repeats: int | None) -> Table:
    """First batch and memory of every one of 1 to 64 hosts, each a process, two at a time.

    64 shards are one a host; 1,024 are what ImageNet has. All hosts of a row read the same dataset.
    """
    rows = []
    for shards in (8, 64) if count else (64, 1024):
        dataset = make_sharded(folder, count or COUNT, shards)
        for num_hosts in (1, 4) if count else (1, 4, 16, 64):
            with ThreadPoolExecutor(AT_A_TIME) as pool:
                run = functools.partial(run_ours, dataset, "first_batch")
                results = list(pool.map(run, range(num_hosts), [num_hosts] * num_hosts))
            seconds, peaks = ([result[key] for result in results] for key in ("seconds", "peak_mb"))
            middle = {"seconds": statistics.median(seconds), "peak_mb": statistics.median(peaks)}
            worst = {"slowest": max(seconds), "largest_mb": max(peaks)}
            rows.append({"shards": shards, "hosts": num_hosts} | middle | worst)
    return Table(rows, HOSTS_COLUMNS)


def make_sharded(folder: Path, count: int, shards: int) -> Path:
    output = folder / "sharded" / f"{count}in{shards}"
    return Path(make_dataset(output, count, num_shards=(("train", shards),)).path)
