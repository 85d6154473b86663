"""What the process that owns the shards takes for each image while worker processes make the records.

    python -m benchmarks.conversion.shard_owner [--base=CHECKOUT] [--repeats=5]

CPU time of the command alone in its second conversion, from the first shard to the last, with two workers: photographs
of 88 KB and images of 48 x 36 pixels. The floor is what SHA-256, write(2) into new files and fsync(2) take for the same
bytes in the same process, which no owner can do without. With --base, a checkout of an earlier commit takes turns with
this one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.conversion.planning import ROOT, child
from benchmarks.corpus import SMALL, make_corpus

_PHOTOGRAPHS, _SMALL_IMAGES = 1000, 20_000

_PROGRAM = """
import hashlib, importlib, json, os, resource, sys, tempfile
from pathlib import Path
convert = importlib.import_module("beam_pipelines.convert")
from beam_pipelines.options import ConvertOptions, Source
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
try:
    owners = importlib.import_module("beam_pipelines.conversion.shard_owners")
except ImportError:  # an earlier commit
    owners = convert
write_shards, seconds = owners.write_shards, []
def timed(*arguments):
    begin = cpu()
    write_shards(*arguments)
    seconds.append(cpu() - begin)
owners.write_shards = timed
with tempfile.TemporaryDirectory() as output:
    for name in ("imports", "dataset"):  # what the first one takes more is no image's
        options = ConvertOptions((Source(sys.argv[1]),), f"{output}/{name}")
        manifest = convert.convert(options, num_processes=2).manifest
    shards = [path.read_bytes() for path in Path(output, "dataset").glob("*.tfrecord")]
    begin = cpu()
    for number, shard in enumerate(shards):
        with open(f"{output}/{number}", "wb", buffering=0) as file:
            for start in range(0, len(shard), 4 << 20):
                part = memoryview(shard)[start : start + (4 << 20)]
                file.write(part)
                hashlib.sha256(part)
            os.fsync(file.fileno())
    floor = cpu() - begin
print(json.dumps([1e6 * seconds[1] / manifest.num_inputs, 1e6 * floor / manifest.num_inputs]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "jpeg2tpu_shard_owner")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--base", type=Path, help="checkout of an earlier commit")
    flags = parser.parse_args()
    print("| images | code | CPU µs per image | of these the floor |\n|---|---|---|---|")
    for name, count, size in (("88 KB", _PHOTOGRAPHS, SMALL), ("48 x 36", _SMALL_IMAGES, (48, 36))):
        make_corpus(folder := flags.folder / f"{size[0]}", count, size)
        runs: dict[str, list[list[float]]] = {}
        for _ in range(flags.repeats):
            for code, checkout in {"base": flags.base, "this": ROOT}.items():
                if checkout:
                    runs.setdefault(code, []).append(child(checkout, _PROGRAM, folder))
        for code, results in runs.items():
            cpu_us, floor = (statistics.median(run[column] for run in results) for column in range(2))
            print(f"| {name} | {code} | {cpu_us:.0f} | {floor:.0f} |", flush=True)


if __name__ == "__main__":
    main()
