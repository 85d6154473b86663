"""Endless training input:

    shuffled records, from `start_step` on (pipeline/shuffling.py; with a tf.data service, service.py)
    ▶ fused decode and crop ▶ batch ▶ layout ▶ prefetch

Every random choice depends only on (seed, epoch) or (seed, example number). With config.deterministic, two runs
therefore give the same batches, and a run that starts at step N gives the same as an uninterrupted run from step N on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpu_input.config import InputConfig, check_config
from tpu_input.dataset_format.records import Manifest
from tpu_input.datasets import DatasetLike, as_manifest
from tpu_input.pipeline.caching import cache_bytes, check_memory
from tpu_input.pipeline.decoding import PARALLEL_DECODES, decode_records
from tpu_input.pipeline.device import PREFETCHED_STEPS, to_batches
from tpu_input.pipeline.hosts import Host, check_params
from tpu_input.pipeline.images import decode_for_training, decode_whole
from tpu_input.pipeline.reading import plain, records
from tpu_input.pipeline.shuffling import shuffled_kept, shuffled_records
from tpu_input.service import served, visited_records

InputFn = Callable[..., tf.data.Dataset]


def make_train_input_fn(
    dataset: DatasetLike, config: InputConfig, split: str = "train", start_step: int = 0
) -> InputFn:
    """Returns input_fn(params) -> endless Dataset of ({"image", "weight"}, label).

    "image" is [batch_size, image_size, image_size, 3] of config.dtype with its axes in the order of config.layout,
    "weight" is [batch_size] float32, 1 except for skipped corrupt records (0), and label is [batch_size] int32 in
    [0, number of classes). `params` needs "batch_size" and may have TPUEstimator's "context": each host reads its own
    share.

    Args:
      dataset: Manifest of the dataset, or its folder or URI.
      config: Size, dtype, layout, augmentation, seed.
      split: Name of the split.
      start_step: Global step to begin at; the examples of earlier steps are skipped without decoding them.

    Raises:
      ValueError: There is no such split.
    """
    manifest = as_manifest(dataset)
    check_config(config)
    manifest.split(split)

    input_config = config

    def input_fn(params: Mapping[str, Any], config: Any = None) -> tf.data.Dataset:
        batch_size = check_params(params)
        host = Host.from_params(params, config)
        first_batch = start_step * host.batches_per_step
        start, echoes = first_batch // input_config.echo * batch_size, first_batch % input_config.echo
        served_to = host
        if input_config.service:
            start, echoes = start * host.num_hosts, 0
            # Service workers are shared by all hosts, so the dataset must not depend on the host.
            host = Host(cores_per_batch=host.cores_per_batch)
        crops = crops_of_decoded if input_config.cache == "decoded" else crops_of_records
        dataset = crops(manifest, split, host, input_config, start)
        batches = to_batches(dataset, batch_size, input_config, host, echoes)
        if input_config.service:
            batches = served(batches, input_config, manifest.path, manifest.fingerprint, split, batch_size, host, start)
            batches = batches.prefetch(PREFETCHED_STEPS * served_to.batches_per_step)
        return batches

    return input_fn


def crops_of_records(manifest: Manifest, split: str, host: Host, config: InputConfig, start: int) -> tf.data.Dataset:
    """Returns the host's endless ({"image", "weight"}, label) from example `start` on; decodes each record anew."""

    def crop(encoded: tf.Tensor, number: tf.Tensor, looked: bool) -> tf.Tensor:
        return decode_for_training(encoded, _seed(number, host, config), config, manifest.record, looked)

    one = tf.zeros([config.image_size, config.image_size, 3], config.dtype)
    black = one if config.echo == 1 else (one,) * config.echo
    num_examples = _num_examples(manifest, split, host)
    if config.cache:
        check_memory(cache_bytes(manifest, split, host, config), config)
        dataset = shuffled_kept(records(manifest, split, host, config, order=None), num_examples, config, start)
    elif config.service:
        dataset = visited_records(manifest, split, config, start)
    else:
        dataset = shuffled_records(manifest, split, host, config, start)
    return decode_records(dataset, manifest, config, crop, num_examples, black)


def crops_of_decoded(manifest: Manifest, split: str, host: Host, config: InputConfig, start: int) -> tf.data.Dataset:
    """Returns the same as crops_of_records, but from images that are decoded once and cached."""
    check_memory(cache_bytes(manifest, split, host, config), config)
    num_examples = _num_examples(manifest, split, host)

    def whole(encoded: tf.Tensor, number: tf.Tensor, looked: bool) -> tf.Tensor:
        return decode_whole(encoded, manifest.record)

    @plain
    def crop(number: tf.Tensor, example: tuple[dict[str, tf.Tensor], tf.Tensor]) -> tuple[dict[str, tf.Tensor], Any]:
        features, label = example
        image = decode_for_training(features["image"], _seed(number, host, config), config, manifest.record)
        if "epoch" in features:
            features = features | {"epoch": number // num_examples}
        return features | {"image": image}, label

    dataset = records(manifest, split, host, config, order=None).enumerate()
    in_order = dataclasses.replace(config, deterministic=True)
    dataset = decode_records(dataset, manifest, in_order, whole, num_examples, tf.zeros([1, 1, 3], tf.uint8))
    dataset = shuffled_kept(dataset, num_examples, config, start)
    return dataset.map(crop, num_parallel_calls=PARALLEL_DECODES, deterministic=config.deterministic)


def _seed(number: tf.Tensor, host: Host, config: InputConfig) -> tf.Tensor:
    """Returns the [2] int64 seed of an example, from its number over all hosts."""
    return tf.stack([tf.constant(config.seed, tf.int64), number * host.num_hosts + host.index])


def _num_examples(manifest: Manifest, split: str, host: Host) -> int:
    num_examples = host.num_examples(manifest.split(split).shards)
    if not num_examples:
        raise ValueError(
            f"split {split!r} of {manifest.path!r} has {manifest.split(split).num_examples} examples, "
            f"too few for {host.num_hosts} hosts; use fewer hosts"
        )
    return num_examples
