"""Decoding of JPEGs that treats libjpeg's warnings as damage; Pillow and TensorFlow ignore these warnings silently.

bytes of a JPEG file ──decode──▶ its pixels, or Damaged: libjpeg's warning

libjpeg continues after a damaged part of a file: it decodes zeros or noise as codes and loses its position, so that the
pixels that follow are shifted, gray or of other colors. It reports damage only as warnings (JWRN_… in jerror.h), and
often the only warning is the number of bytes that were left over after all pixels were decoded. libjpeg-turbo can stop
at the first warning, and simplejpeg's `strict` sets that option. The pixels are equal to those that Pillow decodes, bit
for bit, at 1/2, 1/4 and 1/8 of the size too; Pillow has no other eighths.
"""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from tpu_input.dataset_format import jpeg_markers

Scale = int | Fraction  # the factor by which both sides of an image are reduced while it is decoded
# Pillow's mode: simplejpeg's name
_COLOR_SPACES = {"L": "GRAY", "RGB": "RGB", "RGBX": "RGBX", "CMYK": "CMYK"}
_SHARED_MODES = {"L": "L", "RGB": "RGBX"}  # mode of a JPEG: one with the same pixels that Image.frombuffer() shares
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0x(..)")
# Number of extraneous bytes that is still harmless: undamaged files of some encoders have 1 or 2. Measured on 1,346
# small photographs (256 x 192 pixels, quality 60) in which 1 to 512 bytes were overwritten so that more than 2 % of the
# pixels differed by more than 40: libjpeg warned about 923 of them. Of these, 2 had up to 2 extraneous bytes, 15 had 3
# to 12, and the others had more.
_HARMLESS_BYTES = 2
_READ_AHEAD = 9  # bytes: those already in libjpeg's bit buffer when it begins to count, plus one
# In the error for chroma subsampling that TurboJPEG has no name for, though libjpeg decodes it.
_UNSUPPORTED = "subsampling"


class Damaged(ValueError):
    """Raised with the warning of libjpeg when a JPEG is damaged."""


def decode_plain(data: bytes, header: jpeg_markers.PlainHeader, scale: Scale) -> Image.Image | None:
    """Returns the pixels of a JPEG with a plain header at 1/scale of its size; None if that may fail.

    They are decode()'s, in mode "RGBX" where it has "RGB": Pillow shares the memory of four bytes per pixel,
    which it would copy, byte by byte, of three.

    Args:
      data: The file, with its end marker.
      header: From jpeg_markers.plain_header().
      scale: 1, 2, 4 or 8; sizes are rounded up.
    """
    try:
        pixels = _decode(data, header, scale, _SHARED_MODES[header.mode])
    except ValueError:
        return None
    mode, (height, width, _) = _SHARED_MODES[header.mode], pixels.shape
    return Image.frombuffer(mode, (width, height), pixels, "raw", mode, 0, 1)


def decode(data: bytes, image: Image.Image, scale: Scale) -> Image.Image | None:
    """Returns the pixels of a JPEG at 1/scale of its size, or None if Pillow has to decode it.

    Args:
      data: The file; if it lacks the end marker, the marker is added.
      image: The same file, opened by Pillow.
      scale: 8 divided by 1 to 8; sizes are rounded up.

    Raises:
      Damaged: libjpeg warns about something that changes pixels.
      MemoryError: There is too little memory now; nothing is known about the image.
    """
    # A lossless JPEG cannot be decoded at a reduced scale.
    if image.mode not in _COLOR_SPACES or not jpeg_markers.is_decoded(data):
        return None
    if not jpeg_markers.has_end(data):
        data += jpeg_markers.END
    try:
        if image.mode == "CMYK":  # only checked here: Pillow inverts the values if Adobe's marker requires it
            _decode(data, image, 8, image.mode)
            return None
        pixels = _decode(data, image, scale, image.mode)
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


def _decode(
    data: bytes, image: Image.Image | jpeg_markers.PlainHeader, scale: Scale, mode: str
) -> npt.NDArray[np.uint8]:
    height, width = int(-(-image.height // scale)), int(-(-image.width // scale))
    pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
        data, _COLOR_SPACES[mode], min_height=height, min_width=width, min_factor=scale, strict=True
    )
    return pixels


def _warning_of(data: bytes, image: Image.Image) -> str:
    """Returns the first warning of libjpeg, "" if there is none."""
    try:
        _decode(data, image, 8, image.mode)
    except ValueError as error:
        return str(error)
    return ""


def _is_harmless(warning: str, data: bytes) -> bool:
    """Returns whether a warning is only about a few extraneous bytes, or about padding before the end marker.

    Some encoders, for instance of webcams, pad the file with zeros to a multiple of some size. A damaged part of zeros
    that reaches to the end marker begins long before the bytes that are left over, so it is longer than padding.
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
