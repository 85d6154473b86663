"""In-memory cache of small datasets: a check of its memory before it is filled, and shuffled epochs from it.

    records (or decoded images), read once ──cache──▶ repeat ──▶ one epoch at a time ──▶ shuffled by the epoch's seed

The cache comes before every random choice, so that each epoch draws new crops and augmentations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.reading import plain

# Share of the available memory that a cache may take; the rest is for prefetched batches and the trainer.
_SHARE = 0.8


def cache_bytes(manifest: Manifest, split: str, host: Host, config: InputConfig) -> int:
    """Returns the memory that config.cache will take on a host, in bytes.

    Raises:
      ValueError: The sizes of the images, which the memory of "decoded" is computed from, are not known.
    """
    of = manifest.split(split)
    share = host.num_examples(of.shards)
    if config.cache == "records":
        return share * of.num_bytes // max(1, of.num_examples)
    largest = largest_image_bytes(manifest, split)
    if not largest:
        raise ValueError(f'the image sizes of {manifest.path!r} are not known; use cache="records"')
    return share * largest


def largest_image_bytes(manifest: Manifest, split: str) -> int:
    """Returns the bytes of uint8 pixels of an image with the split's mean height and mean width; 0 if not known."""
    of = manifest.split(split)
    height, width = manifest.record.raw_shape[:2] if manifest.record.raw_shape else (of.height[1], of.width[1])
    return int(height * width * 3)


def check_memory(needed: int, config: InputConfig, available: int | None = None) -> None:
    """Raises ValueError unless a cache of `needed` bytes fits into the host's memory.

    Args:
      needed: Size of the cache in bytes.
      config: For the name of the cache.
      available: Available memory in bytes; None reads it from the system.
    """
    available = available_bytes() if available is None else available
    if needed > _SHARE * available:
        other = ' or "records"' if config.cache == "decoded" else ""
        raise ValueError(
            f'cache="{config.cache}" needs {needed / 1e9:.1f} GB of memory on each host, too much for the '
            f"{available / 1e9:.1f} GB available; use cache=None{other}, or more hosts"
        )


def available_bytes() -> int:
    """Returns the available memory in bytes: of the machine, or of the container if that has less (Linux)."""
    found = [2**62]
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    limit, used = _lines("/sys/fs/cgroup/memory.max"), _lines("/sys/fs/cgroup/memory.current")
    if limit and used and limit[0].isdigit():
        found.append(max(0, int(limit[0]) - int(used[0])))
    return min(found)


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def cached_epochs(
    dataset: tf.data.Dataset, num_examples: int, first_epoch: int, seed_of: Callable[[tf.Tensor], tf.Tensor]
) -> tf.data.Dataset:
    """Returns endless epochs of a dataset that is read once and cached; each epoch is shuffled completely.

    Args:
      dataset: Dataset of num_examples elements.
      num_examples: Elements per epoch.
      first_epoch: Number of the first epoch.
      seed_of: Scalar int64 seed of an epoch's order, given its number.
    """

    @plain
    def shuffled(epoch: tf.Tensor, elements: Any) -> tf.data.Dataset:
        whole = tf.data.Dataset.zip(elements)
        return whole.shuffle(num_examples, seed_of(epoch), reshuffle_each_iteration=False)

    passes = dataset.cache().repeat().window(num_examples)
    return tf.data.Dataset.zip((tf.data.Dataset.range(first_epoch, 2**62), passes)).flat_map(shuffled)
