"""The border between host and device: layouts, and what the device does first.

host:   examples ──to_batches()──▶ N of them, image axes in the order of config.layout
device: config.layout ──from_infeed()──▶ [N, H, W, C] float32, normalised
"""

from __future__ import annotations

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.decoding import within_budget
from tpu_input.reading import plain


def to_batches(dataset: tf.data.Dataset, batch_size: int, config: InputConfig) -> tf.data.Dataset:
    """Returns full batches of `dataset`, prefetched, their images laid out for the device.

    Args:
      dataset: Elements ({"image": [H, W, C], …}, label), endless or a multiple of batch_size long.
      batch_size: Examples in a batch.
      config: For layout.
    """
    dataset = dataset.batch(batch_size, drop_remainder=True)
    if config.on_corrupt == "skip":
        dataset = within_budget(dataset, config.max_corrupt)
    if config.layout != "NHWC":
        order = ["NHWC".index(axis) for axis in config.layout]
        dataset = dataset.map(
            plain(lambda features, label: (features | {"image": tf.transpose(features["image"], order)}, label)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    return dataset.prefetch(tf.data.AUTOTUNE)


def from_infeed(images: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns what a network takes, from what an input_fn sent; runs on the device, the first thing of a model_fn.

    Args:
      images: 4-D, axes in the order of config.layout, config.dtype, in [0, 255].
      config: The one that the input_fn was made with.

    Returns:
      [N, H, W, 3] float32, (image - config.mean) / config.std.
    """
    if config.layout != "NHWC":
        images = tf.transpose(images, [config.layout.index(axis) for axis in "NHWC"])
    mean, std = tf.constant(config.mean, tf.float32), tf.constant(config.std, tf.float32)
    return (tf.cast(images, tf.float32) - mean) / std
