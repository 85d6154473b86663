"""Records or decoded images of a host in memory: read once, then taken in a new random order in every epoch.

    records of the host's share (or decoded images), read once ──▶ one tensor of strings ──▶ element n of it, at random

What is kept comes before every random choice, so that each epoch draws new crops and augmentations. Every host keeps a
share of its own, of the same size up to one record: Share describes it. With sampling="balanced", every host keeps all
records and takes the ones at its positions in the order of training.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.order import epoch_key, mix, permutation

if TYPE_CHECKING:
    import tensorflow as tf

# Share of the available memory that a cache may take; the rest is for prefetched batches and the trainer.
_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class Share:
    """Records that a host keeps in memory, of a split that H hosts divide among them.

    Of n records, every host has n // H to itself. Every host keeps the other n % H too; they are dealt round-robin,
    from one epoch to the next. All hosts together therefore take each record exactly once per epoch, and after any
    number of epochs, the numbers of records that two hosts have taken differ by at most one.

    Attributes:
      num_examples: Number of records in the split.
      host: Number of the host.
      num_hosts: Number of hosts.
    """

    num_examples: int
    host: int
    num_hosts: int

    @property
    def exclusive(self) -> range:
        """Numbers of the records that only this host keeps."""
        length = self.num_examples // self.num_hosts
        return range(self.host * length, (self.host + 1) * length)

    @property
    def dealt(self) -> range:
        """Numbers of the records that every host keeps."""
        return range(self.num_examples - self.num_examples % self.num_hosts, self.num_examples)

    def taken_before(self, epoch: int) -> int:
        """Returns the number of records that the host takes in all epochs before `epoch`."""
        return epoch * len(self.exclusive) + (epoch * len(self.dealt) - self.host - 1) // self.num_hosts + 1

    def epoch_of(self, count: int) -> int:
        """Returns the epoch of the record that the host takes after `count` others."""
        epoch = max(0, count * self.num_hosts // self.num_examples - 2)
        while self.taken_before(epoch + 1) <= count:
            epoch += 1
        return epoch

    def epoch_records(self, epoch: tf.Tensor, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (places in memory, numbers in the split) of an epoch's records in its order, [records] int64."""
        import tensorflow as tf

        numbers = tf.constant(np.array([*self.exclusive, *self.dealt], np.int64))
        turn = (epoch * len(self.dealt) + numbers - self.dealt.start) % self.num_hosts
        is_taken = tf.logical_or(numbers < self.dealt.start, tf.equal(turn, self.host))
        # Each host has a key of its own: in equal orders, the same two records of two hosts would meet in every epoch.
        key = mix(epoch_key(seed, tf.cast(epoch, tf.uint64)) + np.uint64(self.host))
        size = len(self.exclusive) + len(self.dealt)
        places = permutation(tf.cast(tf.range(size), tf.uint64), size, key, tf)
        places = tf.cast(places, tf.int64)
        places = tf.boolean_mask(places, tf.gather(is_taken, places))
        return places, tf.gather(numbers, places)


