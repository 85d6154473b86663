"""Image augmentation: on the host per image, for InputConfig.augment; on the device per batch.

    [height, width, 3] in [0, 255] ──color_jitter(), rand_augment() or auto_augment()──▶ the same     on the host
    [N, H, W, 3] float, [N, classes] ──mixup() or cutmix()──▶ the same shapes                         on the device

All random numbers are stateless: the same seed gives the same result. Functions of this module may be given the same
seed, because each of them derives its own seeds from it with seed_for().

The strengths, tables and transforms are in without_tensorflow/augmentations.py, with the reference for them and with
the same operations in NumPy. test_operations.py compares the operations here with the reference's,
test_augmentations.py with NumPy's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.pipeline.seeds import seed_for
from tpu_input.without_tensorflow.augmentations import (
    FILL,
    GREY,
    MOVES,
    Augmentation,
    AutoAugment,
    ColorJitter,
    RandAugment,
    auto_augment_policy,
    beta_quantiles,
    contrast_level,
    find_augmentation,
    strengths,
    transform,
)

Augment = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# (pixels, sign: -1.0 or 1.0 for operations with a direction, place: [y, x] in [0, 1) for cutout) -> pixels
Operation = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def find_augment(augment: str | Augment | None) -> Augment | None:
    """Returns the function of InputConfig.augment, which may be a name with strengths.

    Raises:
      ValueError: A strength is out of its range.
    """
    augmentation = find_augmentation(augment)
    if augmentation is None:
        return None if isinstance(augment, str) else augment
    return _OnTensors(augmentation)


class _OnTensors:
    """An augmentation as a function of tensors.

    Attributes:
      augmentation: What is applied; a TrainSource applies it to NumPy arrays.
    """

    def __init__(self, augmentation: Augmentation) -> None:
        self.augmentation = augmentation

    def __call__(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return _FUNCTIONS[type(self.augmentation)](self.augmentation, image, seed)


@checks_arguments
def color_jitter(brightness: float = 0.4, contrast: float = 0.4, saturation: float = 0.4) -> Augment:
    """Returns a function that scales brightness, contrast and saturation, each by a factor in 1 ± its strength.

    Howard 2013, "Some Improvements on Deep Convolutional Neural Network Based Image Classification", section 2.2.

    Raises:
      ValueError: A strength is not in [0, 1].
    """
    return _OnTensors(ColorJitter(brightness, contrast, saturation))


def _color_jitter(jitter: ColorJitter, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    factors = tf.random.stateless_uniform([3], seed_for(seed, "color_jitter"), -1.0, 1.0) * jitter.strengths + 1.0
    bright, contrasted, saturated = factors[0], factors[1], factors[2]
    pixels = tf.cast(image, tf.float32)
    # All three are linear: a product with one 3 x 3 matrix takes 0.2 ms, applying them one by one 1.2 ms.
    to_grey = tf.tile(tf.constant(GREY)[:, None], [1, 3])
    matrix = bright * contrasted * (saturated * tf.eye(3) + (1 - saturated) * to_grey)
    # A float32 adds up the integers of a column exactly, and a float64 the sums of all columns, in whatever order.
    # Other numbers are float64 from the beginning, so that the order does not change a mean rounded to float32.
    columns = tf.reduce_sum(pixels if image.dtype.is_integer else tf.cast(pixels, tf.float64), 0)
    total = tf.reduce_sum(tf.cast(columns, tf.float64), 0)
    weighted = tf.cast(total / tf.cast(tf.size(pixels) // 3, tf.float64), tf.float32) * GREY
    mean = weighted[0] + weighted[1] + weighted[2]
    # In float64, as the order of the sums depends on the processor: rounded to float32, they are the same everywhere.
    mixed = tf.matmul(tf.reshape(tf.cast(pixels, tf.float64), [-1, 3]), tf.cast(matrix, tf.float64))
    mixed = tf.reshape(tf.cast(mixed, tf.float32), tf.shape(pixels))
    return _as(image, mixed + bright * (1 - contrasted) * mean)


@checks_arguments
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
    return _OnTensors(RandAugment(num_layers, magnitude, cutout_const, translate_const))


def _rand_augment(rand: RandAugment, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    functions = operations(rand.magnitude, *rand.constants(*image.shape[:2]))
    layers = tf.random.stateless_uniform([rand.num_layers, 4], seed_for(seed, "rand_augment"))

    def apply_one(pixels: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        choice, sign = draws[0], tf.where(draws[1] < 0.5, -1.0, 1.0)
        branches = [_bound(operation, pixels, sign, draws[2:]) for operation in functions.values()]
        return tf.switch_case(tf.cast(choice * len(functions), tf.int32), branches)

    # A function is in the graph once for all layers, whose operations take most of the time of building the graph.
    apply = apply_one if tf.executing_eagerly() else tf.function(apply_one, autograph=False)
    pixels = _to_uint8(image)
    for layer in range(rand.num_layers):
        pixels = apply(pixels, layers[layer])
    return tf.cast(pixels, image.dtype)


def auto_augment() -> Augment:
    """Returns a function that applies one of AutoAugment's 25 sub-policies for ImageNet, all equally often.

    Cubuk et al. 2018, "AutoAugment: Learning Augmentation Policies from Data". A sub-policy is two operations, each
    with a probability and a magnitude. They are the policy "v0" of tf-models-official and of tensorflow/tpu's
    EfficientNet, with the operations of rand_augment(). A translation is by 250 pixels at magnitude 10, on images
    whose shorter side is below 224 pixels reduced in proportion.
    """
    return _OnTensors(AutoAugment())


def _auto_augment(auto: AutoAugment, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    pixels, translate = _to_uint8(image), auto.translate_const(*image.shape[:2])
    choice = tf.random.stateless_uniform([], seed_for(seed, "auto_augment policy"))
    draws = tf.random.stateless_uniform([2, 2], seed_for(seed, "auto_augment"))
    branches = [functools.partial(_sub_policy, line, pixels, draws, translate) for line in auto_augment_policy()]
    return tf.cast(tf.switch_case(tf.cast(choice * len(branches), tf.int32), branches), image.dtype)


def _sub_policy(
    sub_policy: tuple[tuple[str, float, float], ...], pixels: tf.Tensor, draws: tf.Tensor, translate: float
) -> tf.Tensor:
    """Returns an image after the operations of a sub-policy.

    `draws` is [2, 2] float32 in [0, 1): for each operation, what decides on it, and on its direction.
    """
    for number, (name, probability, magnitude) in enumerate(sub_policy):
        sign = tf.where(draws[number, 1] < 0.5, -1.0, 1.0)
        operation = operations(magnitude, 0, translate)[name]
        branch = _bound(operation, pixels, sign, tf.zeros([2]))
        pixels = tf.cond(draws[number, 0] < probability, branch, functools.partial(tf.identity, pixels))
    return pixels


_FUNCTIONS: dict[type[Augmentation], Callable[[Any, tf.Tensor, tf.Tensor], tf.Tensor]] = {
    ColorJitter: _color_jitter,
    RandAugment: _rand_augment,
    AutoAugment: _auto_augment,
}


@checks_arguments
def mixup(
    images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, alpha: float = 0.2, weight: tf.Tensor | None = None
) -> tuple[tf.Tensor, ...]:
    """Returns (images, labels) mixed with the same batch in reverse order, and the mixed weight if weight is given.

    To be called in a model_fn, after from_infeed(). Zhang et al. 2017, "mixup: Beyond Empirical Risk Minimization". One
    mixing share is drawn per batch, as in the authors' code. With `weight`, the returned weight × cross-entropy is
    the sum for both unmixed labels by share × weight: an example of weight 0 contributes to no label.

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


