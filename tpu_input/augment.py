"""Image augmentation: on the host per image, for InputConfig.augment; on the device per batch.

    [height, width, 3] in [0, 255] ──color_jitter(), rand_augment() or auto_augment()──▶ the same     on the host
    [N, H, W, 3] float, [N, classes] ──mixup() or cutmix()──▶ the same shapes                         on the device

All random numbers are stateless: the same seed gives the same result. Functions of this module may be given the same
seed, because each of them derives its own seeds from it with seed_for().

The reference for RandAugment's operations, and for how strong each is at a magnitude, is tf-models-official 2.15
(official/vision/ops/augment.py). It continues the code in tensorflow/tpu that the paper's authors published: Cubuk et
al. 2019, "RandAugment: Practical automated data augmentation with a reduced search space". test_operations.py runs both
side by side. Some of what it does looks like a mistake and is kept, since published magnitudes were chosen with it:
contrast blends with a constant that depends on the number of pixels, where Pillow's blends with the mean; solarize's
threshold wraps around to 0 at magnitudes 10, 20 and 30; and posterize keeps more bits the larger the magnitude is, but
only one bit from magnitude 22.5 on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tpu_input.config import parse_augment
from tpu_input.pipeline.seeds import seed_for

Augment = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# (pixels, sign: -1.0 or 1.0 for operations with a direction, place: [y, x] in [0, 1) for cutout) -> pixels
Operation = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
# Weights of red, green and blue in a pixel's brightness: ITU-R BT.601, as in Pillow's mode "L".
GREY = (0.299, 0.587, 0.114)
MAX_MAGNITUDE = 30  # upper end of the range in tensorflow/tpu's EfficientNet: "[5, 30]"
LEVELS = 10  # magnitude at which an operation has its full strength
FILL = 128


def find_augment(augment: str | Augment | None) -> Augment | None:
    """Returns the function of InputConfig.augment, which may be a name with strengths.

    Raises:
      ValueError: A strength is out of its range.
    """
    if not isinstance(augment, str):
        return augment
    name, strengths = parse_augment(augment)
    if name == "none":
        return None
    if name == "color_jitter":
        return color_jitter(*strengths)
    if name == "auto":
        return auto_augment()
    if not strengths:
        return rand_augment()
    if not strengths[0].is_integer():
        raise ValueError(f"augment {augment!r}: the number of layers must be an integer")
    return rand_augment(int(strengths[0]), *strengths[1:])


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
        # All three are linear: a product with one 3 x 3 matrix takes 0.2 ms, applying them one by one 1.2 ms.
        to_grey = tf.tile(tf.constant(GREY)[:, None], [1, 3])
        matrix = bright * contrasted * (saturated * tf.eye(3) + (1 - saturated) * to_grey)
        mean = tf.reduce_sum(tf.reduce_mean(pixels, [0, 1]) * GREY)
        mixed = tf.reshape(tf.matmul(tf.reshape(pixels, [-1, 3]), matrix), tf.shape(pixels))
        return _as(image, mixed + bright * (1 - contrasted) * mean)

    return augment


def rand_augment(
    num_layers: int = 2,
    magnitude: float = 9,
    cutout_const: float | None = None,
    translate_const: float | None = None,
) -> Augment:
    """Returns a function that applies num_layers of 17 operations at random, each with the same magnitude.

    Cubuk et al. 2019, "RandAugment: Practical automated data augmentation with a reduced search space". num_layers and
    magnitude have the same meaning as in tf-models-official and tensorflow/tpu, so that published values can be used:
    (2, 9) for ResNet-50, (2, 17) and (2, 28) for EfficientNet-B5 and B7 (section 4.3). See tpu_input.augment.

    Args:
      num_layers: N of the paper, at least 1.
      magnitude: M of the paper, in [0, 30].
      cutout_const: Half the side of cutout's square at magnitude 10, in pixels. Default: the reference's 40, on images
        whose shorter side is below 224 pixels reduced in proportion; else the square would cover all of a small image.
      translate_const: Pixels of a translation at magnitude 10. Default: the reference's 100, reduced likewise.

    Raises:
      ValueError: num_layers or magnitude is out of its range.
    """
    if num_layers < 1 or not 0 <= magnitude <= MAX_MAGNITUDE:
        raise ValueError(
            f"rand_augment needs num_layers >= 1 and magnitude in [0, {MAX_MAGNITUDE}], "
            f"got {num_layers!r} and {magnitude!r}"
        )

    def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        share = min(1.0, min(image.shape[:2]) / 224)
        known = operations(
            magnitude,
            40 * share if cutout_const is None else cutout_const,
            100 * share if translate_const is None else translate_const,
        )
        pixels = _to_uint8(image)
        layers = tf.random.stateless_uniform([num_layers, 4], seed_for(seed, "rand_augment"))
        for layer in range(num_layers):
            choice, sign = layers[layer, 0], tf.where(layers[layer, 1] < 0.5, -1.0, 1.0)
            branches = [_bound(operation, pixels, sign, layers[layer, 2:]) for operation in known.values()]
            pixels = tf.switch_case(tf.cast(choice * len(known), tf.int32), branches)
        return tf.cast(pixels, image.dtype)

    return augment


# A line is a sub-policy: operation, probability, magnitude; operation, probability, magnitude.
_POLICY = """
equalize     0.8  1   shear_y      0.8  4
color        0.4  9   equalize     0.6  3
color        0.4  1   rotate       0.6  8
solarize     0.8  3   equalize     0.4  7
solarize     0.4  2   solarize     0.6  2
color        0.2  0   equalize     0.8  8
equalize     0.4  8   solarize_add 0.8  3
shear_x      0.2  9   rotate       0.6  8
color        0.6  1   equalize     1.0  2
invert       0.4  9   rotate       0.6  0
equalize     1.0  9   shear_y      0.6  3
color        0.4  7   equalize     0.6  0
posterize    0.4  6   autocontrast 0.4  7
solarize     0.6  8   color        0.6  9
solarize     0.2  4   rotate       0.8  9
rotate       1.0  7   translate_y  0.8  9
shear_x      0.0  0   solarize     0.8  4
shear_y      0.8  0   color        0.6  4
color        1.0  0   rotate       0.6  2
equalize     0.8  4   equalize     0.0  8
equalize     1.0  4   autocontrast 0.6  2
shear_y      0.4  7   solarize_add 0.6  7
posterize    0.8  2   solarize     0.6 10
solarize     0.6  8   equalize     0.6  1
color        0.8  6   rotate       0.4  5
"""


def auto_augment() -> Augment:
    """Returns a function that applies one of AutoAugment's 25 sub-policies for ImageNet, all equally often.

    Cubuk et al. 2018, "AutoAugment: Learning Augmentation Policies from Data". A sub-policy is two operations, each
    with a probability and a magnitude. They are the policy "v0" of tf-models-official and of tensorflow/tpu's
    EfficientNet, with the operations of rand_augment(). A translation is by 250 pixels at magnitude 10, on images
    whose shorter side is below 224 pixels reduced in proportion.
    """

    def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        translate = 250 * min(1.0, min(image.shape[:2]) / 224)
        pixels = _to_uint8(image)
        choice = tf.random.stateless_uniform([], seed_for(seed, "auto_augment policy"))
        drawn = tf.random.stateless_uniform([2, 2], seed_for(seed, "auto_augment"))
        lines = [line.split() for line in _POLICY.strip().splitlines()]
        branches = [functools.partial(_sub_policy, line, pixels, drawn, translate) for line in lines]
        return tf.cast(tf.switch_case(tf.cast(choice * len(lines), tf.int32), branches), image.dtype)

    return augment


def _sub_policy(line: Sequence[str], pixels: tf.Tensor, drawn: tf.Tensor, translate: float) -> tf.Tensor:
    """Returns an image after the operations of a line of _POLICY.

    Args:
      line: Words of the line.
      pixels: [height, width, 3] uint8.
      drawn: [2, 2] float32 in [0, 1): for each operation, what decides on it, and on its direction.
      translate: Pixels of a translation at magnitude 10.
    """
    for number, (name, probability, magnitude) in enumerate((line[:3], line[3:])):
        sign = tf.where(drawn[number, 1] < 0.5, -1.0, 1.0)
        operation = operations(float(magnitude), 0, translate)[name]
        made = _bound(operation, pixels, sign, tf.zeros([2]))
        pixels = tf.cond(drawn[number, 0] < float(probability), made, functools.partial(tf.identity, pixels))
    return pixels


def mixup(
    images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, alpha: float = 0.2, weight: tf.Tensor | None = None
) -> tuple[tf.Tensor, ...]:
    """Returns (images, labels) mixed with the same batch in reverse order, and the mixed weight if weight is given.

    To be called in a model_fn, after from_infeed(). Zhang et al. 2017, "mixup: Beyond Empirical Risk Minimization". One
    mixing share is drawn per batch, as in the authors' code. With the weights, the sum of weight × cross-entropy equals
    of the unmixed labels, each weighted by its share: an example of weight 0 contributes to no label.

    Args:
      images: [N, H, W, C], floating point.
      labels: [N, classes], floating point: one-hot or smoothed.
      seed: [2] integers, e.g. the run's seed and the global step.
      alpha: Parameter of the distribution Beta(alpha, alpha) that the share is drawn from.
      weight: [N], floating point, as in the features; None if all examples count.

    Raises:
      ValueError: Images are integers, or labels are integers or class numbers, which cannot be mixed.
    """
    images, labels = _batch(images, labels)
    share = _beta(alpha, seed_for(seed, "mixup"))
    mixed = tf.cast(share, images.dtype)
    return mixed * images + (1 - mixed) * images[::-1], *_mixed_labels(labels, weight, share)


def cutmix(
    images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, alpha: float = 1.0, weight: tf.Tensor | None = None
) -> tuple[tf.Tensor, ...]:
    """Returns images with a box pasted in from the same batch in reverse order, and labels mixed by area.

    Arguments, errors and the weight are as in mixup().

    Yun et al. 2019, "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features".
    """
    images, labels = _batch(images, labels)
    height, width = images.shape[1], images.shape[2]
    side = tf.sqrt(1 - _beta(alpha, seed_for(seed, "cutmix size")))
    centre = tf.random.stateless_uniform([2], seed_for(seed, "cutmix centre")) * [height, width]
    half = side * [height / 2, width / 2]
    low, high = tf.round(centre - half), tf.round(centre + half)
    rows, columns = tf.range(float(height)), tf.range(float(width))
    in_rows = tf.logical_and(rows >= low[0], rows < high[0])
    in_columns = tf.logical_and(columns >= low[1], columns < high[1])
    inside = tf.cast(tf.logical_and(in_rows[:, None], in_columns[None, :]), images.dtype)[None, :, :, None]
    share = 1 - tf.reduce_mean(tf.cast(inside, tf.float32))
    return images * (1 - inside) + images[::-1] * inside, *_mixed_labels(labels, weight, share)


def _batch(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    images, labels = tf.convert_to_tensor(images), tf.convert_to_tensor(labels)
    if not images.dtype.is_floating or images.shape.rank != 4:
        raise ValueError(
            f"images must be floating point, [N, H, W, C], got {images.dtype.name} {images.shape}; "
            "mix the images that from_infeed() returns"
        )
    if not labels.dtype.is_floating or labels.shape.rank != 2 or labels.shape[1] == 1:
        raise ValueError(
            f"labels must be floating point, [N, classes], got {labels.dtype.name} {labels.shape}; "
            "integer labels cannot be mixed; use tf.one_hot(labels, classes)"
        )
    return images, labels


def _mixed_labels(labels: tf.Tensor, weight: tf.Tensor | None, share: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns the labels mixed by share; with a weight, labels mixed by their share of the weight, and the weight."""
    of_labels = tf.cast(share, labels.dtype)
    if weight is None:
        return (of_labels * labels + (1 - of_labels) * labels[::-1],)
    of_weight = tf.cast(share, weight.dtype)
    first, second = of_weight * weight, (1 - of_weight) * weight[::-1]
    own = tf.where(first + second > 0, tf.math.divide_no_nan(first, first + second), of_weight)
    own = tf.cast(own, labels.dtype)[:, None]
    return own * labels + (1 - own) * labels[::-1], first + second


