"""The first operations on the device: the layout of a batch is undone, and its images are normalized; TensorFlow-free.

config.layout, config.dtype ──from_infeed()──▶ [N, H, W, 3] float32, normalized
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tpu_input.config import InputConfig


def from_infeed(images: Any, config: InputConfig) -> Any:
    """Returns the images for a network from the images of an input_fn; runs on the device, first in a training step.

    It is a pure function of its arguments, for tf.function, a model_fn and jax.jit, also with arrays that lie on
    several devices. Only the library of `images` is used.

    Args:
      images: 4-D, axes in the order of config.layout, config.dtype, in [0, 255]: a tf.Tensor, a jax.Array or a NumPy
        array.
      config: The config that the input_fn was made with.

    Returns:
      [N, H, W, 3] float32, (image - config.mean) / config.std, of the same library.
    """
    layout: str = config.layout
    if layout == "auto":  # each of its layouts ends with another axis, and no batch of HWCN is of 3
        layout = "HWNC" if images.shape[3] == 3 else "HWCN"
    order = tuple(layout.index(axis) for axis in "NHWC")
    mean, std = np.asarray(config.mean, np.float32), np.asarray(config.std, np.float32)
    if hasattr(images, "astype"):  # NumPy and JAX; a tf.Tensor has no such method
        images = images if layout == "NHWC" else images.transpose(order)
        return (images.astype(np.float32) - mean) / std
    import tensorflow as tf

    images = images if layout == "NHWC" else tf.transpose(images, order)
    return (tf.cast(images, tf.float32) - tf.constant(mean)) / tf.constant(std)


_HWNC_UP_TO = 8  # MLPerf training v0.7, Google's resnet: transposed as HWCN if the batch of a core is above 8


def resolved_layout(layout: str, per_core_batch: int) -> str:
    """Returns the order of a batch's axes: `layout`, or what "auto" means for that many examples per core."""
    if layout != "auto":
        return layout
    return "HWCN" if per_core_batch > _HWNC_UP_TO else "HWNC"
