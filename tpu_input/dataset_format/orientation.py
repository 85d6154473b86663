"""Conversion of an opened image to upright RGB or grayscale in sRGB; shared by conversion and prediction."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Literal

import numpy as np
from PIL import ExifTags, Image, ImageChops, TiffImagePlugin

from tpu_input.dataset_format import color_profiles

# The formats in docs/conversion.md; none that starts other programs, as EPS starts Ghostscript. JPEG includes MPO.
FORMATS: tuple[str, ...] = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF", "JPEG2000")
# The extra heic. It turns images as their container says, and removes the orientation from their EXIF.
with contextlib.suppress(ImportError):
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False)
    FORMATS = (*FORMATS, "HEIF")
STORED_MODES = {"L": 1, "RGB": 3}  # mode: channels
ColorProfiles = Literal["convert", "ignore"]
_BAND_PIXELS = 1 << 20  # pixels processed at a time, so that no step copies the complete image
_BITS, _PHOTOMETRIC = 258, 262  # TIFF's tags BitsPerSample and PhotometricInterpretation
_WHITE_IS_ZERO = 0
_SAMPLE_FORMAT, _UNSIGNED = 339, {1, 4}  # TIFF's tag SampleFormat: whole numbers from 0, or not defined
_TURNS = {  # EXIF orientation: the transpose that makes the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def has_unknown_range(image: Image.Image) -> bool:
    """Returns whether it is unknown which pixel values of an image are black and white."""
    # A 16-bit PNG or PNM opens as "I;16" or "I" with values up to 65,535. The "I" of a TIFF may have any range.
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        formats = image.tag_v2.get(_SAMPLE_FORMAT, ())
        if not {*(formats if isinstance(formats, tuple) else (formats,))} <= _UNSIGNED:  # Pillow takes -10 as 246
            return True
        if image.mode.startswith("I"):
            return image.mode == "I" or image.tag_v2.get(_BITS) != (16,)
    return image.mode == "F"


def orientation_transpose(image: Image.Image) -> Image.Transpose | None:
    """Returns the transpose that makes an image upright; None if it is upright, or if its EXIF is unreadable."""
    try:
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except MemoryError:
        raise
    except Exception:  # any exception that damaged EXIF causes; viewers ignore it too, as the pixels may be fine
        return None


def apply_orientation(image: Image.Image, profiles: str = "convert", pixels: Image.Image | None = None) -> Image.Image:
    """Returns the image as a viewer shows it: upright, RGB or grayscale in sRGB, on white where it is transparent.

    Args:
      image: Opened by Pillow. It is closed unless it is the image that is returned, to free its memory.
      profiles: "convert": colors are converted to sRGB by the image's ICC profile; "ignore": pixel values are kept.
      pixels: Pixels of the image if they were not decoded by Pillow, perhaps downscaled; None to decode the image.
    """
    # Not ImageOps.exif_transpose(): that would also rewrite the EXIF data, and fail on unusual tags.
    change = orientation_transpose(image)
    pixels = pixels or image
    pixels.load()
    if pixels.mode == "RGBA" and image.format in ("BMP", "DIB") and is_transparent(pixels):
        pixels = pixels.convert("RGB")  # many programs leave the fourth byte 0, and viewers show such a BMP as opaque
    profiled = image if profiles == "convert" and color_profiles.effect(image) == "converted" else None
    if profiled or pixels.mode not in STORED_MODES or pixels.has_transparency_data:
        is_grey = (pixels.mode in ("1", "L") and not pixels.has_transparency_data) or pixels.mode.startswith("I")
        pixels = _in_bands(
            pixels,
            "L" if is_grey else "RGB",
            functools.partial(_opaque, profiled=profiled, is_negative=_is_negative(image)),
        )
    if pixels is not image:
        image.close()
    return pixels if change is None else pixels.transpose(change)


def _in_bands(image: Image.Image, mode: str, function: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Returns function(image), computed in bands of rows to save memory.

    The function must treat each pixel independently and return an image of `mode`.
    """
    boxes = _boxes(image)
    if len(boxes) == 1:
        return function(image)
    result = Image.new(mode, image.size)
    for box in boxes:
        result.paste(function(image.crop(box)), box)
    return result


def is_transparent(image: Image.Image) -> bool:
    """Returns whether no pixel of a decoded image is visible."""
    if not image.has_transparency_data:
        return False
    return not any(image.crop(box).convert("RGBA").getchannel("A").getextrema()[1] for box in _boxes(image))


def is_dark(image: Image.Image) -> bool:
    """Returns whether a decoded grayscale image of 16 bits uses at most 14 of them, as cameras and scanners record."""
    if not image.mode.startswith("I"):
        return False
    # Pillow has the extrema of "I", but not of all modes of 16 bits.
    return all(np.asarray(image.crop(box).convert("I")).max() < 1 << 14 for box in _boxes(image))


def _boxes(image: Image.Image) -> list[tuple[int, int, int, int]]:
    """Returns the bands of rows of an image, each as (left, top, right, bottom)."""
    rows = max(_BAND_PIXELS // image.width, 1)
    return [(0, top, image.width, min(top + rows, image.height)) for top in range(0, image.height, rows)]


def _is_negative(image: Image.Image) -> bool:
    """Returns whether 0 is white, which Pillow applies to TIFFs of 8 bits, but not of 16."""
    if not (isinstance(image, TiffImagePlugin.TiffImageFile) and image.mode.startswith("I")):
        return False
    return bool(image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO)


def _opaque(image: Image.Image, profiled: Image.Image | None, is_negative: bool) -> Image.Image:
    """Returns an image, or some rows of one, on white, RGB or grayscale; in sRGB by `profiled`'s profile, if any."""
    if image.mode.startswith("I"):
        return _sixteen_bits_to_grey(image, profiled, is_negative)
    if not image.has_transparency_data:
        if image.mode != "CMYK":  # profiles of CMYK convert to RGB
            image = image.convert("L" if image.mode in ("1", "L") else "RGB")
        image = color_profiles.to_srgb(image, profiled) if profiled else image
        return image.convert("RGB") if image.mode == "CMYK" else image
    layer = image.convert("RGBA")
    if profiled:  # profiles do not apply to the alpha channel
        alpha = layer.getchannel("A")
        colors = image.getchannel(0) if image.mode in ("L", "LA") else layer.convert("RGB")
        layer = color_profiles.to_srgb(colors, profiled).convert("RGB")
        layer.putalpha(alpha)
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer).convert("RGB")


def _sixteen_bits_to_grey(image: Image.Image, profiled: Image.Image | None, is_negative: bool) -> Image.Image:
    """Returns a 16-bit grayscale image as "L", with white for the gray that a PNG's tRNS declares transparent."""
    values = np.asarray(image.convert("I"))
    grey = Image.fromarray((values.clip(0, 65535) >> 8).astype(np.uint8))
    grey = ImageChops.invert(grey) if is_negative else grey
    grey = color_profiles.to_srgb(grey, profiled) if profiled else grey
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey.paste(255, mask=Image.fromarray(values == transparent))
    return grey
