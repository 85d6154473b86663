"""What __main__.py runs in processes of their own, each of which prints what it counted as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

# What passes the shuffle while a conversion is planned: elements, and bytes as Beam encodes them.
SHUFFLE = """
import json, marshal, sys
import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from beam_pipelines.runners import execution
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.conversion.planning.beam_steps import build_planning
from collections import Counter
group = beam.GroupByKey
def count(keyed):
    key, row = keyed
    beam.metrics.Metrics.counter("scale", "elements").inc()
    beam.metrics.Metrics.counter("scale", "bytes").inc(len(beam.coders.registry.get_coder(type(key)).encode(key)))
    beam.metrics.Metrics.counter("scale", "bytes").inc(len(beam.coders.registry.get_coder(type(row)).encode(row)))
    return keyed
class Counted(beam.PTransform):
    def expand(self, rows):
        return rows | beam.Map(count).with_output_types(rows.element_type) | group()
beam.GroupByKey = Counted
options = ConvertOptions((Source(sys.argv[1]),), sys.argv[2], shard_bytes=int(sys.argv[3]))
with execution.pipeline(PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
    build_planning(pipeline, options, f"{options.output}/plan.json")
counted = Counter()
for counter in pipeline.result.metrics().query()["counters"]:
    counted[counter.key.metric.name] += counter.committed
print(json.dumps([counted["elements"], counted["bytes"]]))
"""
# A whole conversion in one process: calls to storage, memory, and what stands in the working folder at the end.
CONVERSION = """
import importlib, json, re, sys
from collections import Counter
from pathlib import Path
from beam_pipelines import storage
convert_module = importlib.import_module("beam_pipelines.convert")
from beam_pipelines.conversion import plan as plan_module
from beam_pipelines.conversion.plan import range_bits
from beam_pipelines.options import ConvertOptions, Source
calls, seen = Counter(), {}
def peak():  # of this process alone; what getrusage tells begins with its parent's
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
def counted(name, kind):
    function = getattr(storage, name)
    def call(*args, **kwargs):
        calls[kind] += 1
        return function(*args, **kwargs)
    setattr(storage, name, call)
for name, kind in [("read_bytes", "reads"), ("open_file", "reads"), ("create", "writes")]:
    counted(name, kind)
for name in ("exists", "look"):
    counted(name, "stats")
make_plan, commit = convert_module.make_plan, convert_module.commit
def made(*args):
    plan = make_plan(*args)
    seen["planning_memory"] = peak()
    return plan
def committed(options, *args):
    paths = Path(options.output, ".jpeg2tpu").rglob("*")
    of_dataset = re.compile(r"\\.(data|index)-")  # shards and indexes before they are moved
    seen["working_bytes"] = sum(p.stat().st_size for p in paths if p.is_file() and not of_dataset.search(p.name))
    return commit(options, *args)
convert_module.make_plan, convert_module.commit = made, committed
options = ConvertOptions((Source(sys.argv[1]),), sys.argv[2], shard_bytes=int(sys.argv[3]))
manifest = convert_module.convert(options).manifest
output = Path(options.output)
shards = [shard for split in manifest.splits.values() for shard in split.shards]
keys = [str(path.relative_to(sys.argv[1])) for path in Path(sys.argv[1]).rglob("*.jpg")]
ranges = Counter(plan_module.hash_position(0, key) >> (64 - range_bits(len(keys))) for key in keys)
print(json.dumps(seen | dict(calls) | {
    "shards": len(shards),
    "record_bytes": sum(shard.num_bytes for shard in shards) / len(keys),
    "largest_range_rows": max(ranges.values()),
    "manifest_bytes": (output / "manifest.json").stat().st_size,
}))
"""
# The corpus repeats its images, which Parquet would notice; the rows of this index differ.
INDEX = """
import hashlib, io, json, sys
from tpu_input.dataset_format.index import IndexRow, write_index
count, shards = int(sys.argv[1]), int(sys.argv[2])
total = 0
for shard in range(shards):
    rows = []
    for i in range(shard, count, shards):
        key, digest = f"class{i % 10}/{i:07d}.jpg", hashlib.sha256(str(i).encode())
        dhash = int.from_bytes(digest.digest()[:8], "big", signed=True)
        where = 90_000 * i, 88_000 + i % 999
        rows.append(IndexRow(key, f"/data/{key}", i % 10, *where, 375, 500, digest.hexdigest(), dhash))
    file = io.BytesIO()
    write_index(file, rows)
    total += len(file.getvalue())
print(total)
"""
# The peak of cutting a range of so many rows into shards, in bytes per row: encoded, and decoded with their sort keys.
CUT = """
import json, sys, tracemalloc
from beam_pipelines.conversion.plan import BUCKET_BITS, by_range, cut, place_rows
from beam_pipelines.conversion.planning.plan_survey import PlanSurvey
from beam_pipelines.conversion.planning.row_batches import in_parts
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import Row
count = int(sys.argv[1])
def row(i):
    label, num_bytes = f"class{i % 10}", 88_000 + i % 999
    key = f"{label}/{i:07d}.jpg"
    return Row(key, f"/data/of/40/letters/{key}", label, num_bytes=num_bytes, record_bytes=num_bytes + 2000)
options = ConvertOptions((Source("/data"),), "/output")
placed = place_rows(Batch.from_rows([row(i) for i in range(count)]), options)
placed = placed.replace(position=placed.columns["position"] >> BUCKET_BITS)  # different ones of the first bucket
survey = PlanSurvey(options)
plan = survey.extract_output(survey.add_input(survey.create_accumulator(), placed))
packed = in_parts([by_range(placed, BUCKET_BITS)])
del placed
tracemalloc.start()
for _ in cut(0, BUCKET_BITS, packed[0], plan, options):
    pass
print(json.dumps(tracemalloc.get_traced_memory()[1] / count))
"""
# A manifest of so many shards, made up, and the next time read.
MANIFEST = """
import json, re, sys, time
from pathlib import Path
from tpu_input.dataset_format.records import Manifest, Shard, Split, shard_name
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1000
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


def child(code: str, *args: object) -> Any:
    as_the_command = "from beam_pipelines.runners import heap_limits; heap_limits.apply()\n"
    command = [sys.executable, "-W", "ignore", "-c", as_the_command + code, *map(str, args)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr)
    return json.loads(process.stdout.splitlines()[-1]) if process.stdout else []
