"""Measurements of jpeg2tpu benchmark: the cost of each stage of training's input, and of changed options.

Each variant (a stage with all stages before it, the complete input, the complete input with one option changed) is run
by itself. Each round runs all variants in turn, and costs are medians over the rounds. Everything is measured, nothing
is modeled:

    read ▶ parse ▶ crop ▶ decode ▶ resize ▶ batch ▶ layout = the complete input, as training calls it
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import tempfile
import time
from collections.abc import Mapping

from tpu_input.benchmark.cost import Cost
from tpu_input.benchmark.stages import Candidate, batching, stages
from tpu_input.benchmark.variations import changes, decode_alone, sampled
from tpu_input.command_line.cores import num_cores
from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.reading import finished


@dataclasses.dataclass(frozen=True)
class Measured:
    """Result of one benchmark.

    Attributes:
      stages: Cost of each stage with all stages before it, in order; the last is the complete input.
      decode_alone: Cost of only decoding all pixels of the same files from memory: the decoder's limit.
      changes: Cost of the complete input with one option changed, by the change.
      not_tried: Reasons of the changes that could not be tried, one per change.
      cores: Number of cores that this process may use.
      peak_bytes: Peak memory of the process.
      start_bytes: Peak memory of the process before the first image, mostly TensorFlow's own.
    """

    stages: dict[str, Cost]
    decode_alone: Cost
    changes: dict[str, Cost]
    not_tried: tuple[str, ...]
    cores: int
    peak_bytes: int
    start_bytes: int

    @property
    def total(self) -> Cost:
        return list(self.stages.values())[-1]

    @property
    def busy(self) -> float:
        """Share of the cores' time that the complete input uses, in [0, 1]."""
        return min(1.0, self.total.cpu_ms / 1000 * self.total.images_per_second / self.cores)

    def cores_for(self, need: float) -> float:
        """Returns how many cores of this kind are needed for `need` images per second."""
        return need * self.total.cpu_ms / 1000


def measure(
    manifest: Manifest, split: str, config: InputConfig, num_images: int, rounds: int, batch_size: int
) -> Measured:
    """Returns the cost of an image at each stage, and with each option that could lower it changed.

    Args:
      manifest: The dataset.
      split: Name of the split.
      config: The input to be measured.
      num_images: Images to run each variant with, per round.
      rounds: Number of rounds; each runs all variants in turn.
      batch_size: Images per batch.

    Raises:
      ValueError: There is no such split, or too little memory for config.cache.
    """
    start_bytes = _peak_bytes()
    _run(Candidate.from_config(manifest, config, split, batch_size), num_images)
    peak_bytes = _peak_bytes()
    ways = stages(manifest, config, split, batch_size)
    names = list(ways)
    with tempfile.TemporaryDirectory() as folder:
        sample = sampled(manifest, split)
        ways["decode alone"] = decode_alone(sample, manifest, batch_size)
        tried, not_tried = changes(manifest, config, split, batch_size, sample, folder)
        costs = _in_turn(ways | tried, num_images, rounds)
    return Measured(
        {name: costs[name] for name in names},
        costs["decode alone"],
        {name: costs[name] for name in tried},
        not_tried,
        num_cores(),
        peak_bytes,
        start_bytes,
    )


def whole_cost(
    manifest: Manifest, split: str, config: InputConfig, num_images: int, rounds: int, batch_size: int
) -> Cost:
    """Returns the cost of an image of the complete input, as measure() computes it; the arguments are the same.

    Raises:
      ValueError: There is no such split, or too little memory for config.cache.
    """
    way = Candidate.from_config(manifest, config, split, batch_size)
    return _in_turn({"whole": way}, num_images, rounds)["whole"]


def batching_rate(config: InputConfig, num_images: int, rounds: int, batch_size: int) -> float:
    """Returns the images per second that can be put into batches, a limit that more cores do not raise.

    It is computed from the CPU time, the least of `rounds` runs, because other programs on this machine may slow it
    down. The arguments are as in measure().
    """
    way = batching(config, batch_size)
    return 1000 / min(_run(way, num_images)[1] for _ in range(rounds))


def _in_turn(ways: Mapping[str, Candidate], num_images: int, rounds: int) -> dict[str, Cost]:
    runs = [{name: _run(way, num_images) for name, way in ways.items()} for _ in range(rounds)]
    return {name: Cost(*map(statistics.median, zip(*(run[name] for run in runs), strict=True))) for name in ways}


def _run(way: Candidate, num_images: int) -> tuple[float, float]:
    """Returns (images per second, CPU milliseconds per image); the first batch is not counted."""
    batches = -(-num_images // way.images)
    iterator = iter(finished(way.make().take(batches + 1)))
    next(iterator)
    cpu, start = time.process_time(), time.perf_counter()
    for _ in iterator:
        pass
    images = batches * way.images
    return images / (time.perf_counter() - start), (time.process_time() - cpu) / images * 1000


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
