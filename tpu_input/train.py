"""Endless training input:

    records in the training order, from `start_step` on (pipeline/order.py)
    ▶ fused decode and crop ▶ batch ▶ layout ▶ prefetch

The records come from their places in the shards (pipeline/lanes.py), from memory (pipeline/caching.py), or from a
tf.data service (service.py). Every random choice depends only on the seed, the epoch and the record. With
config.deterministic, two runs therefore give the same batches, and a run that starts at step N gives the same as an
uninterrupted run from step N on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpu_input.augment import find_augment
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.config import InputConfig, check_config
from tpu_input.dataset_format.records import Manifest
from tpu_input.datasets import DatasetLike, as_manifest
from tpu_input.pipeline.batches import PREFETCHED_STEPS, to_batches
from tpu_input.pipeline.caching import Share, cache_bytes, check_memory, shuffled
from tpu_input.pipeline.decoding import Fetch, decode_records, parallel_decodes
from tpu_input.pipeline.hosts import Host, check_params, check_steps
from tpu_input.pipeline.images import Resize, augment_crops, decode_for_training, decode_whole, for_images_of
from tpu_input.pipeline.lanes import lane_numbers, lane_records
from tpu_input.pipeline.order import Order, is_in_memory, turns
from tpu_input.pipeline.reading import finished, no_autograph, records
from tpu_input.service import served, visited_records
from tpu_input.storage.labels import check_labels

InputFn = Callable[..., tf.data.Dataset]


@checks_arguments
def make_train_input_fn(
    dataset: DatasetLike, config: InputConfig, split: str = "train", start_step: int = 0, end_step: int | None = None
) -> InputFn:
    """Returns input_fn(params) -> Dataset of ({"image", "weight"}, label), endless unless there is an end_step.

    "image" is [batch_size, image_size, image_size, 3] of config.dtype with its axes in the order of config.layout,
    "weight" is [batch_size] float32, 1 except for skipped corrupt records (0), and label is [batch_size] int32 in
    [0, number of classes). `params` needs "batch_size" and may have TPUEstimator's "context": each host reads its own
    share.

    Args:
      dataset: Manifest of the dataset, or its folder or URI.
      config: Size, dtype, layout, augmentation, seed.
      split: Name of the split.
      start_step: Global step to begin at; the examples of earlier steps are not read.
      end_step: Global step before which the dataset ends. Nothing is then read ahead for later steps, which a run that
        continues after an evaluation would read again. None is endless.

    Raises:
      ValueError: There is no such split, it has no examples, start_step is negative, or end_step is not after it; or
        config.sampling is "balanced" and the dataset has no labels in an index.
    """
    manifest = as_manifest(dataset)
    check_config(config)
    if not manifest.split(split).num_examples:
        raise ValueError(
            f"split {split!r} of {manifest.path!r} has no examples to train on; name shards that have some"
        )
    check_steps(start_step, end_step)
    if config.sampling == "balanced":
        check_labels(manifest)

    input_config = dataclasses.replace(config, augment=find_augment(config.augment))

    def input_fn(params: Mapping[str, Any], config: Any = None) -> tf.data.Dataset:
        batch_size = check_params(params)
        host = Host.from_params(params, config)
        step, echoed = divmod(start_step, input_config.echo)
        end = None if end_step is None else -(-end_step // input_config.echo)
        num_steps = None if end_step is None else end_step - start_step
        if input_config.service:
            return _served(manifest, split, host, input_config, batch_size, step, num_steps)
        crops = crops_of_decoded if input_config.cache == "decoded" else crops_of_records
        dataset = crops(manifest, split, host, input_config, batch_size, step, end)
        return to_batches(dataset, batch_size, input_config, host, echoed, num_steps)

    return input_fn


def crops_of_records(
    manifest: Manifest,
    split: str,
    host: Host,
    config: InputConfig,
    batch_size: int,
    step: int,
    end: int | None = None,
    resize: Resize | None = None,
) -> tf.data.Dataset:
    """Returns the host's ({"image", "weight"}, label) of the steps from `step` to before `end`; decodes for each crop.

    A split that is kept in memory is endless.
    """
    crops = functools.partial(_crops, manifest, split, config, resize)
    is_small = is_in_memory(manifest, split)
    if not is_small and not config.cache:
        order = _order(manifest, split, host, config, batch_size)
        return crops(lane_records(manifest, split, order, host.positions(batch_size), step, end))
    if not is_small:
        check_memory(cache_bytes(manifest, split, host, config), config)
    ranges, places = _plan_memory(manifest, split, host, config, batch_size, step, by_share=not is_small)
    in_memory = records(manifest, split, ranges).batch(sum(map(len, ranges)))  # one element, which is read once
    return in_memory.flat_map(no_autograph(lambda _, serialized: crops(places, lambda place: serialized[place])))


def _order(manifest: Manifest, split: str, host: Host, config: InputConfig, batch_size: int) -> Order:
    lanes = host.lanes(batch_size)
    return Order.of(manifest, split, lanes, config.seed, config.block_records, config.sampling)


def _plan_memory(
    manifest: Manifest, split: str, host: Host, config: InputConfig, batch_size: int, step: int, by_share: bool
) -> tuple[list[range], tf.data.Dataset]:
    """Returns (ranges of the records that a host keeps, dataset of (number over all epochs, place) in order).

    With `by_share`, a host keeps a share of its own, unless the order needs all records on every host.
    """
    num_examples, positions = manifest.split(split).num_examples, host.positions(batch_size)
    if by_share and config.sampling == "equal":
        share = Share(num_examples, host.index, host.num_hosts)
        return [share.exclusive, share.dealt], shuffled(share, config.seed, step * len(positions))
    order = _order(manifest, split, host, config, batch_size)
    return [range(num_examples)], lane_numbers(order, positions, step)


def _crops(
    manifest: Manifest,
    split: str,
    config: InputConfig,
    resize: Resize | None,
    dataset: tf.data.Dataset,
    fetch: Fetch | None = None,
) -> tf.data.Dataset:
    """Returns ({"image", "weight"}, label) for each (number, record, or its place for `fetch`)."""
    config = for_images_of(config, manifest.split(split))

    def crop(encoded: tf.Tensor, number: tf.Tensor, looked: bool) -> tf.Tensor:
        seed = _seed(number, config)
        return decode_for_training(encoded, seed, config, manifest.record, looked, resize, augmented=False)

    def augment(crops: Any, number: tf.Tensor) -> Any:
        return augment_crops(crops, _seed(number, config), config)

    one = tf.zeros([config.image_size, config.image_size, 3], config.dtype)
    black = one if config.echo == 1 else (one,) * config.echo
    return decode_records(dataset, manifest, split, config, crop, black, fetch, augment)


def crops_of_decoded(
    manifest: Manifest,
    split: str,
    host: Host,
    config: InputConfig,
    batch_size: int,
    step: int,
    end: int | None = None,
    resize: Resize | None = None,
) -> tf.data.Dataset:
    """Returns the same as crops_of_records, but from images that are decoded once and kept in memory."""
    check_memory(cache_bytes(manifest, split, host, config), config)
    ranges, places = _plan_memory(manifest, split, host, config, batch_size, step, by_share=True)
    epoch_numbers = manifest.split(split).num_examples * turns(manifest, split, config.sampling)

    def decode(encoded: tf.Tensor, number: tf.Tensor, looked: bool) -> tf.Tensor:
        return decode_whole(encoded, manifest.record)

    @no_autograph
    def serialized(features: dict[str, tf.Tensor], label: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        return features | {"image": tf.io.serialize_tensor(features["image"])}, label

    @no_autograph
    def crops(features: dict[str, tf.Tensor], labels: tf.Tensor) -> tf.data.Dataset:
        @no_autograph
        def crop(number: tf.Tensor, place: tf.Tensor) -> tuple[dict[str, Any], tf.Tensor]:
            example: dict[str, Any] = {name: column[place] for name, column in features.items()}
            image = tf.ensure_shape(tf.io.parse_tensor(example["image"], tf.uint8), [None, None, 3])
            image = decode_for_training(image, _seed(number, config), config, manifest.record, resize=resize)
            if "epoch" in example:
                example["epoch"] = number // epoch_numbers
            return example | {"image": image}, labels[place]

        return places.map(crop, num_parallel_calls=parallel_decodes(config.service), deterministic=config.deterministic)

    dataset = records(manifest, split, ranges)
    in_order = dataclasses.replace(config, deterministic=True)
    dataset = decode_records(dataset, manifest, split, in_order, decode, tf.zeros([1, 1, 3], tf.uint8))
    dataset = dataset.map(serialized, num_parallel_calls=parallel_decodes(config.service))
    return dataset.batch(sum(map(len, ranges))).flat_map(crops)


def _served(
    manifest: Manifest,
    split: str,
    host: Host,
    config: InputConfig,
    batch_size: int,
    step: int,
    num_steps: int | None,
) -> tf.data.Dataset:
    """Returns batches that the workers of a tf.data service make, each for whichever host asks first."""
    # Service workers are shared by all hosts, so the dataset must not depend on the host.
    any_host = Host(cores_per_batch=host.cores_per_batch)
    order = _order(manifest, split, host, config, batch_size)
    visited = visited_records(manifest, split, order, step, batch_size)
    dataset = _crops(manifest, split, config, None, visited)
    batches = to_batches(dataset, batch_size, config, any_host)
    batches = served(batches, config, manifest.path, manifest.fingerprint, split, batch_size, host.num_hosts, step)
    batches = batches if num_steps is None else batches.take(num_steps * host.batches_per_step)
    return finished(batches.prefetch(PREFETCHED_STEPS * host.batches_per_step))


def _seed(number: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns the [2] int64 seed of an example, from its number over all epochs."""
    return tf.stack([tf.constant(config.seed, tf.int64), number])
