"""Shards → serialized records, for one host.

DATASET/manifest.json ──read_manifest()──▶ Manifest ──records()──▶ Dataset of (path, number in the shard, serialized)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.hosts import Host

# Reads of a few MB hide the latency of object storage.
# https://www.tensorflow.org/guide/data_performance_analysis, and the Cloud TPU performance guide's "at least 8 MB"
_REMOTE_BUFFER_BYTES = 8 << 20
# The system reads local files ahead itself: 256 KiB are as fast, and stay in a processor's cache.
_LOCAL_BUFFER_BYTES = 256 << 10


_Function = TypeVar("_Function", bound=Callable[..., Any])


def plain(function: _Function) -> _Function:
    """Returns a function for Dataset.map and its like that AutoGraph leaves alone.

    None of ours has Python control flow over tensors: AutoGraph would rewrite them for nothing, and warn where it
    cannot.
    """
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset, of which tf.data tunes nothing: all our numbers are given.

    Tuning reads the clock at every step of every element, which takes time; without it, AUTOTUNE stays at 16 or the
    number of cores (tensorflow/core/data/dataset_utils.h: kAutotuneDefaultParallelism).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def records(
    manifest: Manifest, split: str, host: Host, config: InputConfig, order: tf.Tensor | None
) -> tf.data.Dataset:
    """Returns one pass over the host's share of a split: (path of the shard, number in the shard, serialized record).

    A shard always gives as many elements as its manifest says: what cannot be read is "".

    Args:
      manifest: The dataset.
      split: Name of the split.
      host: Whose share.
      config: For `parallel_shards`.
      order: int32 permutation of the host's shards; None reads them in their own order, one after the other.
    """
    shards = manifest.split(split).shards
    mine = host.shards(shards)
    paths = [f"{manifest.path}/{shard.name}" for shard in mine]
    sizes = [tf.constant([getattr(shard, of) for shard in mine], tf.int64) for of in ("num_examples", "num_bytes")]
    listed: Any = (tf.constant(paths, tf.string), *sizes)
    if order is not None:
        listed = tuple(tf.gather(column, order) for column in listed)
    at_once = 1 if order is None else min(config.parallel_shards, len(paths))
    # Shards in a bucket are waited for at the same time. Files are read ahead by the system, and a thread for each of
    # them only takes time. Hosts that divide shards by record need to see the records in the same order.
    ordered = order is None or config.deterministic or host.reads_by_record(shards)
    in_parallel = {"num_parallel_calls": at_once, "deterministic": ordered}
    dataset = tf.data.Dataset.from_tensor_slices(listed).interleave(
        functools.partial(shard_records, buffer_bytes=read_buffer_bytes(manifest.path)),
        cycle_length=at_once,
        **(in_parallel if is_remote(manifest.path) else {}),
    )
    if host.reads_by_record(shards):
        dataset = dataset.shard(host.num_hosts, host.index)
    return dataset


def read_buffer_bytes(path: str) -> int:
    """Returns how many bytes of a shard in a folder or at a URI are read at once."""
    return _REMOTE_BUFFER_BYTES if is_remote(path) else _LOCAL_BUFFER_BYTES


def is_remote(path: str) -> bool:
    """Returns whether what lies there has to be waited for, rather than read by the system ahead."""
    return "://" in path


@plain
def shard_records(
    path: tf.Tensor, num_examples: tf.Tensor, num_bytes: tf.Tensor, *, buffer_bytes: int
) -> tf.data.Dataset:
    """Returns num_examples elements (path, number, serialized); the last is "" from where the file is damaged or ends.

    Past damage TensorFlow's reader cannot find the next record, so all those elements have the number of the first
    record that it cannot read: whichever of them a shuffle buffer hands out first, that is the one to look at.
    No function is called for a record, as each call wakes a thread. In a bucket a shard takes a request for its size,
    and one for each `buffer_bytes`.

    Raises:
      tf.errors.OpError: From the dataset: the file is missing, or its storage fails.
      tf.errors.InvalidArgumentError: Likewise: it is larger than num_bytes.
    """
    # What lies before a footer of the promised length: nothing, or the first byte. It comes first because it also says
    # that a file is missing: TFRecordDataset(missing).ignore_errors() loops for ever (TF 2.15 and 2.21).
    excess = tf.data.FixedLengthRecordDataset(path, 1, footer_bytes=num_bytes, buffer_size=1).take(1)
    counts = tf.strings.as_string(num_examples), tf.strings.as_string(num_bytes)
    promised = tf.strings.join([path, " holds more than the ", counts[0], " records, ", counts[1], " bytes, promised"])

    @plain
    def refuse(byte: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[promised])]):
            return path, num_examples, tf.identity(byte)

    read = tf.data.TFRecordDataset(path, buffer_size=buffer_bytes).ignore_errors(log_warning=True)
    # Where reading ends too early, a byte is read by a reader whose error is not ignored: that fails when it was the
    # storage that failed, not the file.
    storage = tf.data.FixedLengthRecordDataset(path, 1, buffer_size=1).take(1).skip(1)
    numbers, paths = tf.data.Dataset.range(2**62), tf.data.Dataset.from_tensors(path).repeat()
    found = tf.data.Dataset.zip((paths, numbers, read.concatenate(storage)))

    @plain
    def unread(path: tf.Tensor) -> tf.data.Dataset:
        # Counted when it is needed: where a shard is damaged, it is read up to there once more.
        readable = tf.data.TFRecordDataset(path, buffer_size=buffer_bytes).ignore_errors()
        first = readable.reduce(tf.constant(0, tf.int64), plain(lambda count, _: count + 1))
        return tf.data.Dataset.from_tensors((path, first, "")).repeat()

    missing = tf.data.Dataset.from_tensors(path).flat_map(unread)
    # take() asks for nothing behind its last, so that a whole shard is not read again.
    return excess.map(refuse).concatenate(found.concatenate(missing).take(num_examples))
