"""Reading of shards into serialized records, for one host.

DATASET/manifest.json ──read_manifest()──▶ Manifest ──records()──▶ Dataset of (number in the split, serialized)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf

from tpu_input.dataset_format.records import Manifest
from tpu_input.storage.positions import shard_offsets

# Reads of a few MB hide the latency of object storage.
# https://www.tensorflow.org/guide/data_performance_analysis, and the Cloud TPU performance guide's "at least 8 MB"
_REMOTE_BUFFER_BYTES = 8 << 20
# The operating system reads local files ahead: 256 KiB are as fast, and stay in the processor's cache.
_LOCAL_BUFFER_BYTES = 256 << 10
AT_ONCE = 16  # shards of a bucket that are read side by side


_Function = TypeVar("_Function", bound=Callable[..., Any])


def no_autograph(function: _Function) -> _Function:
    """Returns a function for Dataset.map and similar methods that AutoGraph does not convert.

    No function of this package has Python control flow over tensors: AutoGraph would rewrite them without need, and
    warn where it cannot.
    """
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


def finished(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset with the options of every one that leaves this package, so that frameworks leave it as it is.

    Autotuning is off: it would read the clock at every step of every element, and the parallelism here is given.
    AUTOTUNE stays at 16 or the number of cores (tensorflow/core/data/dataset_utils.h:
    kAutotuneDefaultParallelism). Auto-sharding is off, because a host's share is chosen by its examples:
    tf.distribute, and Keras' fit() through it, would give each worker a part of that share again, by files or by
    elements, so that examples are lost and padding is counted.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def records(
    manifest: Manifest, split: str, ranges: Sequence[range] | None = None, by_number: bool = True
) -> tf.data.Dataset:
    """Returns one pass over a split: (number of the record in the split, serialized record).

    Records have numbers from 0 in the order of the shards. There are as many elements as records; one that cannot be
    read is "". Their order is the same every time.

    Args:
      manifest: The dataset.
      split: Name of the split.
      ranges: Ranges of the numbers of the records to read; None reads all.
      by_number: Whether records come in the order of their numbers. Otherwise, several shards of a bucket are read side
        by side, because each read has latency.
    """
    shards = manifest.split(split).shards
    segments = []
    for numbers in ranges or [range(manifest.split(split).num_examples)]:
        before = 0
        for shard in shards:
            place, end = max(0, numbers.start - before), min(shard.num_examples, numbers.stop - before)
            if place < end:
                offset = int(shard_offsets(manifest.path, shard)[place]) if place else 0
                segments.append((f"{manifest.path}/{shard.name}", shard.num_bytes, offset, before + place, end - place))
            before += shard.num_examples
    paths, *others = zip(*segments, strict=True) if segments else ((), (), (), (), ())
    columns = (tf.constant(paths, tf.string), *(tf.constant(column, tf.int64) for column in others))
    read = functools.partial(segment_records, buffer_bytes=read_buffer_bytes(manifest.path))
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    if by_number or not is_remote(manifest.path):
        return dataset.flat_map(read)
    return dataset.interleave(read, cycle_length=AT_ONCE, num_parallel_calls=AT_ONCE, deterministic=True)


def locate(manifest: Manifest, split: str) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns a function of the number of a record in the split -> (path of its shard, its number in the shard)."""
    shards = manifest.split(split).shards
    firsts = tf.constant(np.cumsum([0, *(shard.num_examples for shard in shards)]), tf.int64)
    names = tf.constant([shard.name for shard in shards])

    def place_of(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shard = tf.searchsorted(firsts, number[None], side="right")[0] - 1
        return tf.strings.join([manifest.path, "/", names[shard]]), number - firsts[shard]

    return place_of


def read_buffer_bytes(path: str) -> int:
    """Returns the number of bytes that are read at once from a shard in a folder or at a URI."""
    return _REMOTE_BUFFER_BYTES if is_remote(path) else _LOCAL_BUFFER_BYTES


def is_remote(path: str) -> bool:
    """Returns whether a path is a URI, whose reads have latency; the operating system reads local files ahead."""
    return "://" in path


@no_autograph
def segment_records(
    path: tf.Tensor,
    num_bytes: tf.Tensor,
    offset: tf.Tensor,
    number: tf.Tensor,
    count: tf.Tensor,
    *,
    buffer_bytes: int | tf.Tensor,
    skipped: tf.Tensor | None = None,
) -> tf.data.Dataset:
    """Returns `count` consecutive records of a shard: (number, number + 1, …; serialized record).

    "serialized" is "" from the point on where the file is damaged or ends, because TensorFlow's reader cannot find the
    next record after damage. No function is called per record, because each call wakes a thread. A segment in a bucket
    takes one request for the size of the shard, and one for each `buffer_bytes`.

    Args:
      path: Path of the shard.
      num_bytes: Size of the shard in the manifest.
      offset: Byte at which reading begins.
      number: Number of the first record that is returned.
      count: Number of records that are returned.
      buffer_bytes: Bytes that are read at once.
      skipped: Number of records to leave out at the beginning; None means 0.

    Raises:
      tf.errors.OpError: Raised by the dataset: the file is missing, or its storage fails.
      tf.errors.InvalidArgumentError: Raised by the dataset: the file is larger than num_bytes.
    """
    # Yields the first byte if the file has any before a footer of num_bytes, so if it is larger; else nothing. It comes
    # first because it also fails for a missing file: TFRecordDataset(missing).ignore_errors() loops forever (TF 2.15
    # and 2.21).
    excess = tf.data.FixedLengthRecordDataset(path, 1, footer_bytes=num_bytes, buffer_size=1).take(1)

    @no_autograph
    def refuse(byte: tf.Tensor) -> tf.Tensor:
        promised = tf.strings.join(
            [path, " has more than the ", tf.strings.as_string(num_bytes), " bytes in the manifest"]
        )
        with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[promised])]):
            return tf.identity(byte)

    # Reads a byte without ignoring errors: it fails if reading ended too early because of a failure of the storage, and
    # not because of damage to the file. It is opened only then.
    storage = tf.data.FixedLengthRecordDataset(path, 1, buffer_size=1).take(1).skip(1)
    missing = storage.concatenate(tf.data.Dataset.from_tensors("").repeat())

    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path], compression_type="", buffer_size=buffer_bytes, byte_offsets=[offset]
    )
    read = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    intact = (read if skipped is None else read.skip(skipped)).ignore_errors(log_warning=True)
    # take() requests nothing after its last element, so that an intact shard is not read further.
    serialized = intact.concatenate(missing).take(count)
    return tf.data.Dataset.zip(
        (tf.data.Dataset.range(number, number + count), excess.map(refuse).concatenate(serialized))
    )
