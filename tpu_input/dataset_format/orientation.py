"""An opened image → as a viewer shows it, RGB or greyscale: the same for what is converted and what is predicted."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from PIL import ExifTags, Image, TiffImagePlugin

from tpu_input.dataset_format import color_profiles

# What docs/conversion.md names, and none that starts other programs, as EPS does Ghostscript. JPEG includes MPO.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
KEPT_MODES = {"L": 1, "RGB": 3}  # mode: channels
COLOR_PROFILES = ("convert", "ignore")
_BAND_PIXELS = 1 << 20  # worked on at once, so that no step holds a copy of the whole image
_BITS = 258  # TIFF's tag BitsPerSample
_TURNS = {  # EXIF orientation: what makes it upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def has_unknown_range(image: Image.Image) -> bool:
    """Returns whether nothing says which values of an image are black and white."""
    # A 16-bit PNG or PNM opens as "I;16" or "I" with values up to 65,535. Those of a TIFF's "I" may be any.
    if isinstance(image, TiffImagePlugin.TiffImageFile) and image.mode.startswith("I"):
        return image.mode == "I" or image.tag_v2.get(_BITS) != (16,)
    return image.mode == "F"


def orientation_transpose(image: Image.Image) -> Image.Transpose | None:
    """Returns what makes an image upright, None if it is; also where its EXIF cannot be read, as viewers do."""
    try:
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except MemoryError:
        raise
    except Exception:  # whatever damaged EXIF provokes; it says nothing against the pixels
        return None


def apply_orientation(image: Image.Image, profiles: str = "convert", pixels: Image.Image | None = None) -> Image.Image:
    """Returns the image as a viewer shows it: turned, in sRGB, RGB or greyscale, on white where it is transparent.

    Args:
      image: Opened by Pillow. It is closed unless it is what is returned, to give its memory back.
      profiles: "convert": colors become sRGB as the image's ICC profile says; "ignore": their numbers stay.
      pixels: The image's, where something else than Pillow has decoded them; perhaps smaller.
    """
    change = orientation_transpose(
        image
    )  # ImageOps.exif_transpose() would also write the EXIF anew, and fail at odd tags
    pixels = pixels or image
    pixels.load()
    profiled = image if profiles == "convert" and color_profiles.effect(image) == "converted" else None
    if profiled or pixels.mode not in KEPT_MODES or pixels.has_transparency_data:
        is_grey = (pixels.mode in ("1", "L") and not pixels.has_transparency_data) or pixels.mode.startswith("I")
        pixels = _in_bands(pixels, "L" if is_grey else "RGB", functools.partial(_opaque, profiled=profiled))
    if pixels is not image:
        image.close()
    return pixels if change is None else pixels.transpose(change)


def _in_bands(image: Image.Image, mode: str, function: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Returns function(image), which works on each pixel alone and gives `mode`, with the memory of some rows."""
    rows = max(_BAND_PIXELS // image.width, 1)
    if rows >= image.height:
        return function(image)
    whole = Image.new(mode, image.size)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        whole.paste(function(image.crop(box)), box)
    return whole


def _opaque(image: Image.Image, profiled: Image.Image | None) -> Image.Image:
    """Returns an image, or some rows of one, on white, RGB or greyscale; in sRGB if `profiled` has another profile."""
    if image.mode.startswith("I"):
        return _of_sixteen_bits(image, profiled)
    if not image.has_transparency_data:
        if image.mode != "CMYK":  # whose profiles give RGB
            image = image.convert("L" if image.mode in ("1", "L") else "RGB")
        image = color_profiles.to_srgb(image, profiled) if profiled else image
        return image.convert("RGB") if image.mode == "CMYK" else image
    layer = image.convert("RGBA")
    if profiled:  # which says nothing of the alpha channel
        alpha = layer.getchannel("A")
        colors = image.getchannel(0) if image.mode in ("L", "LA") else layer.convert("RGB")
        layer = color_profiles.to_srgb(colors, profiled).convert("RGB")
        layer.putalpha(alpha)
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer).convert("RGB")


def _of_sixteen_bits(image: Image.Image, profiled: Image.Image | None) -> Image.Image:
    """Returns greys of 16 bits as "L", white where the one is that a PNG's tRNS calls transparent."""
    values = np.asarray(image.convert("I"))
    grey = Image.fromarray((values.clip(0, 65535) >> 8).astype(np.uint8))
    grey = color_profiles.to_srgb(grey, profiled) if profiled else grey
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey.paste(255, mask=Image.fromarray(values == transparent))
    return grey
