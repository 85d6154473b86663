"""Exports beside each format's own writer, which is fed from the same records: CPU time and bytes written.

    python -m benchmarks.exports [--images=2000] [--small_images=20000] [--repeats=5]

    photographs, small images ──convert──▶ dataset ─┬─▶ jpeg2tpu export-dataset --num_processes=1 ──▶ CPU time, bytes
                                                    └─▶ records in a loop ──the format's own writer──▶ CPU time, bytes

Both are commands, from their start to their end, and take turns. The fixed start, imports for the most part, is that of
the same command for a dataset of a few images; what is more than that belongs to the images. Ratios are medians of the
turns' own. The loop (benchmarks/exports/peers.py) reads each record once, in the order of the shard, and checks its
CRC-32C, as the export does. It neither hashes nor flushes anything, and an interruption leaves half a file. Parquet has
two others: Hugging Face's datasets, as its documentation shows, and the bare ParquetWriter of pyarrow.

What an export takes more, as shares of its CPU time per image, each step measured alone in one process:

    photograph, WebDataset     SHA-256 of the image and of its shard 28 %, planning 10 to 15 %, header of the JPEG 1 %;
                               the rest reads, checks, copies and writes
    small image, Parquet       planning 27 %, header 6 %, SHA-256 3 %

In a profile (cProfile), fsync, receipts and manifest take at most 2 %, and the second copy of an ArrayRecord, whose
writer needs a file of its own, a fifth. More than half of the start are NumPy, pyarrow, Pillow and protobuf.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.conversion.ways import Way, cost
from benchmarks.corpus import SMALL, describe, make_corpus
from benchmarks.measure import PEERS, PEERS_TORCH

_TINY = (48, 36)
_FEW = 20  # images of an export that is nothing but its start
_GOAL = 1.2  # times the CPU time of the format's own writer, at most
COLUMNS = {
    "images": "images",
    "format": "format",
    "writer": "writer",
    "start, CPU s": "start:.2f",
    "writer's start, CPU s": "peer_start:.2f",
    "CPU µs per image": "per_image:,.0f",
    "writer's CPU µs per image": "peer_per_image:,.0f",
    "ratio per image": "per_image_ratio:.2f",
    "ratio of all": "ratio:.2f",
    "MB": "written_mb:,.1f",
    "writer's MB": "peer_written_mb:,.1f",
}


@dataclasses.dataclass(frozen=True)
class _Peer(Way):
    """A format's own writer, of benchmarks/exports/peers.py."""

    def command(self, folder: Path, output: Path) -> list[Any]:
        return [self.python, "-W", "ignore", "-m", "benchmarks.exports.peers", self.function, folder, output]


@dataclasses.dataclass(frozen=True)
class _Export(Way):
    """`jpeg2tpu export-dataset`, whose format is `function`."""

    def command(self, folder: Path, output: Path) -> list[Any]:
        command = [sys.executable, "-W", "ignore", "-m", "jpeg2tpu", "export-dataset", folder, f"--output={output}"]
        return [*command, f"--format={self.function}", "--num_processes=1", "--quiet"]


_PYTHON = Path(sys.executable)
# Of each format, its own writers. Those that this environment has are of the version that the export uses.
WRITERS = {
    "webdataset": (_Peer("webdataset ShardWriter", "webdataset", "", "", python=PEERS, package="webdataset"),),
    "parquet": (
        _Peer("datasets to_parquet()", "datasets", "", "", python=PEERS, package="datasets"),
        _Peer("pyarrow ParquetWriter", "pyarrow", "", "", python=_PYTHON, package="pyarrow"),
    ),
    "array_record": (_Peer("ArrayRecordWriter", "array_record", "", "", python=_PYTHON, package="array_record"),),
    "mds": (_Peer("MosaicML MDSWriter", "mds", "", "", python=PEERS_TORCH, package="mosaicml-streaming"),),
}