def _beta(alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns a scalar drawn from Beta(alpha, alpha): one of 4,096 quantiles, because XLA has no stateless_gamma."""
    if alpha <= 0:
        raise ValueError(f"alpha must be positive, got {alpha!r}")
    draws = np.sort(np.random.default_rng(0).beta(alpha, alpha, 4096 * 63))  # the same in every process
    quantiles = tf.constant(draws[31::63], tf.float32)
    return tf.gather(quantiles, tf.random.stateless_uniform([], seed, 0, 4096, tf.int32))


def _as(image: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    pixels = tf.clip_by_value(pixels, 0.0, 255.0)
    return tf.cast(tf.round(pixels) if image.dtype.is_integer else pixels, image.dtype)


def _to_uint8(image: tf.Tensor) -> tf.Tensor:
    return tf.cast(image if image.dtype.is_integer else tf.round(tf.clip_by_value(image, 0, 255)), tf.uint8)


def _bound(operation: Operation, *arguments: tf.Tensor) -> Callable[[], tf.Tensor]:
    return lambda: tf.ensure_shape(operation(*arguments), arguments[0].shape)


def operations(magnitude: float, cutout_const: float, translate_const: float) -> dict[str, Operation]:
    """Returns operations by name: the 16 of the reference and the identity; it chooses each equally often.

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
        "autocontrast": lambda pixels, sign, place: _autocontrast(pixels),
        "equalize": lambda pixels, sign, place: _equalize(pixels),
        "invert": lambda pixels, sign, place: 255 - pixels,
        "rotate": lambda pixels, sign, place: _rotate(pixels, sign * degrees),
        "posterize": lambda pixels, sign, place: _posterize(pixels, int(4 * level)),
        # The reference computes the threshold as a uint8, hence modulo 256.
        "solarize": lambda pixels, sign, place: _solarize(pixels, int(256 * level) % 256),
        "color": lambda pixels, sign, place: _blend(tf.image.rgb_to_grayscale(pixels), pixels, factor),
        "contrast": lambda pixels, sign, place: _contrast(pixels, factor),
        "brightness": lambda pixels, sign, place: _blend(0.0, pixels, factor),
        "sharpness": lambda pixels, sign, place: _sharpness(pixels, factor),
        "shear_x": lambda pixels, sign, place: _moved(pixels, 1, sign * shear, 0, 0, 1, 0),
        "shear_y": lambda pixels, sign, place: _moved(pixels, 1, 0, 0, sign * shear, 1, 0),
        "translate_x": lambda pixels, sign, place: _moved(pixels, 1, 0, sign * move, 0, 1, 0),
        "translate_y": lambda pixels, sign, place: _moved(pixels, 1, 0, 0, 0, 1, sign * move),
        "cutout": lambda pixels, sign, place: _cutout(pixels, place, int(level * cutout_const)),
        "solarize_add": lambda pixels, sign, place: _solarize_add(pixels, int(110 * level)),
    }


