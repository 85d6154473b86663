"""python -m tpu_input benchmark: what each stage of training's input costs here, and what would make it cheaper.

Every way (a stage with all before it, the whole, the whole with one thing changed) is run by itself, all in turn and
several times; costs are medians. Nothing is modelled:

    read ▶ parse ▶ crop ▶ decode ▶ resize ▶ batch ▶ layout = the whole, as training calls it
"""

from __future__ import annotations

import dataclasses
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Mapping

from tpu_input.benchmark.stages import Candidate, single_threaded, stages
from tpu_input.benchmark.variations import changes, decode_alone, sampled
from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.reading import untuned


@dataclasses.dataclass(frozen=True)
class Cost:
    """What an image costs.

    Attributes:
      images_per_second: On all cores of this machine; with echo, of crops.
      cpu_ms: CPU milliseconds an image, over all threads.
    """

    images_per_second: float
    cpu_ms: float


@dataclasses.dataclass(frozen=True)
class Measured:
    """One benchmark.

    Attributes:
      stages: In order, each with all before it; the last is the whole.
      decode_alone: Decoding all pixels of the same files from memory, nothing else: the decoder's limit.
      changes: The whole with one thing changed, by what that is.
      not_tried: Changes that could not be tried, each with why.
      cores: That this process may use.
      peak_bytes: Largest memory of the process with the shuffle buffer as configured.
      start_bytes: What it had taken before the first image, mostly TensorFlow's own.
    """

    stages: dict[str, Cost]
    decode_alone: Cost
    changes: dict[str, Cost]
    not_tried: tuple[str, ...]
    cores: int
    peak_bytes: int
    start_bytes: int

    @property
    def whole(self) -> Cost:
        return list(self.stages.values())[-1]

    @property
    def busy(self) -> float:
        """Share of the cores' time that the whole keeps busy, in [0, 1]."""
        return min(1.0, self.whole.cpu_ms / 1000 * self.whole.images_per_second / self.cores)

    def cores_for(self, need: float) -> float:
        """Returns how many cores like these feed `need` images a second."""
        return need * self.whole.cpu_ms / 1000


def measure(
    manifest: Manifest, split: str, config: InputConfig, num_images: int, rounds: int, batch_size: int
) -> Measured:
    """Returns what an image costs at each stage, and with what changed it would cost less.

    Args:
      manifest: The dataset.
      split: Which examples.
      config: The input to be measured; stages and changes run with a shuffle buffer of one batch, so that reading is
        counted from the first image on. Peak memory is that of the buffer as configured.
      num_images: To run each way with, in each round.
      rounds: Of all ways in turn.
      batch_size: Of the whole.

    Raises:
      ValueError: There is no such split, or too little memory for config.cache.
    """
    start_bytes = _peak_bytes()
    _run(Candidate.of(manifest, config, split, batch_size), num_images)
    peak_bytes = _peak_bytes()
    config = dataclasses.replace(config, shuffle_records=batch_size)
    ways = stages(manifest, config, split, batch_size)
    names = list(ways)
    with tempfile.TemporaryDirectory() as folder:
        sample = sampled(manifest, config, split)
        ways["decode alone"] = decode_alone(sample, manifest, batch_size)
        tried, not_tried = changes(manifest, config, split, batch_size, sample, folder)
        costs = _in_turn(ways | tried, num_images, rounds)
    return Measured(
        {name: costs[name] for name in names},
        costs["decode alone"],
        {name: costs[name] for name in tried},
        not_tried,
        len(os.sched_getaffinity(0)),
        peak_bytes,
        start_bytes,
    )


def whole_cost(
    manifest: Manifest, split: str, config: InputConfig, num_images: int, rounds: int, batch_size: int
) -> Cost:
    """Returns what an image of the whole costs, as measure() has it; the arguments are the same.

    Raises:
      ValueError: There is no such split, or too little memory for config.cache.
    """
    way = Candidate.of(manifest, dataclasses.replace(config, shuffle_records=batch_size), split, batch_size)
    return _in_turn({"whole": way}, num_images, rounds)["whole"]


def single_threaded_rate(
    manifest: Manifest, split: str, config: InputConfig, num_images: int, rounds: int, batch_size: int
) -> float:
    """Returns the images a second that more cores do not raise: those of the slowest part that one thread does.

    It is what a thread's CPU time allows, the least of `rounds`, as other programs on this machine may hold it up. The
    arguments are those of measure().

    Raises:
      ValueError: There is no such split.
    """
    ways = single_threaded(manifest, dataclasses.replace(config, shuffle_records=batch_size), split, batch_size)
    return 1000 / max(min(_run(way, num_images)[1] for _ in range(rounds)) for way in ways.values())


def _in_turn(ways: Mapping[str, Candidate], num_images: int, rounds: int) -> dict[str, Cost]:
    runs = [{name: _run(way, num_images) for name, way in ways.items()} for _ in range(rounds)]
    return {name: Cost(*map(statistics.median, zip(*(run[name] for run in runs), strict=True))) for name in ways}


def _run(way: Candidate, num_images: int) -> tuple[float, float]:
    """Returns (images a second, CPU milliseconds an image), after a first batch that is not counted."""
    batches = -(-num_images // way.images)
    iterator = iter(untuned(way.make().take(batches + 1)))
    next(iterator)
    cpu, start = time.process_time(), time.perf_counter()
    for _ in iterator:
        pass
    images = batches * way.images
    return images / (time.perf_counter() - start), (time.process_time() - cpu) / images * 1000


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
