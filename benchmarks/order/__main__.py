"""The order of training beside tf.data's own shuffle, grain and MosaicML streaming: how exact, how mixed, at what cost.

    make benchmark        or: python -m benchmarks.order [--part=exact|resume|waits|mixing|cost|summary] [--count=N]

All read the same serialized records, of 88 KB where time, bytes or memory are measured, and none decodes them. Each way
is a process of its own, and pages are warm. grain and MosaicML streaming are left out where their environments are
missing.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.measure import PEERS, PEERS_TORCH, Table
from benchmarks.order.data import PHOTOGRAPH_BYTES, TINY_BYTES, even_shards, make_records
from benchmarks.order.measures import read_manifest
from benchmarks.order.mixing import Numbers, mixing
from tpu_input.pipeline.order import Order

COUNT = 20_000
BATCH_SIZE = 64
SHARDS = 64
EXACT_SHARDS = ((3940, 10), (547, 548, 548, 1))
EXACT_EPOCHS = 4
HOSTS = (1, 2, 4, 8)
BORDERS = 2.25  # epochs, so that two borders lie between
MIXED_COUNT, MIXED_EPOCHS = 131_030, 4  # 2,047 batches an epoch, of which no size of blocks is a divisor
BLOCKS = (1, 3, 7, 17)


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of reading.

    Attributes:
      title: What tables call it.
      name: Of ours.py or peers.py.
      python: The peers' environment; None: ours.
      parts: In whose tables it is.
      keeps_place: Whether it goes on where it was with another number of hosts; otherwise it begins again.
    """

    title: str
    name: str
    python: Path | None = None
    parts: tuple[str, ...] = ("exact", "resume", "waits", "mixing", "cost")
    keeps_place: bool = True

    def run(self, measured: str, dataset: Path, **arguments: Any) -> dict[str, Any]:
        """Returns what benchmarks/order/measures.py finds, with the title of the row."""
        module = "benchmarks.order.peers" if self.python else "benchmarks.order.ours"
        python = self.python or sys.executable
        command = [python, "-W", "ignore", "-m", module, measured, self.name, dataset, json.dumps(arguments)]
        result = measure.check(measure.run(command), command).result
        version = f" ({result['version'].split()[-1]})" if "version" in result else ""
        return {"way": self.title + version} | result


_READ = ("resume", "waits", "cost")
WAYS = (
    Way("training order", "ours"),
    Way("training order, end known", "ours_ends", parts=("resume",)),
    Way("tf.data: repeat, shuffle(16,384)", "repeat_shuffle", keeps_place=False),
    Way("tf.data: shuffle(16,384), repeat", "shuffle_repeat", keeps_place=False),
    Way("tf.data, in the order on disk", "in_order", parts=("cost",)),
    Way("grain: ElasticIterator over ArrayRecord", "grain", PEERS),
    Way("grain: IndexSampler, DataLoader", "grain_sampler", PEERS, parts=("exact",), keeps_place=False),
    Way("grain: ElasticIterator over RecordSource", "grain_record_source", PEERS, parts=_READ),
    Way("MosaicML streaming, py1e", "mosaicml", PEERS_TORCH),
)
EXACT_COLUMNS = {
    "way": "way",
    "records of the shards": "shards",
    **{f"{hosts} host{'s' * (hosts > 1)}": f"hosts{hosts}" for hosts in HOSTS},
    "2, then 4 hosts: never seen": "never",
    "seen again": "again",
}
RESUME_COLUMNS = {
    "way": "way",
    "MB of ten batches": "used_mb:,.0f",
    "MB read": "read_mb:,.0f",
    "times": "times:.2f",
    "first batch after, seconds": "seconds:.2f",
}
WAITS_COLUMNS = {
    "way": "way",
    "median wait, ms": "median_ms:.1f",
    "longest wait, ms": "longest_ms:,.1f",
    "times": "times:,.0f",
    "MB before": "start_mb:,.0f",
    "peak MB": "peak_mb:,.0f",
}
SUMMARIZED = ("ours", "repeat_shuffle", "grain", "mosaicml")
SUMMARY_COLUMNS = {
    "way": "way",
    "rarest to commonest, 4 hosts": "hosts4",
    "2, then 4 hosts: never seen": "never",
    "read on resume, times what is used": "resumed:.2f",
    "first batch, s": "seconds:.2f",
    "longest wait, ms": "longest_ms:.0f",
    "sorted by class, 16 batches": "sorted16:.2f",
    "CPU ms per record": "cpu_ms:.2f",
    "peak MB": "peak_mb:,.0f",
}
MIXING_COLUMNS = {
    "order": "way",
    "examples met": "mates:.4f",
    "variance of meetings": "variance:.3f",
    "met again": "again:.2f",
    "converted: a batch": "converted1:.2f",
    "16 batches": "converted16:.2f",
    "sorted by class: a batch": "sorted1:.2f",
    "16 batches together": "sorted16:.2f",
}
COST_COLUMNS = {
    "way": "way",
    "batch size": "batch_size",
    "CPU ms per record": "cpu_ms:.3f",
    "records/s": "images/s:,.0f",
    "peak MB": "peak_mb:,.0f",
}


