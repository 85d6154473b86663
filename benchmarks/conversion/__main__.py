"""What conversion costs: time, CPU and memory beside a plain loop and other tools, with growth and with slow storage.

    make benchmark        or: python -m benchmarks.conversion --part=speed, peers, copying, large, growth, latency,
                              promises or sweep

Every way reads the same files, whose pages are warm, and writes shards of 100 MB. Each run is a process of its own, all
in turn and repeated; tables have medians. Peers: benchmarks/requirements-peers.txt and requirements-peers-torch.txt.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.conversion.promises import check_all
from benchmarks.conversion.sweep import sweep
from benchmarks.conversion.ways import (
    ALL,
    CONVERT,
    CONVERT_1,
    CONVERT_512,
    CONVERT_HEADER,
    PLAIN_LOOP,
    PROCESSES,
    SLOW,
    WEBDATASET,
    Way,
    cost,
)
from benchmarks.corpus import LARGE, SMALL, describe, make_corpus
from benchmarks.measure import Table

COLUMNS = {
    "way": "way",
    "images": "images:,",
    "images/s": "images/s:,.0f",
    "CPU s": "cpu_seconds:.1f",
    "ratio of CPU": "cpu_ratio:.2f",
    "peak MB": "peak_mb:,.0f",
    "MB written": "written_mb:,.0f",
    "looks at": "checks",
}
# (way, of what, at most): what docs/benchmarks.md promises of time and of CPU time; and by the number of images, of the
# CPU time of copying, and of memory.
GOALS = ((CONVERT_1.name, PLAIN_LOOP.name, 1.15), (CONVERT.name, PLAIN_LOOP.name, 1.15))
COPYING_GOALS = (("--check=header, 100,000 images", "webdataset, 100,000 images", 1.5),)
MEMORY_GOALS = (("20,000 images", "2,000 images", 1.1), ("200,000 images", "20,000 images", 1.1))


def compare(ways: Sequence[Way], folder: Path, count: int, size: tuple[int, int], repeats: int) -> list[dict[str, Any]]:
    """Returns the medians of what the ways took of a corpus, the first of them being 1."""
    corpus = folder / f"jpegs{count}of{size[0]}"
    print(describe(count, make_corpus(corpus, count, size), size))
    for way in ways:
        if not way.is_installed:
            print(f"left out: {way.name}, whose environment {way.python} is missing (see docs/benchmarks.md)")
    costs = {way.name: functools.partial(cost, way, corpus, count) for way in ways if way.is_installed}
    rows = [measure.medians(runs) for runs in measure.in_turn(costs, repeats).values()]
    return [row | {"cpu_ratio": row["cpu_seconds"] / rows[0]["cpu_seconds"]} for row in rows]


def beside_plain(rows: Sequence[dict[str, Any]]) -> Table:
    notes = []
    for key, quantity in (("seconds", "time"), ("cpu_seconds", "CPU time")):
        notes += measure.against(GOALS, {row["way"]: row[key] for row in rows}, quantity)
    return Table(rows, COLUMNS, notes)


def speed(folder: Path, count: int | None, repeats: int | None) -> Table:
    ways = (PLAIN_LOOP, CONVERT_1, CONVERT, PROCESSES)
    return beside_plain(compare(ways, folder, count or 50_000, SMALL, repeats or 3))


def peers(folder: Path, count: int | None, repeats: int | None) -> Table:
    return beside_plain(compare((*ALL, CONVERT_HEADER), folder, count or 10_000, SMALL, repeats or 3))


def copying(folder: Path, count: int | None, repeats: int | None) -> Table:
    """Photographs that were checked before, of which the headers alone are read."""
    counts = (count,) if count else (10_000, 100_000)
    rows = [
        row for number in counts for row in compare((WEBDATASET, CONVERT_HEADER), folder, number, SMALL, repeats or 3)
    ]
    names = {WEBDATASET.title: "webdataset", CONVERT_HEADER.title: "--check=header"}
    cpu_seconds = {f"{names[row['way']]}, {row['images']:,} images": row["cpu_seconds"] for row in rows}
    return Table(rows, COLUMNS, measure.against(COPYING_GOALS, cpu_seconds, "CPU time"))


def large(folder: Path, count: int | None, repeats: int | None) -> Table:
    """Photographs of 12 megapixels."""
    return beside_plain(compare((*ALL, CONVERT_512), folder, count or 200, LARGE, repeats or 1))


def growth(folder: Path, count: int | None, repeats: int | None) -> Table:
    """Images of 48 x 36 pixels: what grows with their number and not with their bytes."""
    counts = (count,) if count else (2_000, 20_000, 200_000)
    rows = [row for number in counts for row in compare(ALL, folder, number, (48, 36), repeats or 1)]
    peaks = {f"{row['images']:,} images": row["peak_mb"] for row in rows if row["way"] == CONVERT.name}
    return Table(rows, COLUMNS, measure.against(MEMORY_GOALS, peaks, "peak memory"))


def latency(folder: Path, count: int | None, repeats: int | None) -> Table:
    """Storage in which opening a file takes 50 ms, as in a bucket."""
    counts = (count, count) if count else (500, 10_000)
    both = zip(SLOW, counts, strict=True)
    rows = [row for way, number in both for row in compare((way,), folder, number, SMALL, repeats or 1)]
    return Table(rows, {heading: column for heading, column in COLUMNS.items() if column != "cpu_ratio:.2f"})


def promises(folder: Path, count: int | None, repeats: int | None) -> Table:
    """What is kept when the same is done twice, when it is killed, and when files are damaged."""
    return check_all(ALL, folder, count or 3_000)


_PARTS = (speed, peers, copying, large, growth, latency, promises, sweep)
PARTS = {part.__name__: part for part in _PARTS}

if __name__ == "__main__":
    measure.run_parts("conversion", __doc__, PARTS)
