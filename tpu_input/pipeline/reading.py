"""Reading of shards into serialized records, for one host.

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
# The operating system reads local files ahead: 256 KiB are as fast, and stay in the processor's cache.
_LOCAL_BUFFER_BYTES = 256 << 10


_Function = TypeVar("_Function", bound=Callable[..., Any])


def plain(function: _Function) -> _Function:
    """Returns a function for Dataset.map and similar methods that AutoGraph does not convert.

    No function of this package has Python control flow over tensors: AutoGraph would rewrite them without need, and
    warn where it cannot.
    """
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with autotuning disabled, because all numbers of these pipelines are given.

    Autotuning reads the clock at every step of every element, which takes time; without it, AUTOTUNE stays at 16 or the
    number of cores (tensorflow/core/data/dataset_utils.h: kAutotuneDefaultParallelism).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def records(
    manifest: Manifest, split: str, host: Host, config: InputConfig, order: tf.Tensor | None
) -> tf.data.Dataset:
    """Returns one pass over the host's share of a split: (path of the shard, number in the shard, serialized record).

    A shard always yields as many elements as its manifest says; a record that cannot be read is "".

    Args:
      manifest: The dataset.
      split: Name of the split.
      host: Host whose share is read.
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
    # Shards in a bucket are read in parallel, as each read has latency. Local files are read ahead by the operating
    # system, and a thread for each of them only takes time. Hosts that divide shards by record need to see the records
    # in the same order.
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
    """Returns the number of bytes that are read at once from a shard in a folder or at a URI."""
    return _REMOTE_BUFFER_BYTES if is_remote(path) else _LOCAL_BUFFER_BYTES


def is_remote(path: str) -> bool:
    """Returns whether a path is a URI, whose reads have latency; the operating system reads local files ahead."""
    return "://" in path


@plain
def shard_records(
    path: tf.Tensor, num_examples: tf.Tensor, num_bytes: tf.Tensor, *, buffer_bytes: int
) -> tf.data.Dataset:
    """Returns a dataset of num_examples elements (path, number in the shard, serialized record).

    "serialized" is "" from the point on where the file is damaged or ends. TensorFlow's reader cannot find the next
    record after damage, so all these elements have the number of the first record that cannot be read: whichever of
    them comes out of the shuffle buffer first, the error names that record. No function is called per record, because
    each call wakes a thread. A shard in a bucket takes one request for its size, and one for each `buffer_bytes`.

    Raises:
      tf.errors.OpError: Raised by the dataset: the file is missing, or its storage fails.
      tf.errors.InvalidArgumentError: Raised by the dataset: the file is larger than num_bytes.
    """
    # Yields the first byte if the file has any before a footer of num_bytes, so if it is larger; else nothing. It comes
    # first because it also fails for a missing file: TFRecordDataset(missing).ignore_errors() loops forever (TF 2.15
    # and 2.21).
    excess = tf.data.FixedLengthRecordDataset(path, 1, footer_bytes=num_bytes, buffer_size=1).take(1)
    counts = tf.strings.as_string(num_examples), tf.strings.as_string(num_bytes)
    promised = tf.strings.join(
        [path, " has more than the ", counts[0], " records and ", counts[1], " bytes in the manifest"]
    )

    @plain
    def refuse(byte: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[promised])]):
            return path, num_examples, tf.identity(byte)

    read = tf.data.TFRecordDataset(path, buffer_size=buffer_bytes).ignore_errors(log_warning=True)
    # If reading ends too early, this reads a byte without ignoring errors: it fails if the cause was a failure of the
    # storage, and not damage of the file.
    storage = tf.data.FixedLengthRecordDataset(path, 1, buffer_size=1).take(1).skip(1)
    numbers, paths = tf.data.Dataset.range(2**62), tf.data.Dataset.from_tensors(path).repeat()
    found = tf.data.Dataset.zip((paths, numbers, read.concatenate(storage)))

    @plain
    def unread(path: tf.Tensor) -> tf.data.Dataset:
        # Counted only when needed: a damaged shard is read a second time, up to the damage.
        readable = tf.data.TFRecordDataset(path, buffer_size=buffer_bytes).ignore_errors()
        first = readable.reduce(tf.constant(0, tf.int64), plain(lambda count, _: count + 1))
        return tf.data.Dataset.from_tensors((path, first, "")).repeat()

    missing = tf.data.Dataset.from_tensors(path).flat_map(unread)
    # take() requests nothing after its last element, so that an intact shard is not read a second time.
    return excess.map(refuse).concatenate(found.concatenate(missing).take(num_examples))
