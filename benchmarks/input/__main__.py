"""What a batch of training or evaluation costs, beside the decoder's limit, other loaders and the reference's steps.

    make benchmark-input        or: python -m benchmarks.input [--part=speed|large|start|plan|memory|waits|hosts|…]

Everything reads the same photographs, 224 pixels are made of them, and pages are warm. Each way is a process of its
own, all of them run in turn and repeated; the tables have medians. CPU time is the kernel's count.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_pipelines.options import ImageOptions
from benchmarks import measure
from benchmarks.conversion.ways import WEBDATASET
from benchmarks.corpus import LARGE, SMALL, describe, make_corpus
from benchmarks.input import loaders, scale, sweep, waits
from benchmarks.input.start import corpus_of, make_dataset, run_ours, run_peer
from benchmarks.measure import PEERS, Table
from tpu_input.record_source import write_dali_index

COUNT = 4000
# (what it is, way of ours.py or peers.py, dataset)
WAYS = (
    ("train, uint8", "train", "original"),
    ("train, bfloat16", "bfloat16", "original"),
    ("train, echo=2", "echo2", "original"),
    ("train, deterministic=False", "any_order", "original"),
    ("train, scaled_decode=False", "whole_decode", "original"),
    ("train, stored at 256", "train", "stored256"),
    ("TensorFlow's operations alone, in order", "bare", "original"),
    ("evaluation", "eval", "original"),
    ("libjpeg-turbo, full decode alone", "simplejpeg", "original"),
    ("libjpeg-turbo, the same with fast upsampling", "simplejpeg_fast", "original"),
    ("NVIDIA DALI on the CPU, uint8", "dali", "original"),
    ("reference ResNet's steps, bfloat16", "reference", "original"),
    ("Keras image_dataset_from_directory, no crop, float32", "keras", "original"),
    ("grain over RecordSource with OpenCV, uint8", "grain", "original"),
    ("webdataset with OpenCV, no PyTorch, uint8", "webdataset", "tar"),
)
# What large photographs take at least: all of their coded pixels are read, and hardly any pixel is made of them.
LARGE_WAYS = (("libjpeg-turbo, at an eighth of the size", "simplejpeg_eighth", "original"),)
PEER_WAYS = ("simplejpeg", "simplejpeg_fast", "simplejpeg_eighth", "dali", "grain", "webdataset")
# (way, of what, at most): what the design promises of CPU time an image.
GOALS = (
    ("train, uint8", "libjpeg-turbo, the same with fast upsampling", 1.1),  # as ours has
    ("train, uint8", "NVIDIA DALI on the CPU, uint8", 0.70),
    ("train, uint8", "reference ResNet's steps, bfloat16", 0.58),
    ("evaluation", "train, uint8", 1.1),
    ("train, echo=2", "train, uint8", 0.75),
)
COLUMNS = {
    "224 px": "title",
    "CPU ms per image": "cpu_ms:.3f",
    "from": "least:.3f",
    "to": "most:.3f",
    "images/s": "images/s:,.0f",
    "peak MB": "peak_mb:,.0f",
}


def speed(folder: Path, count: int | None, repeats: int | None) -> Table:
    return compare(folder, count or COUNT, SMALL, repeats or 3, stored=256)


def large(folder: Path, count: int | None, repeats: int | None) -> Table:
    """Photographs of 12 megapixels, which --resize_shorter=256 makes as small as all others."""
    return compare(folder, count or 256, LARGE, repeats or 1, stored=256)


def compare(folder: Path, count: int, size: tuple[int, int], repeats: int, stored: int) -> Table:
    """Returns a row for each way, and how ours stand to the goals."""
    print(describe(count, make_corpus(corpus_of(folder, count, size), count, size), size))
    datasets = folder / f"datasets{count}of{size[0]}"
    write_dali_index(make_dataset(datasets / "original", count, size))
    make_dataset(datasets / f"stored{stored}", count, size, images=ImageOptions(resize_shorter=stored))
    make_tar(corpus_of(folder, count, size), datasets / "tar")
    costs = {}
    for name, way, dataset in (*WAYS, *(LARGE_WAYS if size == LARGE else ())):
        if way not in PEER_WAYS:
            jpegs = (corpus_of(folder, count, size),) if way == "keras" else ()
            costs[name] = functools.partial(run_ours, datasets / dataset, way, *jpegs)
        elif PEERS.exists():
            costs[name] = functools.partial(run_peer, corpus_of(folder, count, size), datasets / dataset, way, count)
        else:
            print(f"left out: {name}, whose environment {PEERS} is missing: make benchmark-input makes it")
    rows = [row_of(name, runs) for name, runs in measure.in_turn(costs, repeats).items()]
    cpu_ms = {row["way"]: row["cpu_ms"] for row in rows}
    return Table(rows, COLUMNS, measure.against(GOALS, cpu_ms, "CPU time") if size == SMALL else ())


def make_tar(corpus: Path, output: Path) -> None:
    """Writes webdataset's shards of the same files, where its environment is there and they are not."""
    if WEBDATASET.is_installed and not output.exists():
        run = WEBDATASET.run(corpus, output, SHARD_BYTES="25000000")
        measure.check(run, WEBDATASET.command(corpus, output))


def row_of(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    row, cpu_ms = measure.medians(runs), [run["cpu_ms"] for run in runs]
    title = f"{name} ({row['version']})" if "version" in row else name
    return {"way": name, "title": title, **row, "least": min(cpu_ms), "most": max(cpu_ms)}


PARTS = {
    "speed": speed,
    "large": large,
    "start": scale.start,
    "plan": scale.plan,
    "memory": scale.memory,
    "waits": waits.waits,
    "hosts": scale.hosts,
    "sweep": sweep.sweep,
    "without_tensorflow": loaders.without_tensorflow,
}

if __name__ == "__main__":
    measure.run_parts("input", __doc__, PARTS)
