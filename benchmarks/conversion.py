"""What conversion costs: CPU, time and memory beside a plain loop, with growth and with slow storage.

    python -m benchmarks.conversion --folder=/tmp/conversion [--part=speed|memory|latency]

Each row is a process of its own, run in turn and repeated; the table has medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.corpus import make_corpus

# Reads, decodes whole, encodes an Example, frames it with checksums and writes: what any converter that checks its
# images has to do, one image after the other.
PLAIN = """
import io, sys
from pathlib import Path
from PIL import Image
from tpu_input.schema import Record, encode, frame
folder, output = Path(sys.argv[1]), Path(sys.argv[2])
output.mkdir(parents=True)
with open(output / "plain.tfrecord", "wb") as shard:
    for path in sorted(folder.rglob("*.jpg")):
        data = path.read_bytes()
        image = Image.open(io.BytesIO(data))
        image.load()
        shard.write(frame(encode(Record(str(path), data, image.height, image.width, 3, 0, path.parent.name, "0" * 64))))
"""
OURS = """
import sys
from beam_pipelines.__main__ import main
sys.exit(main(["convert", f"--input={sys.argv[1]}", f"--output={sys.argv[2]}", *sys.argv[3:]]))
"""
PROCESSES = """
import sys
from apache_beam.options.pipeline_options import PipelineOptions
from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions, Source
flags = ["--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
convert(ConvertOptions((Source(sys.argv[1]),), sys.argv[2]), PipelineOptions(flags))
"""
SLOW = """
import sys, time
from beam_pipelines import local_files, storage
opened = local_files.open_file
def slow(path):
    time.sleep(0.05)
    return opened(path)
local_files.open_file = slow
if sys.argv[3] == "one":
    from pathlib import Path
    from beam_pipelines.images import check_image
    from beam_pipelines.options import ImageOptions
    for path in Path(sys.argv[1]).rglob("*.jpg"):
        check_image(storage.read_bytes(str(path)), ImageOptions())
else:
    from beam_pipelines.__main__ import main
    sys.exit(main(["convert", f"--input={sys.argv[1]}", f"--output={sys.argv[2]}"]))
"""
# Runs code in a child and prints what it took, read from the kernel.
MEASURE = """
import json, resource, subprocess, sys, time
start = time.monotonic()
code = subprocess.call([sys.executable, "-W", "ignore", "-c", *sys.argv[1:]], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, time.monotonic() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""


def measure(code: str, *args: str, cores: int) -> tuple[float, float, float]:
    """Returns (seconds, CPU seconds, peak MB) of `code` on so many cores."""
    affinity = ["taskset", "--cpu-list", f"0-{cores - 1}"]
    command = [*affinity, sys.executable, "-c", MEASURE, code, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    exit_code, *figures = json.loads(done.stdout.splitlines()[-1])
    if exit_code:
        raise RuntimeError(done.stderr)
    return tuple(figures)


def rows(ways: dict[str, tuple], corpus: Path, count: int, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Prints a table of the ways, run in turn; returns the medians."""
    taken: dict[str, list] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, (code, cores, *args) in ways.items():
            output = corpus.parent / "output"
            shutil.rmtree(output, ignore_errors=True)
            taken[name].append(measure(code, str(corpus), str(output), *args, cores=cores))
    medians = {name: tuple(map(statistics.median, zip(*runs, strict=True))) for name, runs in taken.items()}
    first = next(iter(medians.values()))
    print("| way | images/s | CPU s | ratio of CPU | ratio of time | peak MB |\n|---|---|---|---|---|---|")
    for name, (seconds, cpu, peak) in medians.items():
        ratios = f"{cpu / first[1]:.2f} | {seconds / first[0]:.2f}"
        print(f"| {name} | {count / seconds:,.0f} | {cpu:.1f} | {ratios} | {peak:.0f} |")
    print(flush=True)
    return medians


def speed(folder: Path) -> None:
    count = 50_000
    size = make_corpus(folder / f"photographs{count}", count)
    print(f"{count:,} JPEGs, {size / 1e6:.0f} MB, {size / count / 1e3:.0f} KB each")
    ways = {
        "plain loop, no Beam, 1 core": (PLAIN, 1),
        "beam_pipelines convert, 1 core": (OURS, 1),
        "beam_pipelines convert, 2 cores": (OURS, 2),
        "the same in two of Beam's worker processes": (PROCESSES, 2),
    }
    rows(ways, folder / f"photographs{count}", count, repeats=1)


def memory(folder: Path) -> None:
    for count in (2_000, 20_000, 200_000):
        make_corpus(folder / f"small{count}", count, size=(48, 36))
        rows({f"convert {count:,} small images, 2 cores": (OURS, 2)}, folder / f"small{count}", count, repeats=1)


def latency(folder: Path) -> None:
    for count, way in ((500, "one"), (10_000, "convert")):
        make_corpus(folder / f"photographs{count}", count)
        name = {"one": "one at a time", "convert": "convert, 1 core"}[way]
        rows({f"50 ms to open a file, {name}": (SLOW, 1, way)}, folder / f"photographs{count}", count, repeats=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/jpeg2tpu_benchmark"))
    parser.add_argument("--part", choices=["speed", "memory", "latency"], action="append")
    flags = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    for part in flags.part or ["speed", "memory", "latency"]:
        {"speed": speed, "memory": memory, "latency": latency}[part](flags.folder)


if __name__ == "__main__":
    main()
