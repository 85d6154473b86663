"""Small pictures for a page: bytes of an image file ──decode, shrink──▶ Thumbnail.

What is damaged is shown as far as it can be decoded: the rest of a truncated photograph stays grey or black.
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
from PIL import Image, ImageOps

from beam_pipelines import storage
from tpu_input.dataset_format.decode_limits import MAX_PIXELS, too_slow
from tpu_input.dataset_format.orientation import FORMATS

SIDE = 96  # pixels; with _QUALITY 3 KB of a photograph, and 6 KB of noise, the worst there is
_QUALITY = 75
SAMPLE_SIDE = 32  # pixels; see near_duplicates.py
_MAX_PIXELS = 40_000_000  # decoded at once; JPEGs of any size come down to that by libjpeg's scaling
_MAX_BYTES = 64 << 20  # of a rejected file that is read once more
READS_IN_FLIGHT = 16


class Thumbnail(NamedTuple):
    """A picture.

    Attributes:
      uri: A data: URI of a JPEG.
      width: Pixels, at most SIDE.
      height: Pixels, at most SIDE.
      sample: [1024] float32, the grey values of the picture squeezed into 32 x 32.
    """

    uri: str
    width: int
    height: int
    sample: npt.NDArray[np.float32]


def thumbnail(data: bytes) -> Thumbnail | None:
    """Returns a picture of what `data` shows, as far as it can be decoded; None if nothing can."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if too_slow(image, data, MAX_PIXELS):
            return None
        image.draft(None, (2 * SIDE, 2 * SIDE))
        if image.width * image.height > _MAX_PIXELS:
            return None
        with contextlib.suppress(OSError, SyntaxError):  # what a decoder that meets the end or damage has done, stays
            image.load()
        image.tile = []  # or else the next step would begin again
        upright = ImageOps.exif_transpose(image).convert("RGB")
        sample = np.asarray(upright.convert("L").resize((SAMPLE_SIDE, SAMPLE_SIDE), Image.Resampling.BOX))
        upright.thumbnail((SIDE, SIDE))
        buffer = io.BytesIO()
        upright.save(buffer, "JPEG", quality=_QUALITY)
    except Exception:  # whatever damaged files provoke in Pillow's decoders
        return None
    uri = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return Thumbnail(uri, upright.width, upright.height, sample.astype(np.float32).ravel())


def of_source(uri: str) -> Thumbnail | None:
    """Returns a picture of a source, if it is still there and can be decoded at least in part."""
    try:
        return thumbnail(storage.read_bytes(uri)) if 0 < storage.file_bytes(uri) <= _MAX_BYTES else None
    except Exception:  # whatever a filesystem raises for an object that it cannot deliver
        return None


def of_sources(uris: Iterable[str]) -> list[Thumbnail | None]:
    """Returns a picture of each source, in order."""
    with ThreadPoolExecutor(READS_IN_FLIGHT) as pool:
        return list(pool.map(of_source, uris))
