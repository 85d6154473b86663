"""Small pictures for the report: bytes of an image file ──decode, shrink──▶ Thumbnail.

Damaged images are shown as far as they can be decoded: the rest of a truncated photograph stays gray or black.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from typing import NamedTuple

from PIL import ImageOps

from beam_pipelines import storage
from beam_pipelines.images.near_duplicates import load_small
from beam_pipelines.runners.executors import map_in_threads

SIDE = 96  # pixels; with the first of _QUALITIES, a photograph takes 3 KB, and noise, the worst case, 6 KB
LARGE_SIDE = 256  # pixels, for images that are to be compared; a photograph takes 14 KB
_QUALITIES = (75, 60, 40, 20)
_MOST_BYTES = 24_000  # of a picture: noise of LARGE_SIDE pixels would take twice as much in the first quality
_MAX_BYTES = 64 << 20  # largest rejected file that is read for a thumbnail
READS_IN_FLIGHT = 16


class Thumbnail(NamedTuple):
    """A small picture.

    Attributes:
      uri: A data: URI of a JPEG.
      width: Pixels, at most SIDE or LARGE_SIDE.
      height: Pixels, likewise.
    """

    uri: str
    width: int
    height: int


def thumbnail(data: bytes, side: int = SIDE) -> Thumbnail | None:
    """Returns a thumbnail of the image in `data`, as far as it can be decoded.

    Args:
      data: The file.
      side: Largest width and height in pixels.

    Returns:
      The thumbnail, or None if the image cannot be opened, or is too large or too slow to decode.
    """
    try:
        if not (image := load_small(data, side=2 * side)):
            return None
        upright = ImageOps.exif_transpose(image).convert("RGB")
        upright.thumbnail((side, side))
        for quality in _QUALITIES:
            buffer = io.BytesIO()
            upright.save(buffer, "JPEG", quality=quality)
            if buffer.tell() <= _MOST_BYTES:
                break
    except Exception:  # damaged files cause exceptions of many types in Pillow
        return None
    uri = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return Thumbnail(uri, upright.width, upright.height)


def source_thumbnail(uri: str) -> Thumbnail | None:
    """Returns a thumbnail of a source; None if it no longer exists, is too large, or cannot be decoded even in part."""
    try:
        return thumbnail(storage.read_bytes(uri)) if 0 < storage.file_bytes(uri) <= _MAX_BYTES else None
    except Exception:  # filesystems raise many types for an object that they cannot read
        return None


def source_thumbnails(uris: Iterable[str]) -> list[Thumbnail | None]:
    """Returns the thumbnail of each source, in order; see source_thumbnail()."""
    return list(map_in_threads(source_thumbnail, uris, READS_IN_FLIGHT))
