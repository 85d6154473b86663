"""How a conversion grows: formulas, checked against runs, evaluated for sizes that we cannot run.

    python -m benchmarks.scale --folder=/tmp/scale [--counts=2000,20000,200000]

Runs on small images of the benchmarks' corpus, counts what passes the shuffle and every call to storage, and prints
markdown tables: formula beside run, then the formulas at a million images and above. Then a manifest of 100,000 shards
is made up, written and read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.corpus import make_corpus

SMALL = (48, 36)
SMALL_SHARD = 1_000_000
BUCKETS = 1 << 12  # beam_pipelines.plan
SPLITS = 2


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one of something costs, in bytes, with keys of 19 characters as in "class3/0012343.jpg".

    Fitted at 20,000 images; the runs of a tenth and of ten times as many check them.
    """

    shuffled_row: float = 51  # marshalled fields, and the key that it is grouped by
    row_file: float = 111  # its line of JSON in the working folder
    held_row: float = 760  # a row that the local runner keeps: itself, its encodings in three stages
    grouped_row: float = 420  # a row of a bucket in the memory of the worker that cuts it
    plan_bucket: float = 18  # "1234": 1234567, for a bucket of a split
    receipt: float = 640
    manifest_shard: float = 190
    index_row: float = 175
    index_shard: float = 5_500  # a Parquet file without its rows
    beam: float = 150e6  # a process that has imported Beam and run a pipeline


@dataclasses.dataclass(frozen=True)
class Scale:
    """What a conversion of a folder takes."""

    shards: int
    shuffled_rows: int
    shuffled_bytes: float
    largest_bucket_rows: float
    planning_memory: float
    working_bytes: float
    manifest_bytes: float
    index_bytes: float
    reads: int
    writes: int
    stats: int


def formula(images: int, record_bytes: float, shard_bytes: float, unit: Unit = Unit()) -> Scale:
    """Returns the prediction for so many images whose records have so many bytes on average."""
    shards = sum(math.ceil(images * share * record_bytes / shard_bytes) for share in (0.9, 0.1))
    buckets = sum(BUCKETS * -math.expm1(-images * share / BUCKETS) for share in (0.9, 0.1))  # those that hold a row
    plan = unit.plan_bucket * buckets
    return Scale(
        shards=shards,
        shuffled_rows=2 * images,  # by bucket, by shard
        shuffled_bytes=2 * images * unit.shuffled_row,
        largest_bucket_rows=images / BUCKETS + 4 * math.sqrt(images / BUCKETS),  # of 4,096 Poisson draws
        planning_memory=unit.beam + images * unit.held_row,
        working_bytes=images * unit.row_file + shards * unit.receipt + plan,
        manifest_bytes=shards * unit.manifest_shard,
        index_bytes=images * unit.index_row + shards * unit.index_shard,
        reads=images + 3 * shards,  # an image; a shard's rows, once more to count them, and its receipt
        writes=4 * shards,  # rows, shard, index, receipt
        stats=2 * shards,  # is it written; is the conversion under way
    )


# The children below print one line of JSON each. Every figure is of one process.
SHUFFLE = """
import json, marshal, sys
import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from beam_pipelines import running
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.planning import build_planning
from collections import Counter
group = beam.GroupByKey
def count(keyed):
    key, row = keyed
    beam.metrics.Metrics.counter("scale", "rows").inc()
    beam.metrics.Metrics.counter("scale", "bytes").inc(len(beam.coders.registry.get_coder(type(key)).encode(key)))
    beam.metrics.Metrics.counter("scale", "bytes").inc(len(beam.coders.registry.get_coder(type(row)).encode(row)))
    return keyed
class Counted(beam.PTransform):
    def expand(self, rows):
        return rows | beam.Map(count).with_output_types(rows.element_type) | group()
beam.GroupByKey = Counted
options = ConvertOptions((Source(sys.argv[1]),), sys.argv[2], shard_bytes=int(sys.argv[3]))
with running.pipeline(PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
    build_planning(pipeline, options, f"{options.output}/plan.json")
counters = pipeline.result.metrics().query()["counters"]
counted = {counter.key.metric.name: counter.committed for counter in counters}
plan = json.load(open(f"{options.output}/plan.json"))
print(json.dumps([counted["rows"], counted["bytes"]]))
"""
WHOLE = """
import json, resource, sys
from collections import Counter
from pathlib import Path
from apache_beam.options.pipeline_options import PipelineOptions
from beam_pipelines import convert as convert_module, planning, plan as plan_module, storage
from beam_pipelines.options import ConvertOptions, Source
calls, seen = Counter(), {}
def counted(name, kind):
    function = getattr(storage, name)
    def call(*args, **kwargs):
        calls[kind] += 1
        return function(*args, **kwargs)
    setattr(storage, name, call)
listed = storage.list_files
def list_files(root):
    for path in listed(root):
        calls["stats"] -= 1  # of a local file; a bucket's listing tells sizes
        yield path
storage.list_files = list_files
for name, kind in [("open_file", "reads"), ("create", "writes"), ("exists", "stats"), ("file_bytes", "stats")]:
    counted(name, kind)
make_plan, commit = convert_module.make_plan, convert_module.commit
def made(*args):
    plan = make_plan(*args)
    seen["planning_memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return plan
def committed(options, *args):
    paths = Path(options.output, ".jpeg2tpu").rglob("*")
    seen["working_bytes"] = sum(path.stat().st_size for path in paths if path.is_file())
    return commit(options, *args)
convert_module.make_plan, convert_module.commit = made, committed
options = ConvertOptions((Source(sys.argv[1]),), sys.argv[2], shard_bytes=int(sys.argv[3]))
manifest, _ = convert_module.convert(options, PipelineOptions(["--runner=FnApiRunner"]))
output = Path(options.output)
shards = [shard for split in manifest.splits.values() for shard in split.shards]
keys = [str(path.relative_to(sys.argv[1])) for path in Path(sys.argv[1]).rglob("*.jpg")]
buckets = Counter(plan_module.position(0, key) >> (64 - plan_module._BUCKET_BITS) for key in keys)
print(json.dumps(seen | dict(calls) | {
    "shards": len(shards),
    "record_bytes": sum(shard.num_bytes for shard in shards) / len(keys),
    "largest_bucket_rows": max(buckets.values()),
    "manifest_bytes": (output / "manifest.json").stat().st_size,
    "index_bytes": sum(path.stat().st_size for path in (output / "index").iterdir()),
}))
"""
MANIFEST = """
import json, resource, sys, time
from pathlib import Path
from tpu_input.schema import Manifest, Shard, Split, shard_name
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
path, count = Path(sys.argv[1]), int(sys.argv[2])
if not path.exists():
    shards = tuple(Shard(shard_name("train", i, count), 1000, 99_000_000 + i, f"{i:064x}") for i in range(count))
    split = Split(shards, (count,) * 1000, (1, 2.0, 3), (1, 2.0, 3), (1.0, 2.0, 3.0), (1.0, 2.0, 3.0))
    classes = tuple(f"class {i}" for i in range(1000))
    manifest = Manifest("", classes, 0, {"train": split}, 1000 * count, {}, {}, "f" * 64)
    path.write_text(manifest.to_json())
    sys.exit()
before, start = peak(), time.monotonic()
manifest = Manifest.from_json(path.read_text(), str(path.parent))
print(json.dumps([path.stat().st_size, time.monotonic() - start, peak() - before]))
"""


