"""One decode of one image: is it whole, can a trainer's decoder read it, what does it measure?

bytes of a file ──check_image──▶ CheckedImage (a JPEG that TensorFlow decodes), or Rejected with a reason code
"""

from __future__ import annotations

import io
import warnings
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps

MAX_PIXELS = 178_956_970  # Pillow's own limit for decompression bombs, twice 1/4 GiB of RGB
SAMPLE_SIDE = 64  # pixels; the mean and deviation of a split come from 64 x 64 pixels of each image
_QUALITY = 95
_KEPT_MODES = {"L": 1, "RGB": 3}  # mode: channels
_ROTATED = frozenset(range(2, 9))  # EXIF orientations that need a change


class Rejected(Exception):
    """An input that cannot become a record.

    Attributes:
      reason: A stable code, e.g. "truncated".
      detail: What was seen.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class CheckedImage(NamedTuple):
    """An image as it will be stored.

    Attributes:
      encoded: A JPEG file, RGB or greyscale.
      height: Pixels.
      width: Pixels.
      channels: 3 or 1.
      sums: Red, green and blue summed over SAMPLE_SIDE x SAMPLE_SIDE of its pixels, each in [0, 255].
      squares: Their squares, summed likewise.
      fixed: Why it was encoded again, e.g. "format PNG"; "" if it is stored byte for byte.
    """

    encoded: bytes
    height: int
    width: int
    channels: int
    sums: list[int]
    squares: list[int]
    fixed: str


def check_image(data: bytes) -> CheckedImage:
    """Returns the image that `data` holds, decoded once and whole.

    Raises:
      Rejected: "empty", "not_an_image", "too_large", "animated", "truncated" or "corrupt".
    """
    image = _open(data)
    try:
        image.load()
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error, …
        reason = "truncated" if "truncated" in str(error) else "corrupt"
        raise Rejected(reason, f"{image.format}: {error}") from error
    fixed = _needs(image)
    if fixed:
        image, data = _encode_again(image)
    sample = image.resize((SAMPLE_SIDE, SAMPLE_SIDE), Image.Resampling.NEAREST).convert("RGB")
    pixels = np.asarray(sample, np.int64).reshape(-1, 3)
    sums, squares = pixels.sum(axis=0).tolist(), (pixels * pixels).sum(axis=0).tolist()
    return CheckedImage(data, image.height, image.width, _KEPT_MODES[image.mode], sums, squares, fixed)


def _open(data: bytes) -> Image.Image:
    if not data:
        raise Rejected("empty", "0 bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and sizes that are checked below
            image = Image.open(io.BytesIO(data))
    except Image.DecompressionBombError as error:
        raise Rejected("too_large", str(error)) from error
    except Exception as error:  # UnidentifiedImageError, and whatever else damaged headers provoke
        raise Rejected("not_an_image", f"begins with {data[:8]!r}") from error
    if image.width * image.height > MAX_PIXELS:
        raise Rejected("too_large", f"{image.width} x {image.height} pixels, at most {MAX_PIXELS} in all")
    if image.format != "MPO" and getattr(image, "is_animated", False):  # MPO: a camera's preview behind the photograph
        raise Rejected("animated", f"{image.format} of {getattr(image, 'n_frames', 0)} frames")
    return image


def _needs(image: Image.Image) -> str:
    """Returns why an image cannot be stored as it is, or ""."""
    if image.format not in ("JPEG", "MPO"):
        return f"format {image.format}"
    if image.mode not in _KEPT_MODES:
        return f"mode {image.mode}"
    if image.getexif().get(ExifTags.Base.Orientation) in _ROTATED:
        return "orientation"
    return ""


def _encode_again(image: Image.Image) -> tuple[Image.Image, bytes]:
    """Returns the image upright, RGB or greyscale, without alpha, and its JPEG file."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    elif image.mode not in _KEPT_MODES:
        image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return image, buffer.getvalue()
