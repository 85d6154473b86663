"""What planning costs for each image: CPU time, memory, and that of a whole conversion of 20 images.

    python -m benchmarks.conversion.planning --folder=/tmp/planning [--counts=20000,100000] [--repeats=3]
        [--base=CHECKOUT]

Class folders of small files, planned in a process of its own, without Beam and by Beam's local runner. With --base, a
checkout of an earlier commit takes turns with this one, as CPU time depends on what else the machine does. Rows of a
million images are made up, as if they had just been listed.
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
from typing import Any

ROOT = Path(__file__).parents[2]
_DISTINCT = 50  # files; the others are links to them
_FEW = 20  # images of the whole conversion
_MODULE = "beam_pipelines"  # which commits before `jpeg2tpu convert` have too

# Plans a folder, or as many rows as its name says; prints CPU seconds, those of the imports, and the peak of memory.
_PLAN = """
import importlib, json, re, resource, sys, tempfile
from pathlib import Path
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
begin = cpu()
from beam_pipelines.options import ConvertOptions, Source
folder, way = sys.argv[1:]
try:
    module = importlib.import_module("beam_pipelines.conversion.planning.make_plan")
except ImportError:  # of an earlier commit
    module = importlib.import_module("beam_pipelines.conversion.planning")
beam_options = ()
if way == "beam":
    from apache_beam.options.pipeline_options import PipelineOptions
    beam_options = (PipelineOptions(["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"]),)
if folder.isdecimal():
    from beam_pipelines.sources.row_columns import batches_of
    from beam_pipelines.sources.rows import Row
    folder, count = "/data", int(folder)
    module.list_below = lambda *_: batches_of(
        Row(f"class{i // 1000:04}/{i:09}.jpg", num_bytes=88_000 + i % 999) for i in range(count)
    )
    module.measure = lambda *_: 1.0  # as there are no files
with tempfile.TemporaryDirectory() as output:
    imported = cpu()
    plan = module.make_plan(ConvertOptions((Source(folder),), f"{output}/dataset"), *beam_options)
    planned = cpu()
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps([planned - imported, imported - begin, peak, plan.fingerprint]))
"""
# A whole conversion as the command does it.
_CONVERT = """
import json, os, sys, tempfile
with tempfile.TemporaryDirectory() as output:
    argv = ["-m", sys.argv[2], "convert", f"--input={sys.argv[1]}", f"--output={output}/dataset", "--quiet"]
    pid = os.posix_spawn(sys.executable, [sys.executable, "-W", "ignore", *argv], os.environ)
    _, status, used = os.wait4(pid, 0)
    assert status == 0
    print(json.dumps(used.ru_utime + used.ru_stime))
"""


def make_files(folder: Path, count: int, data: list[bytes]) -> Path:
    """Writes so many files in a hundred class folders, if they are not there; returns the folder."""
    for number in range(count):
        path = folder / f"class{number % 100:03}" / f"{number:07}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            continue
        if number < len(data):
            path.write_bytes(data[number])
        else:
            first = number % len(data)
            os.link(folder / f"class{first % 100:03}" / f"{first:07}.jpg", path)
    return folder


def child(checkout: Path, code: str, *args: object) -> Any:
    """Returns what a program prints that runs in a checkout."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, args)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    process = subprocess.run(command, capture_output=True, text=True, cwd=checkout, env=environment)
    if process.returncode:
        raise RuntimeError(process.stderr)
    return json.loads(process.stdout.splitlines()[-1])


def measure(ways: dict[str, tuple[Path, str]], folder: object, count: int, repeats: int) -> None:
    """Prints a line of the table for each way, as {name: (checkout, way of _PLAN)}, which take turns."""
    runs: dict[str, list[Any]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, (checkout, way) in ways.items():
            runs[name].append(child(checkout, _PLAN, folder, way))
    fingerprints = {run[3] for results in runs.values() for run in results}
    if len(fingerprints) != 1:
        raise RuntimeError(f"the plans differ: {fingerprints}")
    for name, results in runs.items():
        seconds, imports, peak = (statistics.median(run[column] for run in results) for column in range(3))
        cells = f"{seconds / count * 1e6:.1f} | {seconds:.2f} | {imports:.2f} | {peak / 1e6:.0f} MB"
        print(f"| {count:,} | {name} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/jpeg2tpu_planning"))
    parser.add_argument("--counts", default="20000,100000")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows that are made up; 0 for none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--base", type=Path, help="checkout of an earlier commit")
    flags = parser.parse_args()
    current = {"without Beam": (ROOT, "here"), "by Beam's local runner": (ROOT, "beam")}
    base = {"base, by Beam's local runner": (flags.base, "beam")} if flags.base else {}
    print("\n| images | planned | CPU µs per image | CPU s | CPU s of imports | peak |\n|---|---|---|---|---|---|")
    data = [os.urandom(300 + 17 * number) for number in range(_DISTINCT)]
    for count in map(int, filter(None, flags.counts.split(","))):
        measure({**base, **current}, make_files(flags.folder / str(count), count, data), count, flags.repeats)
    if flags.rows:
        measure({"without Beam, rows made up": (ROOT, "here")}, flags.rows, flags.rows, 1)
    from benchmarks.corpus import make_corpus

    photographs = flags.folder / "few"
    shutil.rmtree(photographs, ignore_errors=True)
    make_corpus(photographs, _FEW)
    print(f"\n| convert of {_FEW} photographs | CPU s |\n|---|---|")
    runs: dict[str, list[float]] = {}
    for _ in range(flags.repeats):
        for name, checkout in {"base": flags.base, "this": ROOT}.items():
            if checkout:
                runs.setdefault(name, []).append(child(checkout, _CONVERT, photographs, _MODULE))
    for name, seconds in runs.items():
        print(f"| {name} | {statistics.median(seconds):.2f} |")


if __name__ == "__main__":
    main()