def child(code: str, *args: object) -> list | dict:
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else []


def check(folder: Path, count: int) -> None:
    """Prints what the formulas say beside a run."""
    make_corpus(folder / f"small{count}", count, size=SMALL)
    rows, num_bytes = run(SHUFFLE, folder, count)
    measured = run(WHOLE, folder, count) | {"shuffled_rows": rows, "shuffled_bytes": num_bytes}
    predicted = dataclasses.asdict(formula(count, measured["record_bytes"], SMALL_SHARD))
    print(f"\n| {count:,} images of 48 × 36 | formula | run | run / formula |\n|---|---|---|---|")
    for name, value in predicted.items():
        print(f"| {name} | {value:,.0f} | {measured[name]:,.0f} | {measured[name] / value:.2f} |", flush=True)


def run(code: str, folder: Path, count: int) -> list | dict:
    output = folder / "scale_output"
    shutil.rmtree(output, ignore_errors=True)
    return child(code, folder / f"small{count}", output, SMALL_SHARD)


def predict(sizes: list[tuple[int, float, float]]) -> None:
    """Prints the formulas for (images, bytes a record, bytes a shard)."""
    unit = Unit()
    print("\n| | " + " | ".join(f"{images:,} images" for images, _, _ in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    scales = [formula(*each) for each in sizes]
    lines = {
        "shards of": [f"{shard:,.0f}" for _, _, shard in sizes],
        "bytes of them": [f"{images * record:.3g}" for images, record, _ in sizes],
        **{name: [f"{getattr(each, name):,.3g}" for each in scales] for name in dataclasses.asdict(scales[0])},
        "memory to cut the largest bucket": [f"{each.largest_bucket_rows * unit.grouped_row:,.3g}" for each in scales],
        "hours of reads at 5,000 a second": [f"{each.reads / 5000 / 3600:,.3g}" for each in scales],
        "hours of writes at 1,000 a second": [f"{each.writes / 1000 / 3600:,.3g}" for each in scales],
        "hours of listing at 5,000 a second": [f"{images / 5000 / 3600:,.3g}" for images, _, _ in sizes],
        "vCPU hours of writing, 923 images a second": [f"{images / 923 / 3600:,.3g}" for images, _, _ in sizes],
    }
    for name, values in lines.items():
        print(f"| {name} | " + " | ".join(values) + " |")


def manifest_of(folder: Path, count: int) -> None:
    path = folder / f"manifest{count}.json"
    child(MANIFEST, path, count)
    size, seconds, memory = child(MANIFEST, path, count)
    print(
        f"\nA manifest of {count:,} shards has {size / 1e6:.1f} MB and is read in {seconds:.2f} s and {memory:.0f} MB."
    )
    path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/jpeg2tpu_scale"))
    parser.add_argument("--counts", default="2000,20000,200000")
    flags = parser.parse_args()
    for count in map(int, filter(None, flags.counts.split(","))):
        check(flags.folder, count)
    predict([(1_300_000, 110_000, 1e8), (100_000_000, 110_000, 1e8), (10_000_000_000, 110_000, 2e10)])
    manifest_of(flags.folder, 100_000)


if __name__ == "__main__":
    main()
