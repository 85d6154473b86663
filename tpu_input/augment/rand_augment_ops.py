"""RandAugment's operations, as strong at each magnitude as those that its published results were obtained with.

    [height, width, 3] uint8, magnitude in [0, 30] ──▶ the same shape and dtype

The reference for RandAugment's operations, and for how strong each is at a magnitude, is tf-models-official 2.15
(official/vision/ops/augment.py). It continues the code in tensorflow/tpu that the paper's authors published: Cubuk et
al. 2019, "RandAugment: Practical automated data augmentation with a reduced search space". test_operations.py runs both
side by side. Some of what it does looks like a mistake and is kept, since published magnitudes were chosen with it:
contrast blends with a constant that depends on the number of pixels, where Pillow's blends with the mean; solarize's
threshold wraps around to 0 at magnitudes 10, 20 and 30; and posterize keeps more bits the larger the magnitude is, but
only one bit from magnitude 22.5 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

# (pixels, sign: -1.0 or 1.0 for operations with a direction, place: [y, x] in [0, 1) for cutout) -> pixels
Operation = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
# Weights of red, green and blue in a pixel's brightness: ITU-R BT.601, as in Pillow's mode "L".
GREY = (0.299, 0.587, 0.114)
MAX_MAGNITUDE = 30  # upper end of the range in tensorflow/tpu's EfficientNet: "[5, 30]"
LEVELS = 10  # magnitude at which an operation has its full strength
FILL = 128


def operations(magnitude: float, cutout_const: float, translate_const: float) -> dict[str, Operation]:
    """Returns operations by name: the 16 of the reference and the identity, all of which it chooses equally often.

    Args:
      magnitude: In [0, 30]; 10 is the full strength of most operations.
      cutout_const: Half the side of cutout's square at magnitude 10, in pixels.
      translate_const: Distance of a translation at magnitude 10, in pixels.
    """
    level = magnitude / LEVELS
    factor = 1.8 * level + 0.1
    shear, move, degrees = 0.3 * level, level * translate_const, 30 * level
    return {
        "identity": lambda pixels, sign, place: tf.identity(pixels),
        "autocontrast": lambda pixels, sign, place: autocontrast(pixels),
        "equalize": lambda pixels, sign, place: equalize(pixels),
        "invert": lambda pixels, sign, place: 255 - pixels,
        "rotate": lambda pixels, sign, place: rotate(pixels, sign * degrees),
        "posterize": lambda pixels, sign, place: posterize(pixels, int(4 * level)),
        # The reference computes the threshold as a uint8, hence modulo 256.
        "solarize": lambda pixels, sign, place: solarize(pixels, int(256 * level) % 256),
        "color": lambda pixels, sign, place: _blend(tf.image.rgb_to_grayscale(pixels), pixels, factor),
        "contrast": lambda pixels, sign, place: contrast(pixels, factor),
        "brightness": lambda pixels, sign, place: _blend(0.0, pixels, factor),
        "sharpness": lambda pixels, sign, place: sharpness(pixels, factor),
        "shear_x": lambda pixels, sign, place: _moved(pixels, 1, sign * shear, 0, 0, 1, 0),
        "shear_y": lambda pixels, sign, place: _moved(pixels, 1, 0, 0, sign * shear, 1, 0),
        "translate_x": lambda pixels, sign, place: _moved(pixels, 1, 0, sign * move, 0, 1, 0),
        "translate_y": lambda pixels, sign, place: _moved(pixels, 1, 0, 0, 0, 1, sign * move),
        "cutout": lambda pixels, sign, place: cutout(pixels, place, int(level * cutout_const)),
        "solarize_add": lambda pixels, sign, place: solarize_add(pixels, int(110 * level)),
    }


def autocontrast(pixels: tf.Tensor) -> tf.Tensor:
    """Returns each channel stretched from 0 to 255."""
    values = tf.cast(pixels, tf.float32)
    low, high = tf.reduce_min(values, [0, 1]), tf.reduce_max(values, [0, 1])
    scale = 255 / tf.maximum(high - low, 1)
    return tf.where(high > low, _to_uint8(values * scale - low * scale), pixels)


def equalize(pixels: tf.Tensor) -> tf.Tensor:
    """Returns each channel with its grey levels spread evenly, as Pillow's ImageOps.equalize."""
    levels = tf.cast(pixels, tf.int32) + 256 * tf.range(3)
    counts = tf.reshape(tf.math.bincount(tf.reshape(levels, [-1]), minlength=768, maxlength=768), [3, 256])
    brightest = tf.reduce_max(tf.where(counts > 0, tf.range(256), 0), axis=1)
    step = (tf.reduce_sum(counts, axis=1) - tf.gather(counts, brightest, batch_dims=1)) // 255
    spread = (step[:, None] // 2 + tf.cumsum(counts, axis=1, exclusive=True)) // tf.maximum(step, 1)[:, None]
    table = tf.where(step[:, None] > 0, tf.minimum(spread, 255), tf.range(256))
    return tf.gather(tf.cast(tf.reshape(table, [-1]), tf.uint8), levels)


def posterize(pixels: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns each value with only its highest `bits` bits kept; one bit if `bits` is 0 or more than 8."""
    # The reference shifts by 8 - bits as a uint8, and TensorFlow limits a shift to 7.
    shift = 8 - bits if 1 <= bits <= 8 else 7
    return tf.bitwise.bitwise_and(pixels, tf.constant(255 >> shift << shift, tf.uint8))


def solarize(pixels: tf.Tensor, threshold: int) -> tf.Tensor:
    """Returns the image with all values at or above the threshold inverted."""
    return tf.where(pixels < threshold, pixels, 255 - pixels)


def solarize_add(pixels: tf.Tensor, addition: int) -> tf.Tensor:
    """Returns the image with `addition` added to all values below 128."""
    brighter = tf.cast(tf.minimum(tf.cast(pixels, tf.int32) + addition, 255), tf.uint8)
    return tf.where(pixels < 128, brighter, pixels)


def contrast(pixels: tf.Tensor, factor: float) -> tf.Tensor:
    """Returns a blend with the reference's constant: number of pixels / 256, at most 255; 196 at 224 × 224."""
    height, width = pixels.shape[:2]
    return _blend(float(min(255, height * width // 256)), pixels, factor)


def sharpness(pixels: tf.Tensor, factor: float) -> tf.Tensor:
    """Returns a blend of an image and its smoothed copy; the border is not smoothed, as in Pillow's ImageEnhance."""
    values = tf.cast(pixels, tf.int32)
    rows = values[:-2] + values[1:-1] + values[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    inner = values[1:-1, 1:-1]
    # Pillow's SMOOTH weighs the centre 5 and each of its 8 neighbours 1.
    difference = tf.pad((around + 4 * inner) // 13 - inner, [[1, 1], [1, 1], [0, 0]])
    return _blend(values + difference, pixels, factor)


def cutout(pixels: tf.Tensor, place: tf.Tensor, half: int) -> tf.Tensor:
    """Returns the image with a grey square of side 2 × half pixels centred at `place`; DeVries and Taylor 2017."""
    height, width = pixels.shape[:2]
    middle = tf.floor(place * [height, width])
    rows, columns = tf.range(float(height)), tf.range(float(width))
    in_rows = tf.logical_and(rows >= middle[0] - half, rows < middle[0] + half)
    in_columns = tf.logical_and(columns >= middle[1] - half, columns < middle[1] + half)
    inside = tf.logical_and(in_rows[:, None], in_columns[None, :])
    return tf.where(inside[:, :, None], tf.constant(FILL, tf.uint8), pixels)


def rotate(pixels: tf.Tensor, degrees: tf.Tensor) -> tf.Tensor:
    """Returns the image rotated around its centre."""
    angle = degrees * (math.pi / 180)
    cos, sin = tf.cos(angle), tf.sin(angle)
    y, x = ((size - 1) / 2 for size in pixels.shape[:2])
    return _moved(pixels, cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


def _moved(pixels: tf.Tensor, *transform: tf.Tensor | float) -> tf.Tensor:
    """Returns an image whose pixel (x, y) is the source's nearest to (a x + b y + c, d x + e y + f).

    Beyond its borders the source is reflected, as in the reference (tensorflow/tpu's code fills with grey).
    """
    values = tf.stack([tf.cast(value, tf.float32) for value in (*transform, 0.0, 0.0)])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=pixels[None],
        transforms=values[None],
        output_shape=tf.shape(pixels)[:2],
        fill_value=0.0,
        interpolation="NEAREST",
        fill_mode="REFLECT",
    )[0]


def _blend(start: tf.Tensor | float, pixels: tf.Tensor, factor: float) -> tf.Tensor:
    """Returns the image for a factor of 1, `start` for 0, and an extrapolation beyond the image for more than 1."""
    start, values = tf.cast(start, tf.float32), tf.cast(pixels, tf.float32)
    return _to_uint8(start + factor * (values - start))


def _to_uint8(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.clip_by_value(values, 0.0, 255.0), tf.uint8)  # rounds down, as the reference
