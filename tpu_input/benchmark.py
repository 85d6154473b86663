"""python -m tpu_input benchmark: what each stage of training's input costs here, and what would make it enough.

Each stage is run with all before it, so that nothing is modelled:

    read ▶ parse ▶ decode all pixels; and the whole, the input_fn as training calls it, which decodes its crops alone
"""

from __future__ import annotations

import dataclasses
import os
import resource
import time

import tensorflow as tf

from tpu_input import schema
from tpu_input.config import InputConfig
from tpu_input.hosts import Host
from tpu_input.images import decode_whole
from tpu_input.reading import plain, records
from tpu_input.schema import Manifest
from tpu_input.train import make_train_input_fn


@dataclasses.dataclass(frozen=True)
class Measured:
    """One benchmark.

    Attributes:
      images_per_second: Of the whole, on this machine.
      cpu_ms: CPU milliseconds an image of "read", "parse", "full decode" (each with what comes before), and "whole".
      cores: Of this machine.
      peak_bytes: Largest memory of the process.
    """

    images_per_second: float
    cpu_ms: dict[str, float]
    cores: int
    peak_bytes: int

    def cores_for(self, need: float) -> float:
        """Returns how many cores like these feed `need` images a second."""
        return need * self.cpu_ms["whole"] / 1000

    def verdict(self, need: float | None) -> str:
        """Returns what bounds the input and what to change, in words with numbers."""
        whole, decode = self.cpu_ms["whole"], self.cpu_ms["full decode"] - self.cpu_ms["parse"]
        lines = [
            f"{self.images_per_second:.0f} images/s here, {whole:.2f} CPU ms an image on {self.cores} cores; "
            f"decoding all pixels alone takes {decode:.2f} ms."
        ]
        if need:
            lines.append(f"{need:.0f} images/s take {self.cores_for(need):.1f} cores like these.")
        if decode > whole / 2:
            lines.append("Decoding bounds it: store smaller images when converting, or set echo=2 or cache.")
        elif self.cpu_ms["read"] > whole / 2:
            lines.append('Reading bounds it: set cache="records", or a larger parallel_shards.')
        else:
            lines.append("Neither reading nor decoding bounds it: look at augment, dtype and image_size.")
        return "\n".join(lines)


def measure(manifest: Manifest, split: str, config: InputConfig, num_images: int, batch_size: int = 64) -> Measured:
    """Returns what `num_images` images cost at each stage.

    Raises:
      ValueError: There is no such split.
    """
    serialized = records(manifest, split, Host(), config, order=None).map(plain(lambda path, number, record: record))
    spec = manifest.record
    encoded = serialized.map(plain(lambda record: schema.parse(record, manifest.first_label, spec)["encoded"]))
    pixels = encoded.map(plain(lambda data: decode_whole(data, spec)[0, 0]), num_parallel_calls=tf.data.AUTOTUNE)
    cpu_ms = {
        name: _run(dataset.repeat().batch(batch_size), num_images, batch_size)[1]
        for name, dataset in (("read", serialized), ("parse", encoded), ("full decode", pixels))
    }
    whole = make_train_input_fn(manifest, config, split)({"batch_size": batch_size})
    seconds, cpu_ms["whole"] = _run(whole, num_images, batch_size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    return Measured(1 / seconds, cpu_ms, os.cpu_count() or 1, peak)


def _run(dataset: tf.data.Dataset, num_images: int, batch_size: int) -> tuple[float, float]:
    """Returns (seconds, CPU milliseconds) an image, after a first batch that is not counted."""
    batches = -(-num_images // batch_size)
    iterator = iter(dataset.take(batches + 1))
    next(iterator)
    cpu, start = time.process_time(), time.perf_counter()
    for _ in iterator:
        pass
    images = batches * batch_size
    return (time.perf_counter() - start) / images, (time.process_time() - cpu) / images * 1000
