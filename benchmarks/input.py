"""What a batch of training or evaluation costs, beside libjpeg-turbo, NVIDIA DALI and the reference's steps.

    make benchmark-input        or: python -m benchmarks.input [--part=speed|start|memory] [--folder=/tmp/input]

Everything reads the same photographs, of 500 x 375 pixels, 224 pixels are made of them, and pages are warm. Each way
is a process of its own, all of them run in turn and repeated; the tables have medians. CPU time is the kernel's count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions, ImageOptions, Source
from benchmarks.corpus import make_corpus
from tpu_input.record_source import write_dali_index
from tpu_input.schema import Manifest

COUNT = 4000
# (what it is, way of benchmarks/input_ours.py or input_peers.py, dataset)
WAYS = (
    ("train, uint8", "train", "original"),
    ("train, bfloat16", "bfloat16", "original"),
    ("train, echo=2", "echo2", "original"),
    ("train, deterministic=False", "any_order", "original"),
    ("train, stored at 256", "train", "stored256"),
    ("TensorFlow's operations alone, in order", "bare", "original"),
    ("evaluation", "eval", "original"),
    ("libjpeg-turbo, full decode alone", "simplejpeg", "original"),
    ("NVIDIA DALI on the CPU, uint8", "dali", "original"),
    ("reference ResNet's steps, bfloat16", "reference", "original"),
)
# (way, of what, at most): what the design promises of CPU time an image.
GOALS = (
    ("train, uint8", "libjpeg-turbo, full decode alone", 1.1),
    ("train, uint8", "NVIDIA DALI on the CPU, uint8", 0.70),
    ("train, uint8", "reference ResNet's steps, bfloat16", 0.58),
    ("evaluation", "train, uint8", 1.1),
    ("train, echo=2", "train, uint8", 0.75),
)
_QUIET = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}


def make_dataset(folder: Path, count: int, **options: Any) -> Manifest:
    make_corpus(folder.parent / f"photographs{count}", count)
    sources = (Source(str(folder.parent / f"photographs{count}")),)
    options = {"splits": (("train", 1.0),), "shard_bytes": 25_000_000} | options
    manifest, _ = convert(ConvertOptions(sources, str(folder), **options), PipelineOptions(["--runner=FnApiRunner"]))
    return manifest


def run_ours(dataset: Path, way: str, **environment: str) -> dict[str, Any]:
    return _child([sys.executable, "-W", "ignore", "-m", "benchmarks.input_ours", str(dataset), way], **environment)


def run_peer(python: Path, photographs: Path, dataset: Path, way: str) -> dict[str, Any]:
    return _child([str(python), "-W", "ignore", "benchmarks/input_peers.py", way, photographs, dataset, str(COUNT)])


def _child(command: list[Any], **environment: str) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, env=_QUIET | environment)
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def speed(folder: Path, python: Path, repeats: int) -> None:
    write_dali_index(make_dataset(folder / "original", COUNT))
    make_dataset(folder / "stored256", COUNT, images=ImageOptions(resize_shorter=256))
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name, *_ in WAYS}
    for _ in range(repeats):
        for name, way, dataset in WAYS:
            if way not in ("simplejpeg", "dali"):
                runs[name].append(run_ours(folder / dataset, way))
            elif python.exists():
                runs[name].append(run_peer(python, folder / f"photographs{COUNT}", folder / dataset, way))
    print_speed(runs)


def print_speed(runs: dict[str, list[dict[str, Any]]]) -> None:
    medians = {
        name: {key: statistics.median(run[key] for run in of) for key in ("cpu_ms", "images/s", "peak_mb")}
        for name, of in runs.items()
        if of
    }
    print("| 224 px of 500 × 375 JPEGs | CPU ms an image | from, to | images/s | peak MB |\n|---|---|---|---|---|")
    for name, of in runs.items():
        if not of:
            print(f"| {name} | not installed: make benchmark-input installs it | | | |")
            continue
        costs, each, label = medians[name], [run["cpu_ms"] for run in of], of[0].get("version", "")
        title = f"{name} ({label})" if label else name
        figures = f"{costs['cpu_ms']:.3f} | {min(each):.3f} to {max(each):.3f} | {costs['images/s']:,.0f}"
        print(f"| {title} | {figures} | {costs['peak_mb']:.0f} |")
    print()
    for way, of, most in GOALS:
        if way in medians and of in medians:
            ratio = medians[way]["cpu_ms"] / medians[of]["cpu_ms"]
            print(f"{way}: {ratio:.2f} times {of}; at most {most} wanted{'' if ratio <= most else ': MISSED'}")
    print(flush=True)


def start(folder: Path, python: Path, repeats: int) -> None:
    """First batch from 8 and from 1,024 shards of the same images."""
    seconds = {}
    for shards in (8, 1024):
        make_dataset(folder / f"shards{shards}", COUNT, num_shards=(("train", shards),))
        taken = [run_ours(folder / f"shards{shards}", "first_batch")["seconds"] for _ in range(repeats)]
        seconds[shards] = statistics.median(taken)
        print(f"first batch from {shards:5,} shards after {seconds[shards]:.2f} s")
    print(f"{seconds[1024] / seconds[8]:.2f} times; below 3 wanted\n", flush=True)


def memory(folder: Path, python: Path, repeats: int) -> None:
    """Peak memory by size of the dataset, with a shuffle buffer of 1,024 records, beside tpu_input/memory.py's sum.

    malloc keeps freed memory for the threads that took it; with a single arena all threads share it.
    """
    print("| images | shards | dataset MB | before | buffers, at most | peak | peak, one arena |\n" + "|---" * 7 + "|")
    for count, shards in ((2_000, 8), (4_000, 16), (16_000, 64), (16_000, 640)):
        name = folder / f"memory{count}of{shards}"
        size = make_dataset(name, count, num_shards=(("train", shards),)).split("train").num_bytes / 1e6
        found, trimmed = run_ours(name, "memory"), run_ours(name, "memory", MALLOC_ARENA_MAX="1")
        figures = [size, found["start_mb"], found["buffers_mb"], found["peak_mb"], trimmed["peak_mb"]]
        print(f"| {count:,} | {shards} | " + " | ".join(f"{figure:,.0f}" for figure in figures) + " |", flush=True)
    print()


PARTS = {"speed": speed, "start": start, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/jpeg2tpu_input_benchmark"))
    parser.add_argument("--part", choices=PARTS, action="append", help="(default: all)")
    parser.add_argument("--repeats", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument(
        "--peers", type=Path, default=Path(".venv-peers"), help="their environment (default: %(default)s)"
    )
    flags = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, TensorFlow {version('tensorflow')}\n")
    for part in flags.part or PARTS:
        PARTS[part](flags.folder, flags.peers / "bin" / "python", flags.repeats)


if __name__ == "__main__":
    main()
