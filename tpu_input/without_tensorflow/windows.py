"""The windows and flips of training, and the window of evaluation: as in pipeline/images.py, bit by bit, in NumPy.

    (seed, number of the example) ──draw()──▶ Draws ──random_window(height, width)──▶ (y, x, height, width)

What needs no image is computed for many examples at once, because a NumPy call takes as long for one as for some
hundred. The rest is arithmetic with a few float32. TensorFlow rounds every result to float32, and so does this module;
logarithms and exponentials are computed as float64 first, which gives the float32 nearest to the true value.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tpu_input.config import InputConfig
from tpu_input.without_tensorflow.random_numbers import seed_for, uniform

Window: TypeAlias = tuple[int, int, int, int]  # y, x, height, width, in pixels
Floats: TypeAlias = npt.NDArray[np.float32]

TRIES = 10  # as torchvision
BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))  # times n + 1 and rounded down, it is n // 2
RATIOS = (2, 4, 8)  # libjpeg decodes at 1 / ratio too, by a smaller inverse DCT of each 8 x 8 block


class Draws(NamedTuple):
    """Random numbers of examples, for random_window() and the flip.

    Attributes:
      tries: [N, TRIES, 4] float32: share of the area, logarithm of width / height, y, x of each try.
      flips: [N] bool, whether the image is mirrored.
    """

    tries: Floats
    flips: npt.NDArray[np.bool_]


def draw(seeds: npt.NDArray[np.int64], config: InputConfig) -> Draws:
    """Returns the random numbers of examples.

    Args:
      seeds: [N, 2], (config.seed, number of the example over all epochs).
      config: For crop_area, crop_aspect and flip.
    """
    low, high = ranges(config)
    tries = low + (high - low) * uniform(seed_for(seeds, "window"), 4 * TRIES).reshape(-1, 4, TRIES).swapaxes(1, 2)
    flips = uniform(seed_for(seeds, "flip"), 1)[:, 0] < 0.5 if config.flip else np.zeros(len(seeds), bool)
    return Draws(tries, flips)


def ranges(config: InputConfig) -> Floats:
    """Returns [2, 4] float32: the smallest and the largest share, log aspect, y and x of a window."""
    smallest, largest = config.crop_aspect
    limits = [config.crop_area, (math.log(smallest), math.log(largest)), (0, 1), (0, 1)]
    return np.array(limits, np.float32).T


def random_window(height: int, width: int, tries: Floats, config: InputConfig) -> Window:
    """Returns the random window of an image, by the rule that pipeline/images.py's function of this name documents.

    Args:
      height: Height of the image in pixels.
      width: Width of the image.
      tries: [TRIES, 4], as in Draws.
      config: For crop_aspect and resize.
    """
    float32 = np.float32
    sides = (float32(height), float32(width))
    largest_sides = sides[::-1]  # times an aspect ratio and its inverse: the largest window's
    if config.resize != "crop":
        tries = tries + np.array([0, math.log(sides[1] / sides[0]), 0, 0], float32)
        largest_sides = sides
    area = sides[0] * sides[1]
    high, wide = sides[0] + float32(0.5), sides[1] + float32(0.5)
    log_aspect, most = float32(math.log(wide / high)), wide * high / area
    for share, aspect, y, x in tries:
        if share * float32(math.exp(abs(aspect - log_aspect))) <= most:
            pixels = share * area
            target = (np.sqrt(pixels * float32(math.exp(-aspect))), np.sqrt(pixels * float32(math.exp(aspect))))
            places = (y, x)
            break
    else:
        smallest, largest = config.crop_aspect
        target = largest_sides[0] * float32(1 / smallest), largest_sides[1] * float32(largest)
        places = BELOW_HALF, BELOW_HALF
    size = [min(max(round(float(length)), 1), side) for length, side in zip(target, (height, width), strict=True)]
    begin = [
        int(place * (side - float32(length) + float32(1)))
        for place, side, length in zip(places, sides, size, strict=True)
    ]
    return begin[0], begin[1], size[0], size[1]


def centre_window(height: int, width: int, share: float) -> Window:
    """Returns the centered square whose side is `share` of the shorter side."""
    side = max(round(float(np.float32(share) * np.float32(min(height, width)))), 1)
    return (height - side) // 2, (width - side) // 2, side, side


def whole_window(height: int, width: int) -> Window:
    """Returns the whole image."""
    return 0, 0, height, width


def padded_sides(sides: tuple[int, int], image_size: int) -> tuple[int, int]:
    """Returns the (height, width) that a window gets with resize="pad", as pipeline/images.py's."""
    scale = np.float32(image_size) / np.float32(max(sides))
    height, width = (max(round(float(np.float32(side) * scale)), 1) for side in sides)
    return height, width


def scaled_window(window: Window, ratio: int) -> Window:
    """Returns a window in the pixels of an image that is decoded at 1 / ratio, as pipeline/images.py's."""
    y, x, height, width = window
    top, left = (y + ratio // 2) // ratio, (x + ratio // 2) // ratio
    bottom, right = (y + height + ratio // 2) // ratio, (x + width + ratio // 2) // ratio
    return top, left, bottom - top, right - left
