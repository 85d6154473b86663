"""Training input, endless:

    epoch number ▶ shards in the epoch's order ▶ records of several shards in turn ▶ shuffle of serialized records
    ▶ skip what an earlier run has seen ▶ fused decode and crop ▶ batch ▶ layout ▶ prefetch

Every random choice depends on (seed, epoch) or (seed, example number) alone, so two runs give the same batches, and a
run that starts at step N gives what an uninterrupted run gives from step N on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.decoding import decode_records
from tpu_input.device import to_batches
from tpu_input.hosts import Host
from tpu_input.images import decode_for_training
from tpu_input.reading import plain, records
from tpu_input.schema import Manifest

InputFn = Callable[..., tf.data.Dataset]


def make_train_input_fn(manifest: Manifest, config: InputConfig, split: str = "train", start_step: int = 0) -> InputFn:
    """Returns input_fn(params) -> endless Dataset of ({"image", "weight"}, label).

    "image" is [batch_size, image_size, image_size, 3] of config.dtype with its axes in the order of config.layout,
    "weight" [batch_size] float32 ones, label [batch_size] int32 in [0, number of classes).
    `params` needs "batch_size" and may hold TPUEstimator's "context": each host reads its own share.

    Args:
      manifest: The dataset.
      config: Size, dtype, layout, augmentation, seed.
      split: Which examples.
      start_step: Global step to begin at; what earlier steps took is skipped before it is decoded.

    Raises:
      ValueError: There is no such split.
    """
    manifest.split(split)

    input_config = config

    def input_fn(params: Mapping[str, Any], config: Any = None) -> tf.data.Dataset:
        host, batch_size = Host.from_params(params, config), params["batch_size"]
        start = start_step * host.batches_per_step * batch_size

        def crop(encoded: tf.Tensor, number: tf.Tensor, looked: bool) -> tf.Tensor:
            # Seeded by the example's number over all hosts.
            seed = tf.stack([tf.constant(input_config.seed, tf.int64), number * host.num_hosts + host.index])
            return decode_for_training(encoded, seed, input_config, manifest.record, looked)

        dataset = _shuffled_records(manifest, split, host, input_config, start)
        epoch_examples = host.num_examples(manifest.split(split).shards)
        dataset = decode_records(dataset, manifest, input_config, crop, epoch_examples)
        return to_batches(dataset, batch_size, input_config)

    return input_fn


def _shuffled_records(manifest: Manifest, split: str, host: Host, config: InputConfig, start: int) -> tf.data.Dataset:
    """Returns the host's endless (example number, (path, number in the shard, serialized)), from its `start`-th on."""
    shards = manifest.split(split).shards
    num_examples = host.num_examples(shards)
    if not num_examples:
        raise ValueError(
            f"split {split!r} of {manifest.path!r} has {manifest.split(split).num_examples} examples, "
            f"too few for {host.num_hosts} hosts; use fewer hosts"
        )

    @plain
    def epoch_records(epoch: tf.Tensor) -> tf.data.Dataset:
        seed = tf.stack([tf.constant(config.seed, tf.int64), epoch])
        order = tf.random.experimental.stateless_shuffle(tf.range(len(host.shards(shards))), seed)
        # Another epoch is another seed rather than a reshuffle, whose state a resumed run would not have.
        shuffle_seed = tf.random.stateless_uniform([], seed, maxval=2**31, dtype=tf.int64, minval=1)
        dataset = records(manifest, split, host, config, order)
        return dataset.shuffle(config.shuffle_records, shuffle_seed, reshuffle_each_iteration=False)

    first_epoch, seen = divmod(start, num_examples)
    epochs = tf.data.Dataset.range(first_epoch, 2**62)
    return epochs.flat_map(epoch_records).skip(seen).enumerate(start)
