"""The border between host and device: layouts, and what the device does first.

host:   examples ──to_batches()──▶ N of them, image axes in the order of config.layout
device: config.layout ──from_infeed()──▶ [N, H, W, C] float32, normalised
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.pipeline.decoding import within_budget
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.reading import plain, untuned

# Batches ready on the host, in steps: one that the device takes, one behind it. tf.data's own choice of a number grows
# with the memory it finds.
PREFETCHED_STEPS = 2
PARALLEL_LAYOUTS = 2  # batches; a layout takes a hundredth of what decoding takes


def to_batches(
    dataset: tf.data.Dataset, batch_size: int, config: InputConfig, host: Host, skipped_batches: int = 0
) -> tf.data.Dataset:
    """Returns full batches of `dataset`, prefetched, their images laid out for the device.

    Args:
      dataset: Elements ({"image": [H, W, C] or a tuple of config.echo such, …}, label), endless or a multiple of
        batch_size long.
      batch_size: Examples in a batch.
      config: For layout, echo and on_corrupt.
      host: For how many cores share a batch, which "auto" goes by.
      skipped_batches: Batches to leave out at the beginning.
    """
    dataset = dataset.batch(batch_size, drop_remainder=True)
    if config.on_corrupt == "skip":
        dataset = within_budget(dataset, config.max_corrupt)
    if config.echo > 1:
        dataset = dataset.flat_map(_echoes)
    dataset = dataset.skip(skipped_batches) if skipped_batches else dataset
    layout = resolved_layout(config.layout, batch_size // host.cores_per_batch)
    if layout != "NHWC":
        order = ["NHWC".index(axis) for axis in layout]
        dataset = dataset.map(
            plain(lambda features, label: (features | {"image": tf.transpose(features["image"], order)}, label)),
            num_parallel_calls=PARALLEL_LAYOUTS,
        )
    return untuned(dataset.prefetch(PREFETCHED_STEPS * host.batches_per_step))


@plain
def _echoes(features: dict[str, Any], label: tf.Tensor) -> tf.data.Dataset:
    """Returns a batch for each of the tuple "image", without a copy: an example comes once in each."""
    first, *others = (tf.data.Dataset.from_tensors((features | {"image": crops}, label)) for crops in features["image"])
    return functools.reduce(tf.data.Dataset.concatenate, others, first)


def from_infeed(images: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns what a network takes, from what an input_fn sent; runs on the device, the first thing of a model_fn.

    Args:
      images: 4-D, axes in the order of config.layout, config.dtype, in [0, 255].
      config: The one that the input_fn was made with.

    Returns:
      [N, H, W, 3] float32, (image - config.mean) / config.std.
    """
    layout = config.layout
    if layout == "auto":  # the third axis is channels only in HWCN, whose batch is above _HWNC_UP_TO
        layout = resolved_layout("auto", images.shape[3] if images.shape[2] == 3 else images.shape[2])
    if layout != "NHWC":
        images = tf.transpose(images, [layout.index(axis) for axis in "NHWC"])
    mean, std = tf.constant(config.mean, tf.float32), tf.constant(config.std, tf.float32)
    return (tf.cast(images, tf.float32) - mean) / std


_HWNC_UP_TO = 8  # MLPerf training v0.7, Google's resnet: transposed as HWCN if the batch of a core is above 8


def resolved_layout(layout: str, per_core_batch: int) -> str:
    """Returns the order of a batch's axes: `layout`, or what "auto" is for that many examples a core."""
    if layout != "auto":
        return layout
    return "HWCN" if per_core_batch > _HWNC_UP_TO else "HWNC"
