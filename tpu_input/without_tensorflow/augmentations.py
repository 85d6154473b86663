"""The augmentations of InputConfig.augment: what they draw, how strong they are, and their operations in NumPy.

    (seeds of examples) ──draw()──▶ numbers in [0, 1) ──apply(image)──▶ [height, width, 3] in [0, 255]

tpu_input/augment.py has the operations in TensorFlow, and takes every strength, table and transform from here, so that
there is one of each. From the same image and seed, both make the same image, bit for bit. That was tried on x86-64,
where color_jitter's matrix product has fused multiply-adds in both, and nothing else has. On a CPU without them, or on
ARM, which was not tried, color_jitter's float32 results differ by less than 0.001 before they are rounded to the
image's dtype, so that a uint8 pixel differs by at most one level.

The reference for RandAugment's operations, and for how strong each is at a magnitude, is tf-models-official 2.15
(official/vision/ops/augment.py). It continues the code in tensorflow/tpu that the paper's authors published: Cubuk et
al. 2019, "RandAugment: Practical automated data augmentation with a reduced search space". Some of what it does looks
like a mistake and is kept, since published magnitudes were chosen with it: contrast blends with a constant that depends
on the number of pixels, where Pillow's blends with the mean; solarize's threshold wraps around to 0 at magnitudes 10,
20 and 30; and posterize keeps more bits the larger the magnitude is, but only one bit from magnitude 22.5 on.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tpu_input.config import parse_augment
from tpu_input.without_tensorflow.random_numbers import seed_for, uniform

Floats: TypeAlias = npt.NDArray[np.float32]
Pixels: TypeAlias = npt.NDArray[np.uint8]
Seeds: TypeAlias = npt.NDArray[np.int64]
# (pixels, sign: -1.0 or 1.0 for operations with a direction, place: [y, x] in [0, 1) for cutout) -> pixels
Operation: TypeAlias = Callable[[Pixels, float, Floats], Pixels]

# Weights of red, green and blue in a pixel's brightness: ITU-R BT.601, as in Pillow's mode "L".
GREY = (0.299, 0.587, 0.114)
MAX_MAGNITUDE = 30  # upper end of the range in tensorflow/tpu's EfficientNet: "[5, 30]"
FILL = 128  # gray of cutout's square
MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")  # operations that transform() describes
_LEVELS = 10  # magnitude at which an operation has its full strength
_REFERENCE_SIDE = 224  # pixels; of the images for which the reference's distances are meant
_TRANSFORMS = 32  # index maps of the geometric operations that a process keeps: 400 KB each at 224 x 224

# A line is a sub-policy of AutoAugment: operation, probability, magnitude; operation, probability, magnitude.
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


class Augmentation(abc.ABC):
    """One of the augmentations that InputConfig.augment names; as a function, (image, seed) -> image in NumPy."""

    @abc.abstractmethod
    def draw(self, seeds: Seeds) -> Floats:
        """Returns [N, count] float32 in [0, 1): all random numbers of an image, for each of [N, 2] seeds.

        Many seeds at once take hardly longer than one, because a NumPy call takes as long for one as for some hundred.
        """

    @abc.abstractmethod
    def apply(self, image: npt.NDArray[Any], draws: Floats) -> npt.NDArray[Any]:
        """Returns the augmented image: shape and dtype stay.

        Args:
          image: [height, width, 3] in [0, 255], uint8, float32 or bfloat16.
          draws: [count], of draw().
        """

    def __call__(self, image: npt.NDArray[Any], seed: Seeds) -> npt.NDArray[Any]:
        """Returns the augmented image, as a function of InputConfig.augment; seed is [2] int64."""
        return self.apply(image, self.draw(np.asarray(seed, np.int64)[None])[0])


@dataclasses.dataclass(frozen=True)
class ColorJitter(Augmentation):
    """Scales brightness, contrast and saturation, each by a factor in 1 ± its strength, which is in [0, 1].

    Howard 2013, "Some Improvements on Deep Convolutional Neural Network Based Image Classification", section 2.2.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4

    def __post_init__(self) -> None:
        if not all(0 <= strength <= 1 for strength in self.strengths):
            raise ValueError(f"brightness, contrast and saturation must be in [0, 1], got {self.strengths!r}")
        _as_floats(self, "brightness", "contrast", "saturation")

    @property
    def strengths(self) -> tuple[float, float, float]:
        """The three strengths in the order in which their factors are drawn."""
        return self.brightness, self.contrast, self.saturation

    def draw(self, seeds: Seeds) -> Floats:
        return uniform(seed_for(seeds, "color_jitter"), 3)

    def apply(self, image: npt.NDArray[Any], draws: Floats) -> npt.NDArray[Any]:
        one = np.float32(1)
        bright, contrasted, saturated = (draws * np.float32(2) - one) * np.array(self.strengths, np.float32) + one
        to_grey = np.repeat(np.array(GREY, np.float32)[:, None], 3, axis=1)
        matrix = bright * contrasted * (saturated * np.eye(3, dtype=np.float32) + (one - saturated) * to_grey)
        height, width, _ = image.shape
        # In float64, the order does not matter; NumPy adds the rows of [height, width * 3] fast.
        total = image.reshape(height, -1).sum(0, dtype=np.float64).reshape(width, 3).sum(0)
        weighted = (total / (height * width)).astype(np.float32) * np.array(GREY, np.float32)
        mean = weighted[0] + weighted[1] + weighted[2]
        # Row by row, so that no product is large enough for BLAS to start threads, which loaders have of their own. In
        # float64, as BLAS adds in an order that depends on the processor: rounded to float32, the sums are the same.
        mixed = np.matmul(image.astype(np.float64), matrix.astype(np.float64)).astype(np.float32)
        mixed += bright * (one - contrasted) * mean
        mixed = np.clip(mixed, 0, 255, out=mixed)
        jittered: npt.NDArray[Any] = np.rint(mixed, out=mixed) if image.dtype == np.uint8 else mixed
        return jittered.astype(image.dtype)


