"""An opened image → as a viewer shows it, RGB or greyscale: the same for what is converted and what is predicted."""

from __future__ import annotations

from PIL import ExifTags, Image, TiffImagePlugin

# What docs/conversion.md names, and none that starts other programs, as EPS does Ghostscript. JPEG includes MPO.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
KEPT_MODES = {"L": 1, "RGB": 3}  # mode: channels
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


def turn(image: Image.Image) -> Image.Transpose | None:
    """Returns what makes an image upright, None if it is; also where its EXIF cannot be read, as viewers do."""
    try:
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except MemoryError:
        raise
    except Exception:  # whatever damaged EXIF provokes; it says nothing against the pixels
        return None


def upright(image: Image.Image) -> Image.Image:
    """Returns the image as a viewer shows it, RGB or greyscale, on white where it is transparent."""
    change = turn(image)  # ImageOps.exif_transpose() would also write the EXIF anew, and fail at odd tags
    if change is not None:
        image = image.transpose(change)
    if image.mode.startswith("I"):
        return image.convert("I").point(lambda value: value / 256).convert("L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if image.mode in KEPT_MODES:
        return image
    return image.convert("L" if image.mode in ("1", "LA") else "RGB")