@checks_arguments
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
    label_share = tf.cast(share, labels.dtype)
    if weight is None:
        return (label_share * labels + (1 - label_share) * labels[::-1],)
    weight_share = tf.cast(share, weight.dtype)
    first, second = weight_share * weight, (1 - weight_share) * weight[::-1]
    first_share = tf.where(first + second > 0, tf.math.divide_no_nan(first, first + second), weight_share)
    first_share = tf.cast(first_share, labels.dtype)[:, None]
    return first_share * labels + (1 - first_share) * labels[::-1], first + second


def _beta(alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns a scalar drawn from Beta(alpha, alpha): one of its quantiles, because XLA has no stateless_gamma."""
    quantiles = beta_quantiles(alpha)
    return tf.gather(tf.constant(quantiles), tf.random.stateless_uniform([], seed, 0, len(quantiles), tf.int32))


def _as(image: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    pixels = tf.clip_by_value(pixels, 0.0, 255.0)
    return tf.cast(tf.round(pixels) if image.dtype.is_integer else pixels, image.dtype)


def _to_uint8(image: tf.Tensor) -> tf.Tensor:
    return tf.cast(image if image.dtype.is_integer else tf.round(tf.clip_by_value(image, 0, 255)), tf.uint8)


def _bound(operation: Operation, *arguments: tf.Tensor) -> Callable[[], tf.Tensor]:
    return lambda: tf.ensure_shape(operation(*arguments), arguments[0].shape)


@checks_arguments
def operations(magnitude: float, cutout_const: float, translate_const: float) -> dict[str, Operation]:
    """Returns operations by name: the 16 of the reference and the identity; it chooses each equally often.

    Args:
      magnitude: In [0, 30]; 10 is the full strength of most operations.
      cutout_const: Half the side of cutout's square at magnitude 10, in pixels.
      translate_const: Distance of a translation at magnitude 10, in pixels.
    """
    strong = strengths(magnitude, cutout_const, translate_const)
    return {name: functools.partial(_OPERATIONS[name], strength=strength) for name, strength in strong.items()}


def _autocontrast(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float) -> tf.Tensor:
    """Returns each channel stretched from 0 to 255."""
    values = tf.cast(pixels, tf.float32)
    low, high = tf.reduce_min(values, [0, 1]), tf.reduce_max(values, [0, 1])
    scale = 255 / tf.maximum(high - low, 1)
    return tf.where(high > low, _rounded_down(values * scale - low * scale), pixels)


def _equalize(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float) -> tf.Tensor:
    """Returns each channel with its gray levels spread evenly, as Pillow's ImageOps.equalize."""
    levels = tf.cast(pixels, tf.int32) + 256 * tf.range(3)
    counts = tf.reshape(tf.math.bincount(tf.reshape(levels, [-1]), minlength=768, maxlength=768), [3, 256])
    brightest = tf.reduce_max(tf.where(counts > 0, tf.range(256), 0), axis=1)
    step = (tf.reduce_sum(counts, axis=1) - tf.gather(counts, brightest, batch_dims=1)) // 255
    spread = (step[:, None] // 2 + tf.cumsum(counts, axis=1, exclusive=True)) // tf.maximum(step, 1)[:, None]
    table = tf.where(step[:, None] > 0, tf.minimum(spread, 255), tf.range(256))
    return tf.gather(tf.cast(tf.reshape(table, [-1]), tf.uint8), levels)


def _posterize(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float) -> tf.Tensor:
    """Returns each value with only its highest bits kept."""
    return tf.bitwise.bitwise_and(pixels, tf.constant(strength, tf.uint8))


def _solarize(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float) -> tf.Tensor:
    """Returns the image with all values at or above the threshold inverted."""
    return tf.where(pixels < strength, pixels, 255 - pixels)


def _solarize_add(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float) -> tf.Tensor:
    """Returns the image with the strength added to all values below 128."""
    brighter = tf.cast(tf.minimum(tf.cast(pixels, tf.int32) + strength, 255), tf.uint8)
    return tf.where(pixels < 128, brighter, pixels)


def _color(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float) -> tf.Tensor:
    """Returns a blend with the image's gray."""
    return _blend(tf.image.rgb_to_grayscale(pixels), pixels, strength)


def _contrast(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float) -> tf.Tensor:
    """Returns a blend with the reference's constant."""
    return _blend(contrast_level(*pixels.shape[:2]), pixels, strength)


def _brightness(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float) -> tf.Tensor:
    """Returns a blend with black."""
    return _blend(0, pixels, strength)


def _sharpness(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float) -> tf.Tensor:
    """Returns a blend of an image and its smoothed copy; the border is not smoothed, as in Pillow's ImageEnhance."""
    if min(pixels.shape[:2]) < 3:
        return pixels  # all of it is border
    values = tf.cast(pixels, tf.int32)
    rows = values[:-2] + values[1:-1] + values[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    inner = values[1:-1, 1:-1]
    # Pillow's SMOOTH weighs the center 5 and each of its 8 neighbors 1.
    difference = tf.pad((around + 4 * inner) // 13 - inner, [[1, 1], [1, 1], [0, 0]])
    return _blend(values + difference, pixels, strength)


def _cutout(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float) -> tf.Tensor:
    """Returns the image with a gray square of side 2 × strength centered at `place`; DeVries and Taylor 2017."""
    height, width = pixels.shape[:2]
    middle = tf.floor(place * [height, width])
    rows, columns = tf.range(float(height)), tf.range(float(width))
    in_rows = tf.logical_and(rows >= middle[0] - strength, rows < middle[0] + strength)
    in_columns = tf.logical_and(columns >= middle[1] - strength, columns < middle[1] + strength)
    inside = tf.logical_and(in_rows[:, None], in_columns[None, :])
    return tf.where(inside[:, :, None], tf.constant(FILL, tf.uint8), pixels)


def _moved(pixels: tf.Tensor, sign: tf.Tensor, place: tf.Tensor, strength: float, name: str) -> tf.Tensor:
    """Returns the image after transform().

    Beyond its borders the source is reflected, as in the reference (tensorflow/tpu's code fills with gray).
    """
    height, width = pixels.shape[:2]
    one_way, other_way = (transform(name, direction * strength, height, width) for direction in (-1, 1))
    values = tf.concat([tf.where(sign < 0, one_way, other_way), [0.0, 0.0]], 0)
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


_OPERATIONS: dict[str, Callable[..., tf.Tensor]] = {
    "identity": lambda pixels, sign, place, strength: tf.identity(pixels),
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": lambda pixels, sign, place, strength: 255 - pixels,
    "posterize": _posterize,
    "solarize": _solarize,
    "color": _color,
    "contrast": _contrast,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "cutout": _cutout,
    "solarize_add": _solarize_add,
    **{name: functools.partial(_moved, name=name) for name in MOVES},
}
