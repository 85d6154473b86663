"""How a conversion uses more cores: wall time, CPU time and memory by number of processes, next to another checkout.

python -m benchmarks.conversion.cores --base=../main        in turn with the code in that folder, on a quiet machine

photographs in 1, 3 and 20 shards, small images in 3 ──▶ `convert --num_processes=N` of each checkout ──▶ medians
seconds with 1 and with 2 processes ──Amdahl's law──▶ seconds that 4 and 16 cores would take
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
# Name: the one of INPUTS whose cost an image has, images. They are those of the measurement on 16 cores.
COMPUTED = {
    "20,400 photographs, 20 shards": ("photographs, 20 shards", 20_400),
    "150,000 small images, 3 shards": ("small images, 3 shards", 150_000),
}
_FEW = 20  # images of a conversion that is nothing but its start
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

COMPUTED_COLUMNS = {
    "computed": "input",
    "serial, ms per image": "serial_ms:.3f",
    "divided, ms per image": "divided_ms:.3f",
    "4 cores, s": "seconds_4:.1f",
    "16 cores, s": "seconds_16:.1f",
    "times as fast on 16": "gain:.2f",
}


class Cost(NamedTuple):
    """What an image costs by Amdahl's law; both parts in seconds.

    Attributes:
      serial: Part that more processes do not shorten. It is an upper bound, as two processes share caches and memory.
      divided: Part that is divided by the number of processes.
    """

    serial: float
    divided: float

    @classmethod
    def from_seconds(cls, one: float, two: float, start: float, count: int) -> Cost:
        """Returns the cost of one of `count` images, from the seconds with one and with two processes and the start."""
        divided = 2 * (one - two) / count
        return cls((one - start) / count - divided, divided)

    def seconds(self, start: float, count: int, cores: int) -> float:
        """Returns the seconds of a whole conversion of so many images."""
        return start + count * (self.serial + self.divided / cores)


def computed(seconds: Mapping[str, Mapping[int, float]], start: float) -> list[dict[str, Any]]:
    """Returns a row for each of COMPUTED.

    Args:
      seconds: Of a conversion, by input and number of processes.
      start: Seconds of a conversion of a few images.
    """
    rows = []
    for name, (measured, count) in COMPUTED.items():
        cost = Cost.from_seconds(seconds[measured][1], seconds[measured][2], start, INPUTS[measured][1])
        few, many = (cost.seconds(start, count, cores) for cores in (4, 16))
        milliseconds = {"serial_ms": 1e3 * cost.serial, "divided_ms": 1e3 * cost.divided}
        rows.append({"input": name, **milliseconds, "seconds_4": few, "seconds_16": many, "gain": few / many})
    return rows


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
    result = check(run([*command, f"--num_processes={num_processes}"], PYTHONPATH=str(code)), command)
    return {"seconds": result.seconds, "cpu_seconds": result.cpu_seconds, "peak_mb": result.peak_mb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", type=Path, help="folder of another checkout (default: none)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "conversion_cores")
    flags = parser.parse_args()
    num_cores = len(os.sched_getaffinity(0))
    counts = sorted({1, 2, *(number for number in (4, 8, 16) if number < num_cores), num_cores})
    codes = {"here": Path(__file__).parents[2]} | ({"base": flags.base.resolve()} if flags.base else {})
    rows, current = [], dict[str, dict[int, float]]()
    for name, (size, count, shard_bytes) in INPUTS.items():
        images = flags.folder / f"{size[0]}x{size[1]}"
        make_corpus(images, count, size)
        ways = {
            f"{code}/{number}": functools.partial(converted, path, images, flags.folder / "out", shard_bytes, number)
            for code, path in codes.items()
            for number in counts
        }
        results = {way: medians(runs) for way, runs in in_turn(ways, flags.repeats).items()}
        for way, row in results.items():
            code, _, number = way.partition("/")
            if code == "here":
                current.setdefault(name, {})[int(number)] = row["seconds"]
            one = results[f"{code}/1"]
            ratios = {
                "wall_ratio": row["seconds"] / one["seconds"],
                "cpu_ratio": row["cpu_seconds"] / one["cpu_seconds"],
            }
            rows.append({"input": name, "code": code, "processes": int(number), **row, **ratios})
    keep("conversion_cores", Table(rows, COLUMNS))
    few = flags.folder / "few"
    make_corpus(few, _FEW, SMALL)
    convert_few = functools.partial(converted, codes["here"], few, flags.folder / "out", 10**9, 1)
    start = medians(in_turn({"few": convert_few}, flags.repeats)["few"])["seconds"]
    note = f"the start of a conversion, of {_FEW} photographs: {start:.2f} s"
    keep("conversion_cores_computed", Table(computed(current, start), COMPUTED_COLUMNS, [note]))


if __name__ == "__main__":
    main()
