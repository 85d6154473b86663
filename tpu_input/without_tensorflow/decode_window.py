"""Decoding of the window of an image file, and its resize, without TensorFlow: libjpeg-turbo, then OpenCV or NumPy.

    bytes ──window──▶ decode to its last row ──▶ cut out ──▶ bilinear resize, flip, pad ──▶ [image_size, image_size, 3]

JPEGs get the same pixels as in pipeline/images.py, whose decoder is libjpeg-turbo too: the fast inverse DCT, plain
upsampling of the colors, and 1/2, 1/4 or 1/8 of the size where the window is that many times as large as the result.
The resize in NumPy gives TensorFlow's result, bit for bit. OpenCV's, which is used where it is installed, takes a tenth
of the time; its results differ by at most 1 of 255, because its weights have 11 bits.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from PIL import Image
from simplejpeg import decode_jpeg

from tpu_input.config import InputConfig
from tpu_input.dataset_format.jpeg_markers import END, frame_size, with_rows
from tpu_input.without_tensorflow.windows import (
    RATIOS,
    Window,
    centre_window,
    padded_sides,
    scaled_window,
    whole_window,
)

try:
    import cv2
except ImportError:
    cv2 = None  # type: ignore[assignment]

Pixels = npt.NDArray[np.uint8]
_JPEG_BEGIN = b"\xff\xd8\xff"


def decode_file(encoded: bytes, config: InputConfig) -> npt.NDArray[Any]:
    """Returns the pixels of an image file as in evaluation and serving; otherwise as decode_window()."""
    is_cropped = config.resize == "crop"
    choose = functools.partial(centre_window, share=config.eval_crop) if is_cropped else whole_window
    return decode_window(encoded, choose, config)


def decode_window(
    encoded: bytes, choose: Callable[[int, int], Window], config: InputConfig, flip: bool = False
) -> npt.NDArray[Any]:
    """Returns the window of an image: [image_size, image_size, 3] in [0, 255], uint8 or, for other dtypes, float32.

    Args:
      encoded: A JPEG or PNG file.
      choose: Returns the window for (height, width) of the image.
      config: For image_size, dtype, scaled_decode, resize, and mean as the color of "pad".
      flip: Whether to mirror the image.

    Raises:
      ValueError: It cannot be decoded.
    """
    if encoded.startswith(_JPEG_BEGIN):
        pixels, sides = _jpeg_window(encoded, choose, config)
    else:
        image = _png_pixels(encoded)
        window = choose(*image.shape[:2])
        pixels, sides = _part(image, window), window[2:]
    return _fitted(pixels, sides, config, flip)


def decode_whole(encoded: bytes) -> Pixels:
    """Returns all pixels of a JPEG or PNG file at its own size, [height, width, 3] uint8.

    Raises:
      ValueError: It cannot be decoded.
    """
    if not encoded.startswith(_JPEG_BEGIN):
        return _png_pixels(encoded)
    size = frame_size(encoded)
    if size is None:
        raise ValueError("the JPEG has no frame")
    return cast(Pixels, decode_jpeg(encoded, fastdct=True, fastupsample=True, strict=not _has_end(encoded)))


def cut_window(
    image: Pixels, choose: Callable[[int, int], Window], config: InputConfig, flip: bool = False
) -> npt.NDArray[Any]:
    """Returns the window of an image of decode_whole(); otherwise as decode_window() with scaled_decode=False."""
    window = choose(*image.shape[:2])
    return _fitted(_part(image, window), window[2:], config, flip)


def _png_pixels(encoded: bytes) -> Pixels:
    try:
        with Image.open(io.BytesIO(encoded), formats=("PNG",)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError) as error:  # Pillow raises the latter for damaged PNGs
        raise ValueError(f"not a JPEG or PNG file that can be decoded: {error}") from error


def _fitted(pixels: Pixels, sides: tuple[int, int], config: InputConfig, flip: bool) -> npt.NDArray[Any]:
    """Returns the pixels of a window of the sides (height, width), resized and padded."""
    resize, size = _resized if cv2 is None else _resized_by_opencv, (config.image_size, config.image_size)
    if config.resize == "pad":
        size = padded_sides(sides, config.image_size)
    resized = resize(pixels if config.dtype == "uint8" else pixels.astype(np.float32), size, flip)
    return _padded(resized, config, flip) if config.resize == "pad" else resized


def _has_end(encoded: bytes) -> bool:
    """Returns whether a JPEG has the mark of its end.

    libjpeg reports a missing end as a warning, as it does the rows that are cut off. So a file without an end is
    decoded as a whole, and no warning ignored.
    """
    return encoded.endswith(END) or encoded.find(END, len(encoded) // 2) >= 0


def _jpeg_window(
    encoded: bytes, choose: Callable[[int, int], Window], config: InputConfig
) -> tuple[Pixels, tuple[int, int]]:
    """Returns the pixels of the window, which are decoded at 1/2, 1/4 or 1/8 where it is large, and its own sides."""
    size = frame_size(encoded)
    if size is None:
        raise ValueError("the JPEG has no frame")
    height, width = size
    window, ratio = choose(height, width), 1
    sides = window[2:]
    if config.scaled_decode:
        times = min(sides) // config.image_size
        if config.resize == "pad":  # the longer side becomes image_size; a pixel of the shorter one has to be left
            times = min(max(sides) // config.image_size, *sides)
        ratio = max((divisor for divisor in RATIOS if divisor <= times), default=1)
        window = scaled_window(window, ratio) if ratio > 1 else window
    has_end = _has_end(encoded)
    rows = min(height, (window[0] + window[2]) * ratio)
    if has_end and rows < height:
        encoded, height = with_rows(encoded, rows), rows
    pixels = decode_jpeg(
        encoded,
        fastdct=True,
        fastupsample=True,
        # It takes the smallest size that is no smaller than this.
        min_height=0 if ratio == 1 else -(-height // ratio),
        min_width=0 if ratio == 1 else -(-width // ratio),
        strict=not has_end,
    )
    return _part(cast(Pixels, pixels), window), sides


def _part(pixels: Pixels, window: Window) -> Pixels:
    y, x, height, width = window
    return pixels[y : y + height, x : x + width]


def _padded(image: npt.NDArray[Any], config: InputConfig, flipped: bool) -> npt.NDArray[Any]:
    """Returns an image in the middle of a square of config.image_size, whose rest has the color config.mean."""
    side, (height, width, _) = config.image_size, image.shape
    square = np.empty([side, side, 3], image.dtype)
    square[:] = np.round(config.mean) if image.dtype == np.uint8 else config.mean
    # Of an odd number of columns, one more is on the right; mirrored with the image, on the left.
    above, left = (side - height) // 2, (side - width + flipped) // 2
    square[above : above + height, left : left + width] = image
    return square


def _resized_by_opencv(pixels: npt.NDArray[Any], size: tuple[int, int], flip: bool) -> npt.NDArray[Any]:
    image = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_LINEAR)
    return cast(npt.NDArray[Any], cv2.flip(image, 1, image) if flip else image)


def _resized(pixels: npt.NDArray[Any], size: tuple[int, int], flip: bool) -> npt.NDArray[Any]:
    height, width, _ = pixels.shape
    above, below, below_weights = _neighbours(height, size[0])
    left, right, right_weights = _neighbours(width, size[1])
    turn = slice(None, None, -1 if flip else 1)
    # Columns of a row lie as [width * 3]: one call takes them all.
    left, right = ((columns[turn, None] * 3 + np.arange(3)).ravel() for columns in (left, right))
    lines = np.ascontiguousarray(pixels).reshape(height, -1)
    # Along the rows first, as TensorFlow does: float32 rounds each of the two sums.
    stretched = lines.take(left, 1).astype(np.float32, copy=False)
    stretched += (lines.take(right, 1).astype(np.float32, copy=False) - stretched) * np.repeat(right_weights[turn], 3)
    image = stretched[above]
    image += (stretched[below] - image) * below_weights[:, None]
    image = image if pixels.dtype != np.uint8 else np.rint(image, out=image).astype(np.uint8)
    return image.reshape(*size, 3)


@functools.lru_cache(maxsize=4096)
def _neighbours(
    before: int, after: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Returns, for each of `after` pixels along an axis, its two of `before` pixels, and the weight of the second.

    Pixels are squares, whose middles are half a pixel off their corners; what is beyond the border equals it.
    """
    one = np.float32
    middles = (np.arange(after, dtype=one) + one(0.5)) * (one(before) / one(after)) - one(0.5)
    first = np.floor(middles)
    below, above = np.maximum(first, 0).astype(np.int64), np.minimum(np.ceil(middles), before - 1).astype(np.int64)
    return below, above, middles - first
