"""The order of training in the graph: a host reads its own lanes from their places in the shards.

    lane ▶ numbers of its next records (order.py) ▶ consecutive ones of a shard as a segment ▶ records
    all lanes of a host, a record of each in turn ▶ (number of the example, serialized)

A lane goes through all epochs endlessly, so the lanes do not all open and close files when an epoch begins. Each
segment begins at the byte offset of its block, so a run can begin at any step without delay. Only what each lane has
read ahead is kept in memory.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_input.config import MOST_BLOCK_RECORDS
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.order import Order
from tpu_input.pipeline.reading import is_remote, no_autograph, read_buffer_bytes, segment_records
from tpu_input.storage.gcs_filesystem import blocks_advice
from tpu_input.storage.open_files import allow_open_files
from tpu_input.storage.positions import split_offsets

_READERS = 8  # threads that read local files: each reads some 17,000 photographs per second
# By all lanes of a host together. In a bucket, they take as much again for records that are read ahead.
_LOCAL_READ_BYTES, _REMOTE_READ_BYTES = 64 << 20, 256 << 20
_LEAST_BUFFER_BYTES = 64 << 10
# Records of a lane below which the graph has the offset of every record, up to a kilobyte for each lane. Longer lanes
# also read the rest of the blocks that they cut, which is up to a block for each epoch, and so up to an eighth more.
_SHORT_LANE = 8 * MOST_BLOCK_RECORDS
_STEPS_AT_ONCE = 512  # of a lane whose records are computed together, because each operation of a graph takes 3 µs


class Ends(NamedTuple):
    """Exact bytes at which a lane begins and ends, as the graph knows only block offsets for long lanes.

    Attributes:
      first: epoch * records of the split + number, of the lane's first record; [] or [lanes] int64, as the others.
      begin: Offset in bytes at which it begins in its shard.
      last: As first, of the lane's last record; -1 if the lane is endless.
      end: Offset in bytes at which it ends in its shard.
    """

    first: tf.Tensor
    begin: tf.Tensor
    last: tf.Tensor
    end: tf.Tensor


class Blocks:
    """Reads records of a split in a graph, where consecutive ones of a shard take one opening of it."""

    def __init__(self, manifest: Manifest, split: str, order: Order, at_once: int) -> None:
        """Loads the offset of each block, or, of short lanes, of each record.

        Args:
          manifest: The dataset.
          split: Name of the split.
          order: Order of its records.
          at_once: Number of segments that are read at the same time, which share the memory to read ahead.

        Raises:
          ValueError: The lengths of the records cannot be read, or do not match the shards: see split_offsets().
        """
        shards = manifest.split(split).shards
        is_short = order.num_examples // order.lanes < _SHORT_LANE
        # Numbers of records whose offsets are known in the graph are multiples of this.
        self._num_examples, self._known_every = order.num_examples, 1 if is_short else order.block_records
        self._buffer_bytes = buffer_bytes(manifest.path, at_once)
        self._order, self._all_offsets = order, split_offsets(manifest, split)
        self._firsts = np.cumsum([0, *(shard.num_examples for shard in shards)], dtype=np.int64)
        self._sizes = np.array([shard.num_bytes for shard in shards], np.int64)
        self._offsets = tf.constant(self._all_offsets[:: self._known_every])
        self._shard_firsts, self._num_bytes = tf.constant(self._firsts), tf.constant(self._sizes)
        self._folder = manifest.path
        self._names = tf.constant([shard.name for shard in shards])

    def ends(self, positions: range, start_step: int, end_step: int | None) -> Ends:
        """Returns the ends of the lanes at some positions of the steps from `start_step` to before `end_step`."""
        first, begin, _ = self._place(start_step, positions)
        last, end = np.full(len(positions), -1), np.zeros(len(positions), np.int64)
        if end_step is not None:
            last, _, end = self._place(end_step - 1, positions)
        return Ends(*(tf.constant(values, tf.int64) for values in (first, begin, last, end)))

    def _place(self, step: int, positions: range) -> tuple[npt.NDArray[np.int64], ...]:
        """Returns (epoch * records of the split + number, first byte, byte after the last) of the records of a step."""
        in_stream = np.arange(positions.start, positions.stop, dtype=np.uint64) + np.uint64(step * self._order.lanes)
        epochs, numbers = (np.asarray(array, np.int64) for array in self._order.records(in_stream))
        shards = np.searchsorted(self._firsts, numbers, side="right") - 1
        is_last = numbers + 1 == self._firsts[shards + 1]
        following = self._all_offsets[np.minimum(numbers + 1, len(self._all_offsets) - 1)]
        ends = np.where(is_last, self._sizes[shards], following)
        return epochs * self._num_examples + numbers, self._all_offsets[numbers], ends

    def read(self, epochs: tf.Tensor, numbers: tf.Tensor, ends: Ends | None = None) -> tf.data.Dataset:
        """Returns (epoch * records of the split + number, serialized) of records.

        Args:
          epochs: [N] uint64, epoch of each record.
          numbers: [N] uint64, number of each record in the split; fast where these are consecutive.
          ends: Ends of the lane that the records are of; None if they are of none.
        """
        epochs, numbers = tf.cast(epochs, tf.int64), tf.cast(numbers, tf.int64)
        shards = tf.searchsorted(self._shard_firsts, numbers, side="right", out_type=tf.int64) - 1
        keys = tf.stack([numbers, shards, epochs])
        goes_on = tf.reduce_all(tf.equal(keys[:, 1:], keys[:, :-1] + [[1], [0], [0]]), 0)
        begins = tf.concat([[0], tf.where(tf.logical_not(goes_on))[:, 0] + 1], 0)
        counts = tf.concat([begins[1:], [tf.size(numbers, tf.int64)]], 0) - begins
        segments = (*(tf.gather(column, begins) for column in (epochs, numbers, shards)), counts)
        read_segment = no_autograph(functools.partial(self._segment, ends))
        return tf.data.Dataset.from_tensor_slices(segments).flat_map(read_segment)

    def _segment(
        self, ends: Ends | None, epoch: tf.Tensor, number: tf.Tensor, shard: tf.Tensor, count: tf.Tensor
    ) -> tf.data.Dataset:
        """Returns what read() does, for consecutive records of a shard."""
        size, shard_first, shard_end = self._known_every, self._shard_firsts[shard], self._shard_firsts[shard + 1]
        first = tf.maximum(number // size * size, shard_first)  # at which reading begins
        following = (number + count - 1) // size + 1
        begin = tf.where(first > shard_first, self._offsets[first // size], 0)
        # Reads have the length of the segment, or an equal part of it, so that nothing behind it is read.
        is_within = following * size < shard_end
        end = tf.where(is_within, self._offsets[tf.where(is_within, following, 0)], self._num_bytes[shard])
        example = epoch * self._num_examples + number
        if ends:
            is_first = tf.equal(example, ends.first)
            first, begin = tf.where(is_first, number, first), tf.where(is_first, ends.begin, begin)
            end = tf.where(tf.equal(example + count - 1, ends.last), ends.end, end)
        reads = -(-(end - begin) // self._buffer_bytes)
        return segment_records(
            tf.strings.join([self._folder, "/", self._names[shard]]),
            self._num_bytes[shard],
            begin,
            example,
            count,
            buffer_bytes=-(-(end - begin) // reads),
            skipped=number - first if size > 1 else None,
        )


def buffer_bytes(path: str, at_once: int) -> int:
    """Returns the number of bytes that each of `at_once` segments of a dataset reads at once."""
    total_bytes = _REMOTE_READ_BYTES if is_remote(path) else _LOCAL_READ_BYTES
    return max(_LEAST_BUFFER_BYTES, min(read_buffer_bytes(path), total_bytes // at_once))


def records_ahead(manifest: Manifest, split: str, order: Order, lanes: int) -> int:
    """Returns the number of records that each of a host's lanes in a bucket has read ahead.

    They are as many as a block has, if the memory suffices: while they are used, the next block is opened.
    """
    split_info = manifest.split(split)
    record_bytes = max(1, split_info.num_bytes // max(1, split_info.num_examples))
    return max(1, min(order.block_records, _REMOTE_READ_BYTES // lanes // record_bytes))


def lane_records(
    manifest: Manifest, split: str, order: Order, positions: range, start_step: int, end_step: int | None = None
) -> tf.data.Dataset:
    """Returns (number, serialized) of some positions of every step.

    "number" is epoch * records of the split + number of the record in the split.

    Args:
      manifest: The dataset.
      split: Name of the split.
      order: Order of its records.
      positions: Positions of a step that are read here, of `order.lanes`.
      start_step: Step to begin with.
      end_step: Step before which to end, so that nothing is read for it; None is endless.

    Raises:
      ValueError: Each position has a local file open, and so many may not be open at the same time.
    """
    blocks, last_step = Blocks(manifest, split, order, len(positions)), 2**62 if end_step is None else end_step
    all_ends = blocks.ends(positions, start_step, end_step)

    @no_autograph
    def lane(position: tf.Tensor) -> tf.data.Dataset:
        ends = Ends(*(values[position - positions.start] for values in all_ends))

        @no_autograph
        def next_records(step: tf.Tensor) -> tf.data.Dataset:
            steps = tf.range(tf.maximum(step, start_step), tf.minimum(step + _STEPS_AT_ONCE, last_step))
            epochs, numbers = order.records(tf.cast(steps * order.lanes + position, tf.uint64), tf)
            return blocks.read(epochs, numbers, ends)

        # The lanes compute their next records at different steps, because no step is to wait for all of them.
        first = start_step - (position - positions.start) * _STEPS_AT_ONCE // len(positions)
        return tf.data.Dataset.range(first, last_step, _STEPS_AT_ONCE).flat_map(next_records)

    if advice := blocks_advice(manifest.path, len(positions)):
        warnings.warn(advice, stacklevel=2)
    if is_remote(manifest.path):
        return _side_by_side(lane, positions, records_ahead(manifest, split, order, len(positions)))
    allow_open_files(len(positions))
    return _by_few_readers(lane, positions)


def _side_by_side(lane: Callable[[tf.Tensor], tf.data.Dataset], positions: range, ahead: int) -> tf.data.Dataset:
    """Returns a record of each lane in turn, where a read has latency: all lanes read `ahead` records ahead at once."""
    return tf.data.Dataset.range(positions.start, positions.stop).interleave(
        no_autograph(lambda position: lane(position).prefetch(ahead)),
        cycle_length=len(positions),
        num_parallel_calls=len(positions),
        deterministic=True,
    )


def _by_few_readers(lane: Callable[[tf.Tensor], tf.data.Dataset], positions: range) -> tf.data.Dataset:
    """Returns a record of each lane in turn, where a few threads have neighboring lanes each.

    The operating system reads local files ahead, and a thread for each lane would only take time.
    """
    readers = max(count for count in range(1, _READERS + 1) if len(positions) % count == 0)
    per_reader = len(positions) // readers

    @no_autograph
    def neighbours(first: tf.Tensor) -> tf.data.Dataset:
        group = tf.data.Dataset.range(first, first + per_reader)
        return group.interleave(lane, cycle_length=per_reader).prefetch(per_reader)

    firsts = tf.data.Dataset.range(positions.start, positions.stop, per_reader)
    return firsts.interleave(neighbours, cycle_length=readers, block_length=per_reader)


def lane_numbers(order: Order, positions: range, start_step: int) -> tf.data.Dataset:
    """Returns the endless (number over all epochs, number in the split) of records, without reading any.

    For a split in memory: the order is lane_records()'s.

    Args:
      order: Order of the records.
      positions: Positions of a step that are taken here, of `order.lanes`.
      start_step: Step to begin with.
    """
    steps = -(-_STEPS_AT_ONCE // len(positions))

    @no_autograph
    def next_numbers(step: tf.Tensor) -> tf.data.Dataset:
        in_step = tf.range(positions.start, positions.stop, dtype=tf.int64)
        in_stream = (step + tf.range(steps, dtype=tf.int64))[:, None] * order.lanes + in_step
        epoch, number = order.records(tf.reshape(tf.cast(in_stream, tf.uint64), [-1]), tf)
        examples = epoch * np.uint64(order.num_examples) + number
        return tf.data.Dataset.from_tensor_slices((tf.cast(examples, tf.int64), tf.cast(number, tf.int64)))

    return tf.data.Dataset.range(start_step, 2**62, steps).flat_map(next_numbers)
