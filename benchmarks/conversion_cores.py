"""How a conversion uses more cores: wall time, CPU time and memory by number of processes, next to another checkout.

    python -m benchmarks.conversion_cores --base=../main        in turn with the code in that folder, on a quiet machine

photographs in 1, 3 and 20 shards, small images in 3 ──▶ `convert --num_processes=N` of each checkout ──▶ medians
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.corpus import SMALL, make_corpus
from benchmarks.measure import Table, check, in_turn, keep, medians, run

_MODULE = "beam_pipelines"  # which commits before `jpeg2tpu convert` have too
_TINY = (48, 36)
# Name: size, images, bytes of a shard.
INPUTS = {
    "photographs, 1 shard": (SMALL, 2_000, 10**9),
    "photographs, 3 shards": (SMALL, 2_000, 80_000_000),
    "photographs, 20 shards": (SMALL, 2_000, 9_500_000),
    "small images, 3 shards": (_TINY, 20_000, 12_000_000),
}
COLUMNS = {
    "input": "input",
    "code": "code",
    "processes": "processes",
    "seconds": "seconds:.2f",
    "CPU seconds": "cpu_seconds:.2f",
    "peak memory, MB": "peak_mb:,.0f",
    "seconds ÷ with 1 process": "wall_ratio:.2f",
    "CPU ÷ with 1 process": "cpu_ratio:.2f",
}


def converted(code: Path, images: Path, output: Path, shard_bytes: int, num_processes: int) -> dict[str, Any]:
    """Converts with the code in a folder; returns what it took."""
    shutil.rmtree(output, ignore_errors=True)
    flags = [f"--input={images}", f"--output={output}", f"--shard_size={shard_bytes}"]
    command = [
        sys.executable,
        "-P",
        "-W",
        "ignore",
        "-m",
        _MODULE,
        "convert",
        *flags,
    ]  # -P: not of this folder
    done = check(run([*command, f"--num_processes={num_processes}"], PYTHONPATH=str(code)), command)
    return {"seconds": done.seconds, "cpu_seconds": done.cpu_seconds, "peak_mb": done.peak_mb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", type=Path, help="folder of another checkout (default: none)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "conversion_cores")
    flags = parser.parse_args()
    num_cores = len(os.sched_getaffinity(0))
    counts = sorted({1, 2, *(number for number in (4, 8, 16) if number < num_cores), num_cores})
    codes = {"here": Path(__file__).parents[1]} | ({"base": flags.base.resolve()} if flags.base else {})
    rows = []
    for name, (size, count, shard_bytes) in INPUTS.items():
        images = flags.folder / f"{size[0]}x{size[1]}"
        make_corpus(images, count, size)
        ways = {
            f"{code}/{number}": functools.partial(converted, path, images, flags.folder / "out", shard_bytes, number)
            for code, path in codes.items()
            for number in counts
        }
        found = {way: medians(runs) for way, runs in in_turn(ways, flags.repeats).items()}
        for way, row in found.items():
            code, _, number = way.partition("/")
            one = found[f"{code}/1"]
            ratios = {
                "wall_ratio": row["seconds"] / one["seconds"],
                "cpu_ratio": row["cpu_seconds"] / one["cpu_seconds"],
            }
            rows.append({"input": name, "code": code, "processes": int(number), **row, **ratios})
    keep("conversion_cores", Table(rows, COLUMNS))


if __name__ == "__main__":
    main()