def _autocontrast(pixels: tf.Tensor) -> tf.Tensor:
    """Returns each channel stretched from 0 to 255."""
    values = tf.cast(pixels, tf.float32)
    low, high = tf.reduce_min(values, [0, 1]), tf.reduce_max(values, [0, 1])
    scale = 255 / tf.maximum(high - low, 1)
    return tf.where(high > low, _rounded_down(values * scale - low * scale), pixels)


def _equalize(pixels: tf.Tensor) -> tf.Tensor:
    """Returns each channel with its gray levels spread evenly, as Pillow's ImageOps.equalize."""
    levels = tf.cast(pixels, tf.int32) + 256 * tf.range(3)
    counts = tf.reshape(tf.math.bincount(tf.reshape(levels, [-1]), minlength=768, maxlength=768), [3, 256])
    brightest = tf.reduce_max(tf.where(counts > 0, tf.range(256), 0), axis=1)
    step = (tf.reduce_sum(counts, axis=1) - tf.gather(counts, brightest, batch_dims=1)) // 255
    spread = (step[:, None] // 2 + tf.cumsum(counts, axis=1, exclusive=True)) // tf.maximum(step, 1)[:, None]
    table = tf.where(step[:, None] > 0, tf.minimum(spread, 255), tf.range(256))
    return tf.gather(tf.cast(tf.reshape(table, [-1]), tf.uint8), levels)


def _posterize(pixels: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns each value with only its highest `bits` bits kept; one bit if `bits` is 0 or more than 8."""
    # The reference shifts by 8 - bits as a uint8, and TensorFlow limits a shift to 7.
    shift = 8 - bits if 1 <= bits <= 8 else 7
    return tf.bitwise.bitwise_and(pixels, tf.constant(255 >> shift << shift, tf.uint8))


def _solarize(pixels: tf.Tensor, threshold: int) -> tf.Tensor:
    """Returns the image with all values at or above the threshold inverted."""
    return tf.where(pixels < threshold, pixels, 255 - pixels)


def _solarize_add(pixels: tf.Tensor, addition: int) -> tf.Tensor:
    """Returns the image with `addition` added to all values below 128."""
    brighter = tf.cast(tf.minimum(tf.cast(pixels, tf.int32) + addition, 255), tf.uint8)
    return tf.where(pixels < 128, brighter, pixels)


def _contrast(pixels: tf.Tensor, factor: float) -> tf.Tensor:
    """Returns a blend with the reference's constant: number of pixels / 256, at most 255; 196 at 224 × 224."""
    height, width = pixels.shape[:2]
    return _blend(float(min(255, height * width // 256)), pixels, factor)


def _sharpness(pixels: tf.Tensor, factor: float) -> tf.Tensor:
    """Returns a blend of an image and its smoothed copy; the border is not smoothed, as in Pillow's ImageEnhance."""
    values = tf.cast(pixels, tf.int32)
    rows = values[:-2] + values[1:-1] + values[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    inner = values[1:-1, 1:-1]
    # Pillow's SMOOTH weighs the center 5 and each of its 8 neighbors 1.
    difference = tf.pad((around + 4 * inner) // 13 - inner, [[1, 1], [1, 1], [0, 0]])
    return _blend(values + difference, pixels, factor)


def _cutout(pixels: tf.Tensor, place: tf.Tensor, half: int) -> tf.Tensor:
    """Returns the image with a gray square of side 2 × half pixels centered at `place`; DeVries and Taylor 2017."""
    height, width = pixels.shape[:2]
    middle = tf.floor(place * [height, width])
    rows, columns = tf.range(float(height)), tf.range(float(width))
    in_rows = tf.logical_and(rows >= middle[0] - half, rows < middle[0] + half)
    in_columns = tf.logical_and(columns >= middle[1] - half, columns < middle[1] + half)
    inside = tf.logical_and(in_rows[:, None], in_columns[None, :])
    return tf.where(inside[:, :, None], tf.constant(FILL, tf.uint8), pixels)


def _rotate(pixels: tf.Tensor, degrees: tf.Tensor) -> tf.Tensor:
    """Returns the image rotated around its center."""
    angle = degrees * (math.pi / 180)
    cos, sin = tf.cos(angle), tf.sin(angle)
    y, x = ((size - 1) / 2 for size in pixels.shape[:2])
    return _moved(pixels, cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


def _moved(pixels: tf.Tensor, *transform: tf.Tensor | float) -> tf.Tensor:
    """Returns an image whose pixel (x, y) is the source's nearest to (a x + b y + c, d x + e y + f).

    Beyond its borders the source is reflected, as in the reference (tensorflow/tpu's code fills with gray).
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
    return _rounded_down(start + factor * (values - start))


def _rounded_down(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.clip_by_value(values, 0.0, 255.0), tf.uint8)  # rounds down, as the reference
