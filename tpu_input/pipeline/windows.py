"""Which part of an image training and evaluation look at.

[3] int32 shape (height, width, 3) ──random_window() or centre_window()──▶ [4] int32 (y, x, height, width)
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from tpu_input.config import InputConfig

TRIES = 10  # as torchvision
_BELOW_HALF = float(np.nextafter(np.float32(0.5), np.float32(0)))  # times n + 1, rounded down, it is n // 2


def random_window(shape: tf.Tensor, seed: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns [4] int32 (y, x, height, width) of a random part of an image.

    Its area is distributed evenly over config.crop_area, as in Szegedy et al. 2014, "Going deeper with convolutions",
    section 6; the logarithm of width / height evenly over that of config.crop_aspect; its place evenly over those
    within the image. What does not fit into the image is drawn again. After ten misses (a panorama, say) it is the
    largest centred part with an allowed aspect. These are the rules of torchvision.transforms.RandomResizedCrop.

    Args:
      shape: [3] int32, (height, width, channels) of the image.
      seed: [2] int64, from which nothing else is drawn.
      config: For crop_area and crop_aspect.
    """
    smallest, largest = config.crop_aspect
    ranges = np.array([config.crop_area, (math.log(smallest), math.log(largest)), (0, 1), (0, 1)], np.float32)
    low, high = np.repeat(ranges.T[:, :, None], TRIES, axis=2)
    # (share, log aspect, y, x) of all tries at once, for what takes time is the number of ops.
    tries = low + (high - low) * tf.random.stateless_uniform([4, TRIES], seed)
    shares, aspects, _, _ = tf.unstack(tries)
    sides = tf.cast(shape[:2], tf.float32)
    area = tf.reduce_prod(sides)
    # height² = area / aspect and width² = area × aspect in one test; half a pixel more is rounded down.
    height, width = tf.unstack(sides + 0.5)
    fits = shares * tf.exp(tf.abs(aspects - tf.math.log(width / height))) <= width * height / area
    chosen = tf.argmax(tf.cast(fits, tf.int8))
    one_fits = tf.gather(fits, chosen)
    share, aspect, place = tf.split(tf.gather(tries, chosen, axis=1), [1, 1, 2])
    size = tf.sqrt(share * area * tf.exp(aspect * [-1.0, 1.0]))
    size = tf.where(one_fits, size, sides[::-1] * [1 / smallest, largest])
    size = tf.clip_by_value(tf.round(size), 1.0, sides)
    begin = tf.floor(tf.where(one_fits, place, _BELOW_HALF) * (sides - size + 1))
    return tf.cast(tf.concat([begin, size], 0), tf.int32)


def centre_window(shape: tf.Tensor, share: float) -> tf.Tensor:
    """Returns [4] int32 (y, x, height, width) of the centred square with `share` of the shorter side."""
    side = tf.cast(tf.round(share * tf.cast(tf.reduce_min(shape[:2]), tf.float32)), tf.int32)
    side = tf.maximum(side, 1)
    return tf.concat([(shape[:2] - side) // 2, [side, side]], axis=0)