@dataclasses.dataclass(frozen=True)
class RandAugment(Augmentation):
    """Applies num_layers of 17 operations at random, each with the same magnitude; Cubuk et al. 2019.

    The attributes are as the arguments of tpu_input.augment.rand_augment().
    """

    num_layers: int = 2
    magnitude: float = 9
    cutout_const: float | None = None
    translate_const: float | None = None

    def __post_init__(self) -> None:
        if self.num_layers < 1 or not 0 <= self.magnitude <= MAX_MAGNITUDE:
            raise ValueError(
                f"rand_augment needs num_layers >= 1 and magnitude in [0, {MAX_MAGNITUDE}], "
                f"got {self.num_layers!r} and {self.magnitude!r}"
            )
        _as_floats(self, "magnitude", "cutout_const", "translate_const")

    def constants(self, height: int, width: int) -> tuple[float, float]:
        """Returns (cutout_const, translate_const) for images of a size."""
        share = _share_of_reference(height, width)
        cutout = 40 * share if self.cutout_const is None else self.cutout_const
        return cutout, 100 * share if self.translate_const is None else self.translate_const

    def draw(self, seeds: Seeds) -> Floats:
        return uniform(seed_for(seeds, "rand_augment"), 4 * self.num_layers)

    def apply(self, image: npt.NDArray[Any], draws: Floats) -> npt.NDArray[Any]:
        pixels = _to_uint8(image)
        choices = list(operations(self.magnitude, *self.constants(*image.shape[:2])).values())
        for choice, sign, *place in draws.reshape(self.num_layers, 4):
            pixels = choices[_index(choice, len(choices))](pixels, _sign(sign), np.array(place, np.float32))
        return pixels.astype(image.dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class AutoAugment(Augmentation):
    """Applies one of AutoAugment's 25 sub-policies for ImageNet, all equally often; Cubuk et al. 2018.

    A translation is by 250 pixels at magnitude 10, on images whose shorter side is below 224 pixels reduced in
    proportion.
    """

    def translate_const(self, height: int, width: int) -> float:
        """Returns the pixels of a translation at magnitude 10, for images of a size."""
        return 250 * _share_of_reference(height, width)

    def draw(self, seeds: Seeds) -> Floats:
        choice = uniform(seed_for(seeds, "auto_augment policy"), 1)
        return np.concatenate([choice, uniform(seed_for(seeds, "auto_augment"), 4)], axis=1)

    def apply(self, image: npt.NDArray[Any], draws: Floats) -> npt.NDArray[Any]:
        pixels, policy = _to_uint8(image), auto_augment_policy()
        translate = self.translate_const(*image.shape[:2])
        sub_policy = policy[_index(draws[0], len(policy))]
        for (name, probability, magnitude), (chance, sign) in zip(sub_policy, draws[1:].reshape(2, 2), strict=True):
            if chance < np.float32(probability):
                pixels = operations(magnitude, 0, translate)[name](pixels, _sign(sign), np.zeros(2, np.float32))
        return pixels.astype(image.dtype, copy=False)


_CLASSES: dict[str, Callable[..., Augmentation]] = {
    "rand_augment": RandAugment,
    "color_jitter": ColorJitter,
    "auto": AutoAugment,
}


def find_augmentation(augment: object) -> Augmentation | None:
    """Returns the augmentation that an InputConfig.augment names, with its strengths, or is.

    It is None if InputConfig.augment is a user's function, or there is none. A function of tpu_input.augment has its
    augmentation as an attribute of that name.

    Raises:
      ValueError: A strength is out of its range.
    """
    if not isinstance(augment, str):
        augmentation = getattr(augment, "augmentation", augment)
        return augmentation if isinstance(augmentation, Augmentation) else None
    name, strengths = parse_augment(augment)
    if name == "none":
        return None
    if name != "rand_augment" or not strengths:
        return _CLASSES[name](*strengths)
    if not strengths[0].is_integer():
        raise ValueError(f"augment {augment!r}: the number of layers must be an integer")
    return RandAugment(int(strengths[0]), *strengths[1:])


@functools.cache
def auto_augment_policy() -> tuple[tuple[tuple[str, float, float], ...], ...]:
    """Returns the 25 sub-policies: of each, its two (operation, probability, magnitude)."""
    lines = [line.split() for line in _POLICY.strip().splitlines()]
    return tuple(
        tuple((name, float(probability), float(magnitude)) for name, probability, magnitude in (line[:3], line[3:]))
        for line in lines
    )


def strengths(magnitude: float, cutout_const: float, translate_const: float) -> dict[str, float]:
    """Returns the strength of each operation by name: of the reference's 16, and of the identity.

    The unit is the operation's own: degrees of "rotate", pixels of "translate_x", "translate_y" and "cutout" (half a
    side), pixels per pixel of "shear_x" and "shear_y", the mask of "posterize", the levels of "solarize" (a threshold)
    and "solarize_add", and the factor of a blend of "color", "contrast", "brightness" and "sharpness". It is 0 where
    the magnitude does not matter.

    Args:
      magnitude: In [0, 30]; 10 is the full strength of most operations.
      cutout_const: Half the side of cutout's square at magnitude 10, in pixels.
      translate_const: Distance of a translation at magnitude 10, in pixels.
    """
    level = magnitude / _LEVELS
    factor = 1.8 * level + 0.1
    bits = int(4 * level)
    # The reference shifts by 8 - bits as a uint8, and TensorFlow limits a shift to 7.
    shift = 8 - bits if 1 <= bits <= 8 else 7
    return {
        "identity": 0,
        "autocontrast": 0,
        "equalize": 0,
        "invert": 0,
        "rotate": 30 * level,
        "posterize": 255 >> shift << shift,
        # The reference computes the threshold as a uint8, hence modulo 256.
        "solarize": int(256 * level) % 256,
        "color": factor,
        "contrast": factor,
        "brightness": factor,
        "sharpness": factor,
        "shear_x": 0.3 * level,
        "shear_y": 0.3 * level,
        "translate_x": level * translate_const,
        "translate_y": level * translate_const,
        "cutout": int(level * cutout_const),
        "solarize_add": int(110 * level),
    }


def contrast_level(height: int, width: int) -> int:
    """Returns the gray that contrast blends with, the reference's constant: 196 at 224 x 224."""
    return min(255, height * width // 256)


def transform(name: str, strength: float, height: int, width: int) -> Floats:
    """Returns [6] float32 (a, b, c, d, e, f): pixel (x, y) becomes the source's nearest to (ax + by + c, dx + ey + f).

    Args:
      name: One of MOVES; "rotate" is around the center of the image.
      strength: Of strengths(), times the sign of its direction.
      height: Height of the image in pixels.
      width: Width of the image.
    """
    values: tuple[float, ...]
    if name == "rotate":
        angle = math.radians(strength)
        cos, sin = math.cos(angle), math.sin(angle)
        y, x = (height - 1) / 2, (width - 1) / 2
        values = cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y
    else:
        values = {
            "shear_x": (1, strength, 0, 0, 1, 0),
            "shear_y": (1, 0, 0, strength, 1, 0),
            "translate_x": (1, 0, strength, 0, 1, 0),
            "translate_y": (1, 0, 0, 0, 1, strength),
        }[name]
    return np.array(values, np.float32)


def operations(magnitude: float, cutout_const: float, translate_const: float) -> dict[str, Operation]:
    """Returns the operations of images in NumPy by name; RandAugment chooses each equally often.

    Arguments are as in strengths(). An operation returns [height, width, 3] uint8 as it gets it.
    """
    strong = strengths(magnitude, cutout_const, translate_const)
    return {name: functools.partial(_OPERATIONS[name], strength=strength) for name, strength in strong.items()}


def _as_floats(augmentation: Augmentation, *names: str) -> None:
    """Makes floats of integers, so that equal augmentations have one repr(), which names a job of a tf.data service."""
    for name in names:
        if (value := getattr(augmentation, name)) is not None:
            object.__setattr__(augmentation, name, float(value))


def _share_of_reference(height: int, width: int) -> float:
    return min(1.0, min(height, width) / _REFERENCE_SIDE)


def _index(choice: np.float32, number: int) -> int:
    return int(choice * np.float32(number))


def _sign(number: np.float32) -> float:
    return -1.0 if number < np.float32(0.5) else 1.0


def _to_uint8(image: npt.NDArray[Any]) -> Pixels:
    if image.dtype == np.uint8:
        return image
    return np.rint(np.clip(image.astype(np.float32), 0, 255)).astype(np.uint8)


def _autocontrast(pixels: Pixels, sign: float, place: Floats, strength: float) -> Pixels:
    """Returns each channel stretched from 0 to 255."""
    low, high = (extreme(extreme(pixels, 0), 0).astype(np.float32) for extreme in (np.min, np.max))
    scale = np.float32(255) / np.maximum(high - low, np.float32(1))
    stretched = _rounded_down(_LEVELS_OF_GREY[:, None] * scale - low * scale)
    return _by_tables(pixels, np.where(high > low, stretched, _IDENTITY[:, None]).T)


def _equalize(pixels: Pixels, sign: float, place: Floats, strength: float) -> Pixels:
    """Returns each channel with its gray levels spread evenly, as Pillow's ImageOps.equalize."""
    counts = np.stack([np.bincount(pixels[..., channel].ravel(), minlength=256) for channel in range(3)])
    brightest = 255 - np.argmax(counts[:, ::-1] > 0, axis=1)
    step = (counts.sum(axis=1) - counts[range(3), brightest])[:, None] // 255
    spread = (step // 2 + np.cumsum(counts, axis=1) - counts) // np.maximum(step, 1)
    table = np.where(step > 0, np.minimum(spread, 255), _IDENTITY)
    return _by_tables(pixels, table.astype(np.uint8))


def _posterize(pixels: Pixels, sign: float, place: Floats, strength: float) -> Pixels:
    """Returns each value with only its highest bits kept."""
    return pixels & np.uint8(strength)


def _solarize(pixels: Pixels, sign: float, place: Floats, strength: float) -> Pixels:
    """Returns the image with all values at or above the threshold inverted."""
    return _by_table(pixels, np.where(strength > _IDENTITY, _IDENTITY, 255 - _IDENTITY))


def _solarize_add(pixels: Pixels, sign: float, place: Floats, strength: float) -> Pixels:
    """Returns the image with the strength added to all values below 128."""
    brighter = np.minimum(np.arange(256) + int(strength), 255).astype(np.uint8)
    return _by_table(pixels, np.where(_IDENTITY < 128, brighter, _IDENTITY))


def _color(pixels: Pixels, sign: float, place: Floats, strength: float) -> Pixels:
    """Returns a blend with the image's gray, by the weights and roundings of tf.image.rgb_to_grayscale."""
    red, green, blue = np.moveaxis(pixels.astype(np.float32) * np.float32(1 / 255), -1, 0)
    grey = red * np.float32(0.2989) + green * np.float32(0.587) + blue * np.float32(0.114)
    return _blend((grey * np.float32(255.5)).astype(np.uint8)[..., None], pixels, strength)


def _contrast(pixels: Pixels, sign: float, place: Floats, strength: float) -> Pixels:
    """Returns a blend with the reference's constant."""
    return _by_table(pixels, _blend(np.array(contrast_level(*pixels.shape[:2])), _IDENTITY, strength))


def _brightness(pixels: Pixels, sign: float, place: Floats, strength: float) -> Pixels:
    """Returns a blend with black."""
    return _by_table(pixels, _blend(np.array(0), _IDENTITY, strength))


def _sharpness(pixels: Pixels, sign: float, place: Floats, strength: float) -> Pixels:
    """Returns a blend of an image and its smoothed copy; the border is not smoothed, as in Pillow's ImageEnhance."""
    if min(pixels.shape[:2]) < 3:
        return pixels  # all of it is border
    values = pixels.astype(np.uint16)
    rows = values[:-2] + values[1:-1] + values[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    smoothed = pixels.copy()
    # Pillow's SMOOTH weighs the center 5 and each of its 8 neighbors 1.
    smoothed[1:-1, 1:-1] = (around + 4 * values[1:-1, 1:-1]) // 13
    return _blend(smoothed, pixels, strength)


def _cutout(pixels: Pixels, sign: float, place: Floats, strength: float) -> Pixels:
    """Returns the image with a gray square of side 2 × strength centered at `place`; DeVries and Taylor 2017."""
    middle = np.floor(place * np.array(pixels.shape[:2], np.float32)).astype(int)
    low, high = np.maximum(middle - int(strength), 0), middle + int(strength)
    filled = pixels.copy()
    filled[low[0] : high[0], low[1] : high[1]] = FILL
    return filled


def _moved(pixels: Pixels, sign: float, place: Floats, strength: float, name: str) -> Pixels:
    """Returns the image after transform(); beyond its borders the source is reflected, as in the reference."""
    sources = _sources(name, sign * strength, *pixels.shape[:2])
    # As elements of three bytes, so that a pixel is one of them.
    moved = np.ascontiguousarray(pixels).reshape(-1).view("V3").take(sources)
    return moved.view(np.uint8).reshape(pixels.shape)


@functools.lru_cache(_TRANSFORMS)
def _sources(name: str, strength: float, height: int, width: int) -> npt.NDArray[np.intp]:
    """Returns [height * width], the number of the source's pixel that each pixel is taken from."""
    a, b, c, d, e, f = transform(name, strength, height, width)
    columns, rows = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]
    x = _reflected(a * columns + b * rows + c, width)
    y = _reflected(d * columns + e * rows + f, height)
    return (y * width + x).ravel()


def _reflected(coordinates: Floats, length: int) -> npt.NDArray[np.intp]:
    """Returns whole pixels in [0, length) of coordinates, as TensorFlow's ImageProjectiveTransformV3 rounds them.

    [abcd] is reflected to [dcba|abcd|dcba], in float32 as in tensorflow/core/kernels/image/image_ops.h.
    """
    if length == 1:
        return np.zeros(coordinates.shape, np.intp)
    double = np.float32(2 * length)
    turns = double * np.trunc(np.abs(coordinates) / double)
    inside = np.where(coordinates < 0, coordinates + turns, coordinates - turns)
    before = np.where(inside < -length, inside + double, -inside - np.float32(1))
    after = np.where(inside >= length, double - inside - np.float32(1), inside)
    inside = np.clip(np.where(coordinates < 0, before, after), 0, np.float32(length - 1))
    rounded: Floats = np.floor(inside)
    rounded += inside - rounded >= np.float32(0.5)  # std::round: halves away from 0
    return rounded.astype(np.intp)


def _blend(start: npt.NDArray[Any], pixels: Pixels, factor: float) -> Pixels:
    """Returns the image for a factor of 1, `start` for 0, and an extrapolation beyond the image for more than 1."""
    begin = start.astype(np.float32)
    return _rounded_down(begin + np.float32(factor) * (pixels.astype(np.float32) - begin))


def _rounded_down(values: Floats) -> Pixels:
    return np.clip(values, 0, 255).astype(np.uint8)  # rounds down, as the reference


def _by_table(pixels: Pixels, table: Pixels) -> Pixels:
    """Returns table[pixels]; bytes.translate takes a third of np.take's time."""
    translated = bytearray(np.ascontiguousarray(pixels)).translate(table.tobytes())
    return np.frombuffer(translated, np.uint8).reshape(pixels.shape)


def _by_tables(pixels: Pixels, tables: Pixels) -> Pixels:
    """Returns each channel by its own row of [3, 256]."""
    return np.stack([_by_table(pixels[..., channel], tables[channel]) for channel in range(3)], axis=-1)


@functools.cache
def beta_quantiles(alpha: float) -> Floats:
    """Returns [4096] float32, the quantiles of Beta(alpha, alpha), from which mixup and CutMix draw.

    Raises:
      ValueError: alpha is not positive.
    """
    if alpha <= 0:
        raise ValueError(f"alpha must be positive, got {alpha!r}")
    draws = np.sort(np.random.default_rng(0).beta(alpha, alpha, 4096 * 63))  # the same in every process
    return draws[31::63].astype(np.float32)


_IDENTITY = np.arange(256, dtype=np.uint8)
_LEVELS_OF_GREY = np.arange(256, dtype=np.float32)
_OPERATIONS: dict[str, Callable[..., Pixels]] = {
    "identity": lambda pixels, sign, place, strength: pixels,
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
