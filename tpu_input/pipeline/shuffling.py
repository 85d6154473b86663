"""Shuffling: the endless order of training's examples.

    epoch number ▶ shards in the epoch's order ▶ records of several shards, interleaved ▶ shuffle of serialized records
    ▶ skip what an earlier run has read ▶ (example number on this host, (path, number in the shard, serialized))

The order of an epoch depends only on (seed, epoch).
"""

from __future__ import annotations

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.caching import cached_epochs
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.reading import plain, records


def shuffled_records(manifest: Manifest, split: str, host: Host, config: InputConfig, start: int) -> tf.data.Dataset:
    """Returns the host's endless dataset of (example number, (path, number in the shard, serialized)), from `start`."""
    shards = manifest.split(split).shards

    @plain
    def epoch_records(epoch: tf.Tensor) -> tf.data.Dataset:
        dataset = records(manifest, split, host, config, shard_order(epoch, len(host.shards(shards)), config))
        buffer = buffer_records(manifest, split, config)
        return dataset.shuffle(buffer, order_seed(epoch, config), reshuffle_each_iteration=False)

    first_epoch, seen = divmod(start, host.num_examples(shards))
    epochs = tf.data.Dataset.range(first_epoch, 2**62)
    return epochs.flat_map(epoch_records).skip(seen).enumerate(start)


def shuffled_kept(dataset: tf.data.Dataset, num_examples: int, config: InputConfig, start: int) -> tf.data.Dataset:
    """Returns endless (example number on this host, element) of a dataset of num_examples that is cached in memory."""
    first_epoch, seen = divmod(start, num_examples)
    epochs = cached_epochs(dataset, num_examples, first_epoch, lambda epoch: order_seed(epoch, config))
    return epochs.skip(seen).enumerate(start)


def buffer_records(manifest: Manifest, split: str, config: InputConfig) -> int:
    """Returns the number of records in the shuffle buffer: shuffle_records, or fewer that fit into shuffle_bytes."""
    of = manifest.split(split)
    mean = max(1, of.num_bytes // max(1, of.num_examples))
    return max(1, min(config.shuffle_records, config.shuffle_bytes // mean))


def shard_order(epoch: tf.Tensor, num_shards: int, config: InputConfig) -> tf.Tensor:
    """Returns an epoch's permutation of shards, [num_shards] int32."""
    seed = tf.stack([tf.constant(config.seed, tf.int64), epoch])
    return tf.random.experimental.stateless_shuffle(tf.range(num_shards), seed)


_PROGRAM_SEED = 87654321  # TensorFlow's own, if the program has set none


def order_seed(epoch: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns the seed of an epoch's shuffle, different for each epoch.

    TensorFlow's own reshuffling per iteration has state that a resumed run does not have. This must be called inside
    the function that shuffles: TensorFlow mixes the program's tf.random.set_seed() into every shuffle, and under
    set_seed(0) fails for a seed that is a tensor. The seed that is set here is valid for the function's own graph.
    """
    tf.random.set_seed(_PROGRAM_SEED)
    seed = tf.stack([tf.constant(config.seed, tf.int64), epoch])
    return tf.random.stateless_uniform([], seed, maxval=2**31, dtype=tf.int64, minval=1)