class ShareOrder:
    """The endless order in which a host takes the records of its share: shuffled() in NumPy, at any place."""

    def __init__(self, share: Share, seed: int) -> None:
        self.share, self._seed = share, seed
        self._last: tuple[int, npt.NDArray[np.int64]] | None = None  # epoch, and its records: 8 bytes for each

    def records(self, positions: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns (epochs, numbers in the split) of the records at `positions` of the host's order.

        Args:
          positions: Numbers of records that the host has taken before, in rising order, [N].
        """
        epochs, numbers = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        begin = 0
        while begin < len(positions):
            epoch = self.share.epoch_of(int(positions[begin]))
            end = begin + int(np.searchsorted(positions[begin:], self.share.taken_before(epoch + 1)))
            places = positions[begin:end].astype(np.int64) - self.share.taken_before(epoch)
            epochs[begin:end], numbers[begin:end] = epoch, self._epoch_records(epoch)[places]
            begin = end
        return epochs, numbers

    def _epoch_records(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns the numbers in the split that Share.epoch_records() returns."""
        last = self._last
        if last and last[0] == epoch:
            return last[1]
        share = self.share
        numbers = np.array([*share.exclusive, *share.dealt], np.int64)
        is_taken = (numbers < share.dealt.start) | (
            (epoch * len(share.dealt) + numbers - share.dealt.start) % share.num_hosts == share.host
        )
        with np.errstate(over="ignore"):
            key = mix(epoch_key(self._seed, np.uint64(epoch)) + np.uint64(share.host))
        size = np.arange(len(numbers), dtype=np.uint64)
        places = permutation(size, len(numbers), key, np).astype(np.int64)
        records: npt.NDArray[np.int64] = numbers[places[is_taken[places]]]
        self._last = epoch, records
        return records


def shuffled(share: Share, seed: int, start: int) -> tf.data.Dataset:
    """Returns the endless (number of the example over all epochs, place in memory) of a share's records.

    Args:
      share: Records that the host keeps.
      seed: Seed of the order.
      start: Number of records that the host has already taken.
    """
    import tensorflow as tf

    from tpu_input.pipeline.reading import no_autograph

    first_epoch = share.epoch_of(start)

    @no_autograph
    def epoch_examples(epoch: tf.Tensor) -> tf.data.Dataset:
        places, numbers = share.epoch_records(epoch, seed)
        return tf.data.Dataset.from_tensor_slices((epoch * share.num_examples + numbers, places))

    epochs = tf.data.Dataset.range(first_epoch, 2**62)
    return epochs.flat_map(epoch_examples).skip(start - share.taken_before(first_epoch))


def cache_bytes(manifest: Manifest, split: str, host: Host, config: InputConfig) -> int:
    """Returns the memory that config.cache will take on a host, in bytes.

    Raises:
      ValueError: The sizes of the images, which the memory of "decoded" is computed from, are not known.
    """
    split_info = manifest.split(split)
    # In the order of "balanced", any host may need any record.
    share = -(-split_info.num_examples // host.num_hosts) if config.sampling == "equal" else split_info.num_examples
    if config.cache == "records":
        return share * split_info.num_bytes // max(1, split_info.num_examples)
    largest = largest_image_bytes(manifest, split)
    if not largest:
        raise ValueError(f'the image sizes of {manifest.path!r} are not known; use cache="records"')
    return share * largest


def largest_image_bytes(manifest: Manifest, split: str) -> int:
    """Returns the bytes of uint8 pixels of an image with the split's mean height and mean width; 0 if not known."""
    split_info = manifest.split(split)
    sides = manifest.record.raw_shape or (split_info.height[1], split_info.width[1])
    return int(sides[0] * sides[1] * 3)


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


def check_batch(
    name: str, batch_size: int, image_size: int, image_bytes: int, other: str, available: int | None = None
) -> None:
    """Raises ValueError if what a batch takes does not fit into this machine's memory.

    TensorFlow would use it up, or end the process.

    Args:
      name: What gives the batch size: an argument or a flag.
      batch_size: Examples in a batch.
      image_size: Height and width of the images in pixels.
      image_bytes: The least memory that an example of a batch takes, in bytes.
      other: What to do if not even one example fits.
      available: Available memory in bytes; None reads it from the system.
    """
    available = available_bytes() if available is None else available
    if batch_size * image_bytes > available:
        fitting = available // image_bytes
        raise ValueError(
            f"{name}={batch_size} with images of {image_size} x {image_size} pixels needs at least "
            f"{batch_size * image_bytes / 1e9:,.1f} GB of memory, but only {available / 1e9:,.1f} GB are available; "
            + (f"use {name}={fitting} or less" if fitting else other)
        )


def available_bytes() -> int:
    """Returns the available memory in bytes: of the machine, or of the container if that has less (Linux)."""
    limits = [2**62]
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    limit, used = _lines("/sys/fs/cgroup/memory.max"), _lines("/sys/fs/cgroup/memory.current")
    if limit and used and limit[0].isdigit():
        limits.append(max(0, int(limit[0]) - int(used[0])))
    return min(limits)


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
