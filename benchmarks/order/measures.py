"""What is measured of one way of reading records in a random order, in whatever environment it runs.

ours.py and peers.py have the ways, and call main(); __main__.py starts them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.own_cost import cost_of, peak_mb
from tpu_input.dataset_format.manifest import MANIFEST_NAME, Manifest
from tpu_input.dataset_format.records import Record

RESUMED_BATCHES = 10
UNCOUNTED_BATCHES = 10  # of waits: threads start, buffers fill
_KEY = re.compile(rb"key([0-9]{9})")  # of a serialized record, behind its image
_READ_AHEAD_SECONDS = 1.0  # for threads that still read ahead when the last batch has come


@dataclasses.dataclass(frozen=True)
class Ask:
    """Batches that one host is to read.

    Attributes:
      dataset: Folder that make_records() of data.py returned.
      batch_size: Examples in a batch of this host.
      host: Number of this host, from 0.
      hosts: Number of hosts; each has the same batch_size.
      step: Step to begin with.
      seed: Seed of the order.
      first_hosts: Number of hosts with which the run began.
      num_steps: Steps that are read, if that is said in advance; None is endless.
    """

    dataset: Path
    batch_size: int
    host: int = 0
    hosts: int = 1
    step: int = 0
    seed: int = 0
    first_hosts: int = 1
    num_steps: int | None = None

    @property
    def step_records(self) -> int:
        """Number of records that all hosts together take in a step."""
        return self.batch_size * self.hosts


# A way returns full batches without end. A record is serialized, a Record, or the number of one that was not read.
Way = Callable[[Ask], Iterator[Sequence[Any]]]


def save_numbers(
    way: Way, dataset: Path, step_records: int, runs: Mapping[str, Sequence[Mapping[str, int]]], output: str
) -> dict[str, Any]:
    """Saves the numbers of the records that all hosts of each run see, step after step, as int64 of an .npz.

    Args:
      way: Way of reading.
      dataset: Folder of the records.
      step_records: Number of records that all hosts together take in a step.
      runs: By name, the phases of a run, with fields of Ask and "steps"; it goes on with another number of hosts.
      output: Path to save to: [steps * step_records] numbers by the name of the run.

    Returns:
      {"without": {run: number of hosts that got no batch}}; of a run with such hosts no numbers are saved.
    """
    saved, num_idle = {}, {}
    for name, phases in runs.items():
        parts = [_phase(way, dataset, step_records, phase) for phase in phases]
        num_idle[name] = max(hosts for _, hosts in parts)
        saved[name] = np.concatenate([numbers for numbers, _ in parts]) if not num_idle[name] else np.empty(0, np.int64)
    np.savez(output, **saved)
    return {"without": num_idle}


def _phase(way: Way, dataset: Path, step_records: int, phase: Mapping[str, int]) -> tuple[npt.NDArray[np.int64], int]:
    """Returns (numbers of the records of all hosts, number of hosts that got no batch)."""
    fields = {name: value for name, value in phase.items() if name != "steps"}
    host_numbers = []
    for host in range(phase["hosts"]):
        batches = way(Ask(dataset, step_records // phase["hosts"], host, **fields))
        host_numbers.append(
            [[number_of(record) for record in batch] for batch in itertools.islice(batches, phase["steps"])]
        )
    num_idle = sum(not numbers for numbers in host_numbers)
    if num_idle:
        return np.empty(0, np.int64), num_idle
    return np.concatenate([np.array(numbers, np.int64) for numbers in host_numbers], axis=1).reshape(-1), 0


def resume(way: Way, dataset: Path, batch_size: int, step: int) -> dict[str, Any]:
    """Returns what it takes to begin at a step: seconds to the first batch, and bytes read for the first ten."""
    before, start = _bytes_read(), time.perf_counter()
    batches = way(Ask(dataset, batch_size, step=step, num_steps=RESUMED_BATCHES))
    used, seconds = sum(map(_num_bytes, next(batches))), time.perf_counter() - start
    for batch in itertools.islice(batches, RESUMED_BATCHES - 1):
        used += sum(map(_num_bytes, batch))
    time.sleep(_READ_AHEAD_SECONDS)
    read = _bytes_read() - before
    return {"seconds": seconds, "read_mb": read / 1e6, "used_mb": used / 1e6, "times": read / used}


def waits(way: Way, dataset: Path, batch_size: int, num_batches: int) -> dict[str, Any]:
    """Returns how long the next batch takes for one who uses none of them: median and longest; and the memory."""
    start_mb, batches, times = peak_mb(), way(Ask(dataset, batch_size)), []
    for _ in range(num_batches):
        start = time.perf_counter()
        next(batches)
        times.append(1000 * (time.perf_counter() - start))
    counted = times[UNCOUNTED_BATCHES:]
    median, longest = statistics.median(counted), max(counted)
    memory = {"start_mb": start_mb, "peak_mb": peak_mb()}
    return {"median_ms": median, "longest_ms": longest, "times": longest / median, **memory}


def cost(way: Way, dataset: Path, batch_size: int, num_batches: int) -> dict[str, Any]:
    """Returns what an epoch of so many batches takes, after another that is not counted."""
    batches = way(Ask(dataset, batch_size))
    for _ in range(num_batches):
        next(batches)
    return cost_of(lambda: sum(len(next(batches)) for _ in range(num_batches)))


def number_of(record: Record | bytes | int) -> int:
    """Returns the number of a record of write_tfrecords(), serialized or not."""
    if isinstance(record, int):
        return record
    if isinstance(record, Record):
        return int(record.key.removeprefix("key"))
    return int(_KEY.findall(record)[-1])


def read_manifest(folder: Path) -> Manifest:
    """Returns the manifest of a dataset of make_records(), without TensorFlow."""
    path = folder / "tfrecord"
    return Manifest.from_json((path / MANIFEST_NAME).read_text(), str(path))


def _bytes_read() -> int:
    """Returns how many bytes this process has read so far, of warm pages too: rchar of proc(5)."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def _num_bytes(record: Any) -> int:
    return len(record.encoded if hasattr(record, "encoded") else record)


def main(ways: Mapping[str, Way], version: Callable[[str], str] | None = None) -> None:
    """Prints what the command line asks for, as JSON: seen|resume|waits|cost WAY DATASET ARGUMENTS_IN_JSON.

    Args:
      ways: Ways by name.
      version: Function that returns the package and the version of a way; None if it is not shown.
    """
    measured, way, dataset, arguments = sys.argv[1:]
    functions: dict[str, Callable[..., dict[str, Any]]] = {
        "seen": save_numbers,
        "resume": resume,
        "waits": waits,
        "cost": cost,
    }
    result = functions[measured](ways[way], Path(dataset), **json.loads(arguments))
    print(json.dumps(result | ({"version": version(way)} if version else {})))
