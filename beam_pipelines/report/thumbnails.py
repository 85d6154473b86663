"""Small pictures for the report: bytes of an image file ──decode, shrink──▶ Thumbnail, or grey values to compare.

Damaged images are shown as far as they can be decoded: the rest of a truncated photograph stays grey or black.
"""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps

from beam_pipelines import storage
from tpu_input.dataset_format.decode_limits import MAX_PIXELS, too_slow
from tpu_input.dataset_format.orientation import FORMATS, orientation_transpose

SIDE = 96  # pixels; with _QUALITY, a photograph takes 3 KB, and noise, the worst case, 6 KB
_QUALITY = 75
SAMPLE_SIDE = 32  # pixels; see near_duplicates.py
# Pixels of each side that libjpeg's scaling leaves at least. Of half as many, the 32 areas of a row are 2 or 3 pixels
# wide in turn, and the same photograph at another size correlates with itself by 0.991 only.
_DECODED_SIDE = 192
_MAX_PIXELS = 40_000_000  # most pixels decoded; libjpeg's scaling reduces larger JPEGs first
_MAX_BYTES = 64 << 20  # largest rejected file that is read for a thumbnail
READS_IN_FLIGHT = 16


class Thumbnail(NamedTuple):
    """A small picture.

    Attributes:
      uri: A data: URI of a JPEG.
      width: Pixels, at most SIDE.
      height: Pixels, at most SIDE.
    """

    uri: str
    width: int
    height: int


def thumbnail(data: bytes) -> Thumbnail | None:
    """Returns a thumbnail of the image in `data`, as far as it can be decoded.

    Returns:
      The thumbnail, or None if the image cannot be opened, or is too large or too slow to decode.
    """
    try:
        if not (image := _loaded(data)):
            return None
        upright = ImageOps.exif_transpose(image).convert("RGB")
        upright.thumbnail((SIDE, SIDE))
        buffer = io.BytesIO()
        upright.save(buffer, "JPEG", quality=_QUALITY)
    except Exception:  # damaged files cause exceptions of many types in Pillow
        return None
    uri = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return Thumbnail(uri, upright.width, upright.height)


def grey_sample(data: bytes) -> npt.NDArray[np.float32] | None:
    """Returns the grey values of the image in `data`, upright and resized to 32 x 32, as far as it can be decoded.

    Of a JPEG only the brightness is decoded, in less than half of the time that its colors take.

    Returns:
      [1024] 0 to 255, or None if the image cannot be opened, or is too large or too slow to decode.
    """
    try:
        if not (image := _loaded(data, "L")):
            return None
        small = image.convert("L").resize((SAMPLE_SIDE, SAMPLE_SIDE), Image.Resampling.BOX)
        if (transpose := orientation_transpose(image)) is not None:
            small = small.transpose(transpose)
    except Exception:  # damaged files cause exceptions of many types in Pillow
        return None
    return np.asarray(small, np.float32).ravel()


def _loaded(data: bytes, mode: str | None = None) -> ImageFile.ImageFile | None:
    """Returns an image with its pixels as far as they can be decoded; None if that would take too long.

    Args:
      data: The file.
      mode: "L" to decode only the brightness of a JPEG; None for its colors.
    """
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    if too_slow(image, data, MAX_PIXELS):
        return None
    image.draft(mode, (_DECODED_SIDE, _DECODED_SIDE))
    if image.width * image.height > _MAX_PIXELS:
        return None
    with contextlib.suppress(OSError, SyntaxError):  # pixels decoded before the end or damage remain
        image.load()
    image.tile = []  # otherwise the next step would decode again
    return image


def of_source(uri: str) -> Thumbnail | None:
    """Returns a thumbnail of a source; None if it no longer exists, is too large, or cannot be decoded even in part."""
    try:
        return thumbnail(storage.read_bytes(uri)) if 0 < storage.file_bytes(uri) <= _MAX_BYTES else None
    except Exception:  # filesystems raise many types for an object that they cannot read
        return None


def of_sources(uris: Iterable[str]) -> list[Thumbnail | None]:
    """Returns the thumbnail of each source, in order; see of_source()."""
    with ThreadPoolExecutor(READS_IN_FLIGHT) as pool:
        return list(pool.map(of_source, uris))