def ways_of(part: str) -> list[Way]:
    """Returns the ways of a part whose environments are there."""
    ways = [way for way in WAYS if part in way.parts]
    for way in ways:
        if way.python and not way.python.exists():
            print(f"left out: {way.title}, whose environment {way.python} is missing")
    return [way for way in ways if way.python is None or way.python.exists()]


def exact(folder: Path, count: int | None, repeats: int | None) -> Table:
    """How often the rarest and the commonest example come in four epochs' worth of steps, of 64 examples by all hosts.

    Then half an epoch with 2 hosts, and the other half with 4.
    """
    rows = []
    for shards in EXACT_SHARDS:
        dataset = make_records(folder, shards, TINY_BYTES)
        rows += [exact_row(way, dataset, shards) for way in ways_of("exact")]
    return Table(rows, EXACT_COLUMNS)


def exact_row(way: Way, dataset: Path, shards: Sequence[int]) -> dict[str, Any]:
    """Returns what a way sees of a dataset with each number of hosts, and with a number that changes."""
    num_examples = sum(shards)
    steps, epoch_steps = -(-EXACT_EPOCHS * num_examples // BATCH_SIZE), -(-num_examples // BATCH_SIZE)
    runs = {f"hosts{hosts}": [{"hosts": hosts, "first_hosts": hosts, "steps": steps}] for hosts in HOSTS}
    place = {"step": epoch_steps // 2} if way.keeps_place else {"seed": 1}
    first = {"hosts": 2, "first_hosts": 2, "steps": epoch_steps // 2}
    runs["changed"] = [first, {"hosts": 4, "first_hosts": 2, "steps": epoch_steps - epoch_steps // 2} | place]
    result, numbers = record_numbers(way, dataset, runs)
    row = {"way": result["way"], "shards": " + ".join(map(str, shards))}
    for name, num_idle in result["without"].items():
        counts = np.bincount(numbers[name], minlength=num_examples)
        no_step = f"no step: {num_idle} host{'s' * (num_idle > 1)} without a shard"
        if name == "changed":
            row |= {"never": no_step if num_idle else f"{(counts == 0).sum():,}"}
            row |= {"again": "" if num_idle else f"{(counts > 1).sum():,}"}
        else:
            row[name] = no_step if num_idle else f"{counts.min():,} to {counts.max():,}"
    return row


def record_numbers(
    way: Way, dataset: Path, runs: dict[str, list[dict[str, int]]]
) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """Returns (what measures.save_numbers() returns, numbers of the records in each run's order of steps).

    Raises:
      RuntimeError: Our own readers did not read what the arithmetic says.
    """
    with tempfile.TemporaryDirectory() as temporary:
        output = f"{temporary}/numbers.npz"
        result = way.run("seen", dataset, step_records=BATCH_SIZE, runs=runs, output=output)
        with np.load(output) as saved:
            numbers = dict(saved)
    if way.name == "ours":
        order = Order(read_manifest(dataset).split("train").num_examples, BATCH_SIZE)
        for run, run_numbers in numbers.items():
            if (run_numbers != order.batches(0, len(run_numbers) // BATCH_SIZE).reshape(-1)).any():
                raise RuntimeError(f"{dataset}, {run}: the records are not those of the order")
    return result, numbers


def photographs(folder: Path, count: int | None) -> tuple[Path, int]:
    """Returns (folder, number) of the records that have the size of photographs."""
    count = count or COUNT
    dataset = make_records(folder, even_shards(count, SHARDS), PHOTOGRAPH_BYTES)
    print(f"{count:,} records, {read_manifest(dataset).split('train').num_bytes / 1e6:,.0f} MB")
    return dataset, count


def resume(folder: Path, count: int | None, repeats: int | None) -> Table:
    """Ten batches of 64 from the middle of an epoch: bytes read, and the time to the first of them."""
    dataset, count = photographs(folder, count)
    arguments = {"batch_size": BATCH_SIZE, "step": count // 2 // BATCH_SIZE}
    return Table(medians("resume", dataset, arguments, repeats or 3), RESUME_COLUMNS)


def waits(folder: Path, count: int | None, repeats: int | None) -> Table:
    """The longest wait for a batch across two borders of epochs, and the memory."""
    dataset, count = photographs(folder, count)
    arguments = {"batch_size": BATCH_SIZE, "num_batches": int(BORDERS * count / BATCH_SIZE)}
    return Table(medians("waits", dataset, arguments, repeats or 1), WAITS_COLUMNS)


def cost(folder: Path, count: int | None, repeats: int | None) -> Table:
    """CPU time of a record, in batches of 64 and of 256."""
    dataset, count = photographs(folder, count)
    rows = []
    for batch_size in (BATCH_SIZE, 4 * BATCH_SIZE):
        arguments = {"batch_size": batch_size, "num_batches": max(1, count // batch_size)}
        rows += [{**row, "batch_size": batch_size} for row in medians("cost", dataset, arguments, repeats or 1)]
    return Table(rows, COST_COLUMNS)


def medians(part: str, dataset: Path, arguments: dict[str, Any], repeats: int) -> list[dict[str, Any]]:
    """Returns a row for each way of a part, all of them run in turn."""
    runs = {way.name: functools.partial(way.run, part, dataset, **arguments) for way in ways_of(part)}
    return [measure.medians(results) for results in measure.in_turn(runs, repeats).values()]


def mixed(folder: Path, count: int | None, repeats: int | None) -> Table:
    """How examples meet in batches of 64, and how evenly classes come, relative to a true permutation.

    Ours with several sizes of blocks, by arithmetic; the others as they read tiny records.
    """
    count = count or MIXED_COUNT
    steps, rows = MIXED_EPOCHS * count // BATCH_SIZE, []

    def add(title: str, numbers: Numbers) -> None:
        rows.append({"way": title, **mixing(numbers.reshape(steps, BATCH_SIZE), count, MIXED_EPOCHS)})

    random = np.random.default_rng(0)
    permutations = np.concatenate([random.permutation(count) for _ in range(MIXED_EPOCHS)])
    add("a true permutation, drawn once per epoch", permutations[: steps * BATCH_SIZE])
    for size in BLOCKS:
        add(f"training order, blocks of {size}", Order(count, BATCH_SIZE, most=size).batches(0, steps))
    dataset = make_records(folder, even_shards(count, SHARDS), TINY_BYTES)
    for way in ways_of("mixing"):
        if way.name != "ours":
            result, numbers = record_numbers(way, dataset, {"of": [{"hosts": 1, "steps": steps}]})
            add(result["way"], numbers["of"])
    return Table(rows, MIXING_COLUMNS)


def summary(folder: Path, count: int | None, repeats: int | None) -> Table:
    """The most telling columns of the other parts, as they were last measured, of the ways that were in all of them."""
    rows = []
    for way in (way for way in WAYS if way.name in SUMMARIZED):
        part_rows = []
        for part in way.parts:
            result = json.loads((measure.RESULTS / f"order_{part}.json").read_text())
            title = f"{way.title}, blocks of {BLOCKS[-1]}" if way.name == "ours" and part == "mixing" else way.title
            part_rows += [entry for entry in result["rows"] if entry["way"].startswith(title)][:1]
        if len(part_rows) == len(way.parts):  # else its environment is missing
            row: dict[str, Any] = dict(collections.ChainMap(*part_rows))
            rows.append(row | {"resumed": row["read_mb"] / row["used_mb"]})
    return Table(rows, SUMMARY_COLUMNS)


PARTS: dict[str, Callable[[Path, int | None, int | None], Table]] = {
    "exact": exact,
    "resume": resume,
    "waits": waits,
    "mixing": mixed,
    "cost": cost,
    "summary": summary,
}

if __name__ == "__main__":
    measure.run_parts("order", __doc__, PARTS)