def compared(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], few: Sequence[Sequence[float]], count: int
) -> dict[str, Any]:
    """Returns how an export stands to a format's own writer, as a row without names.

    Args:
      ours: Runs of the export of `count` images, one for each turn: {"cpu_seconds", "written_mb"}.
      theirs: Those of the writer.
      few: CPU seconds of both, one pair for each turn, for a dataset of _FEW images.
      count: Number of images.
    """
    turns = [(a["cpu_seconds"], b["cpu_seconds"], *starts) for a, b, starts in zip(ours, theirs, few, strict=True)]
    per_image = [
        (1e6 * (a - start) / (count - _FEW), 1e6 * (b - other) / (count - _FEW)) for a, b, start, other in turns
    ]
    median = statistics.median
    return {
        "start": median(start for *_, start, _ in turns),
        "peer_start": median(start for *_, start in turns),
        "per_image": median(a for a, _ in per_image),
        "peer_per_image": median(b for _, b in per_image),
        "per_image_ratio": median(a / b for a, b in per_image),
        "ratio": median(a / b for a, b, *_ in turns),
        "written_mb": ours[0]["written_mb"],
        "peer_written_mb": theirs[0]["written_mb"],
    }


def dataset(folder: Path, size: tuple[int, int], count: int) -> Path:
    """Returns the dataset of so many images of a size, which is made if it is not there; its shards have 100 MB."""
    corpus, output = (folder / f"{kind}{count}of{size[0]}" for kind in ("jpegs", "dataset"))
    print(describe(count, make_corpus(corpus, count, size), size))
    command = [sys.executable, "-W", "ignore", "-m", "jpeg2tpu", "convert", f"--input={corpus}", f"--output={output}"]
    measure.check(measure.run([*command, "--shard_size=100MB", "--quiet"]), command)
    return output


def compare(folder: Path, name: str, size: tuple[int, int], count: int, repeats: int) -> list[dict[str, Any]]:
    """Returns a row for each format and each of its own writers that is installed."""
    datasets = {number: dataset(folder, size, number) for number in (_FEW, count)}
    rows = []
    for shard_format, writers in WRITERS.items():
        peers = [peer for peer in writers if peer.is_installed]
        for peer in writers:
            if not peer.is_installed:
                print(f"left out: {peer.name}, whose environment {peer.python} is missing (see docs/benchmarks.md)")
        if not peers:
            continue
        export = _Export("export-dataset", shard_format, "", "")
        ways: dict[str, Callable[[], dict[str, Any]]] = {
            f"{way.name}/{number}": functools.partial(cost, way, datasets[number], number)
            for number in datasets
            for way in (export, *peers)
        }
        runs = measure.in_turn(ways, repeats)
        for peer in peers:
            starts = [[run["cpu_seconds"] for run in runs[f"{way.name}/{_FEW}"]] for way in (export, peer)]
            ours, theirs = (runs[f"{way.name}/{count}"] for way in (export, peer))
            figures = compared(ours, theirs, list(zip(*starts, strict=True)), count)
            rows.append({"images": f"{count:,} {name}", "format": shard_format, "writer": peer.title, **figures})
    return rows


def note(row: Mapping[str, Any]) -> str:
    """Returns the line that says how a row stands to what is wanted."""
    verdict = "" if row["ratio"] <= _GOAL else ": MISSED"
    quantity = f"CPU time of {row['format']}, {row['images']}"
    return f"{quantity}: {row['ratio']:.2f} times {row['writer']}; at most {_GOAL:.2f} wanted{verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/jpeg2tpu_benchmark"))
    parser.add_argument("--images", type=int, default=2000, help="number of photographs (default: 2,000)")
    parser.add_argument("--small_images", type=int, default=20_000, help="of 48 x 36 pixels (default: 20,000)")
    parser.add_argument("--repeats", type=int, default=5)
    flags = parser.parse_args()
    rows = compare(flags.folder, "photographs", SMALL, flags.images, flags.repeats)
    rows += compare(flags.folder, "small images", _TINY, flags.small_images, flags.repeats)
    measure.keep("exports", measure.Table(rows, COLUMNS, list(map(note, rows))))


if __name__ == "__main__":
    main()
