"""A decoded image → as a viewer shows it, RGB or greyscale, and no larger than it has to be."""

from __future__ import annotations

from PIL import ExifTags, Image

_TURNS = {  # EXIF orientation: what makes it upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


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
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode in ("1", "LA") else "RGB")


def shrunk(image: Image.Image, shorter: int) -> Image.Image:
    """Returns the image with a shorter side of `shorter` pixels, if it is larger."""
    scale = shorter / min(image.size)
    if not 0 < scale < 1:
        return image
    size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
    return image.resize(size, Image.Resampling.BICUBIC)
