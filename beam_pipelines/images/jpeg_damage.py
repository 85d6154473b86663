"""JPEGs decoded with libjpeg's warnings of damage, which Pillow and TensorFlow pass over without a word.

bytes of a JPEG file ──decode──▶ its pixels, or Damaged: libjpeg's warning

libjpeg goes on behind a hole in a file: it takes zeros or noise for codes, loses its place, and what follows is
shifted, gray or of other colors. All that it says is a warning (jerror.h calls them JWRN_…), and often the only one is
the number of bytes that were left when all pixels were there. libjpeg-turbo stops at the first warning if it is told
so, as simplejpeg tells it; the pixels are those that Pillow decodes, bit for bit, at any scale.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from tpu_input.dataset_format import jpeg_markers

_COLOR_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}  # of Pillow's modes
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0x(..)")
# Files of some encoders that are otherwise good have 1 or 2. Of 1,346 small photographs (256 x 192 pixels, quality 60)
# in which 1 to 512 bytes were overwritten, and more than 2 % of the pixels differed by more than 40 then, 923 were
# warned of: 2 with up to 2 such bytes, 15 with 3 to 12, the others with more.
_HARMLESS_BYTES = 2
_READ_AHEAD = 9  # bytes that libjpeg has taken into its bit buffer when it begins to count, and one more
_UNSUPPORTED = "subsampling"  # of chroma, in ratios that TurboJPEG has no name for, though libjpeg decodes them


class Damaged(ValueError):
    """What libjpeg warns of."""


def decode(data: bytes, image: Image.Image, scale: int) -> Image.Image | None:
    """Returns the pixels of a JPEG, at 1/scale of its size; None where that cannot be said, and Pillow has to decode.

    Args:
      data: The file; one that lacks its end marker is looked at as if it had it.
      image: The same, opened by Pillow.
      scale: 1, 2, 4 or 8; sizes are rounded up.

    Raises:
      Damaged: libjpeg warns of something that changes pixels.
      MemoryError: Nothing is known about the image.
    """
    if image.mode not in _COLOR_SPACES or not jpeg_markers.is_decoded(data):  # lossless ones have no smaller sizes
        return None
    if not jpeg_markers.has_end(data):
        data += jpeg_markers.END
    try:
        if image.mode == "CMYK":  # whose numbers Pillow inverts where Adobe's marker says so
            _decode(data, image, 8)
            return None
        pixels = _decode(data, image, scale)
        return Image.fromarray(pixels[:, :, 0] if image.mode == "L" else pixels)
    except ValueError as error:
        warning = str(error)
    if "memory" in warning.lower():  # "Insufficient memory (case 4)": jerror.h, JERR_OUT_OF_MEMORY
        raise MemoryError(warning)
    if _UNSUPPORTED in warning:
        return None
    warning = _warning_of(jpeg_markers.bare(data), image)
    if warning and not _is_harmless(warning, data):
        raise Damaged(warning)
    return None


def _decode(data: bytes, image: Image.Image, scale: int) -> npt.NDArray[np.uint8]:
    height, width = -(-image.height // scale), -(-image.width // scale)
    pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
        data, _COLOR_SPACES[image.mode], min_height=height, min_width=width, min_factor=scale, strict=True
    )
    return pixels


def _warning_of(data: bytes, image: Image.Image) -> str:
    """Returns the first thing that libjpeg warns of, "" if there is none."""
    try:
        _decode(data, image, 8)
    except ValueError as error:
        return str(error)
    return ""


def _is_harmless(warning: str, data: bytes) -> bool:
    """Returns whether a warning is of a few bytes too many, or of bytes that only fill up the file before its end.

    Some encoders, of webcams for instance, fill up to a multiple of some size with zeros. A hole of zeros that reaches
    up to the end marker begins long before the bytes that are left over.
    """
    match = _EXTRANEOUS.search(warning)
    if not match:
        return False
    number, marker = int(match[1]), bytes.fromhex(match[2])
    if number <= _HARMLESS_BYTES:
        return True
    image = data[: jpeg_markers.end(data)]
    filling = len(image) - len(image.rstrip(image[-1:]))
    return marker == jpeg_markers.END[1:] and number <= filling <= number + _READ_AHEAD
