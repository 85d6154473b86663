"""Augmentation: on the host, a function (image, seed) -> image for InputConfig.augment; on the device, of batches.

    [height, width, 3] in [0, 255] ──color_jitter() or rand_augment()──▶ the same shape and dtype     on the host
    [N, H, W, 3] float, [N, classes] ──mixup() or cutmix()──▶ the same shapes                         on the device

Every choice is stateless: the same seed, the same result. Functions of this module may share a seed: each draws from
seeds of its own, which seed_for() makes of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tpu_input.operations import GREY, OPERATIONS, Operation
from tpu_input.seeds import seed_for

Augment = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def color_jitter(brightness: float = 0.4, contrast: float = 0.4, saturation: float = 0.4) -> Augment:
    """Returns a function that scales brightness, contrast and saturation, each by a factor in 1 ± its strength.

    Howard 2013, "Some Improvements on Deep Convolutional Neural Network Based Image Classification", section 2.2.
    """
    strengths = (brightness, contrast, saturation)
    if not all(0 <= strength <= 1 for strength in strengths):
        raise ValueError(f"brightness, contrast and saturation must be in [0, 1], got {strengths!r}")

    def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        factors = tf.random.stateless_uniform([3], seed_for(seed, "color_jitter"), -1.0, 1.0) * strengths + 1.0
        bright, contrasted, saturated = factors[0], factors[1], factors[2]
        pixels = tf.cast(image, tf.float32)
        # All three are linear: one product with a 3 x 3 matrix takes 0.2 ms, one after the other 1.2 ms.
        to_grey = tf.tile(tf.constant(GREY)[:, None], [1, 3])
        matrix = bright * contrasted * (saturated * tf.eye(3) + (1 - saturated) * to_grey)
        mean = tf.reduce_sum(tf.reduce_mean(pixels, [0, 1]) * GREY)
        mixed = tf.reshape(tf.matmul(tf.reshape(pixels, [-1, 3]), matrix), tf.shape(pixels))
        return _as(image, mixed + bright * (1 - contrasted) * mean)

    return augment


def rand_augment(num_layers: int = 2, magnitude: float = 9) -> Augment:
    """Returns a function that applies num_layers of 14 operations at random, each at magnitude / 10 of its strength.

    Cubuk et al. 2019, "RandAugment: Practical automated data augmentation with a reduced search space", section 3.
    """
    if num_layers < 1 or not 0 <= magnitude <= 10:
        raise ValueError(f"needs num_layers >= 1 and magnitude in [0, 10], got {num_layers!r} and {magnitude!r}")
    level = magnitude / 10

    def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        pixels = tf.cast(image, tf.float32)
        for layer in range(num_layers):
            choice = tf.random.stateless_uniform([2], seed_for(seed, f"rand_augment {layer}"))
            sign = tf.where(choice[1] < 0.5, -1.0, 1.0)
            operations = [_bound(operation, pixels, level * sign) for operation in OPERATIONS.values()]
            pixels = tf.switch_case(tf.cast(choice[0] * len(operations), tf.int32), operations)
        return _as(image, pixels)

    return augment


def mixup(images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, alpha: float = 0.2) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each image mixed with the batch's reversed; for a model_fn, after from_infeed().

    Zhang et al. 2017, "mixup: Beyond Empirical Risk Minimization"; one share a batch, as in the authors' code.

    Args:
      images: [N, H, W, 3], floating point.
      labels: [N, classes], one-hot or smoothed, of the same dtype.
      seed: [2] integers, e.g. the run's seed and the global step.
      alpha: Of the Beta(alpha, alpha) that the share is drawn from.
    """
    share = tf.cast(_beta(alpha, seed_for(seed, "mixup")), images.dtype)
    return share * images + (1 - share) * images[::-1], share * labels + (1 - share) * labels[::-1]


def cutmix(images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, alpha: float = 1.0) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each image with a box of the batch's reversed in it, labels mixed by area; arguments as of mixup().

    Yun et al. 2019, "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features".
    """
    height, width = images.shape[1], images.shape[2]
    side = tf.sqrt(1 - _beta(alpha, seed_for(seed, "cutmix size")))
    centre = tf.random.stateless_uniform([2], seed_for(seed, "cutmix centre")) * [height, width]
    half = side * [height / 2, width / 2]
    low, high = tf.round(centre - half), tf.round(centre + half)
    rows, columns = tf.range(float(height)), tf.range(float(width))
    in_rows = tf.logical_and(rows >= low[0], rows < high[0])
    in_columns = tf.logical_and(columns >= low[1], columns < high[1])
    inside = tf.cast(tf.logical_and(in_rows[:, None], in_columns[None, :]), images.dtype)[None, :, :, None]
    share = 1 - tf.cast(tf.reduce_mean(inside), labels.dtype)
    return images * (1 - inside) + images[::-1] * inside, share * labels + (1 - share) * labels[::-1]


def _beta(alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns a scalar of Beta(alpha, alpha): one of its 4,096-quantiles, since XLA has no stateless_gamma."""
    if alpha <= 0:
        raise ValueError(f"alpha must be positive, got {alpha!r}")
    draws = np.sort(np.random.default_rng(0).beta(alpha, alpha, 4096 * 63))  # the same in every process
    quantiles = tf.constant(draws[31::63], tf.float32)
    return tf.gather(quantiles, tf.random.stateless_uniform([], seed, 0, 4096, tf.int32))


def _as(image: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    pixels = tf.clip_by_value(pixels, 0.0, 255.0)
    return tf.cast(tf.round(pixels) if image.dtype.is_integer else pixels, image.dtype)


def _bound(operation: Operation, pixels: tf.Tensor, level: tf.Tensor) -> Callable[[], tf.Tensor]:
    return lambda: tf.ensure_shape(operation(pixels, level), pixels.shape)
