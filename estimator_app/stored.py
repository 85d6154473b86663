"""An image file as a conversion would have stored it, which is what evaluation sees.

    upright JPEG, RGB or greyscale ──▶ the same bytes
    anything else that Pillow reads ──▶ turned as EXIF says, on white, RGB or greyscale ──▶ a JPEG

beam_pipelines.images does the same with its default options. It cannot be asked: it belongs to another program, whose
dependencies are not installed where a model serves; a test holds the two against each other.
"""

from __future__ import annotations

import io

from PIL import ExifTags, Image, ImageOps

_KEPT_MODES = ("L", "RGB")
_ROTATED = range(2, 9)  # EXIF orientations that need a change
_QUALITY = 90  # what a conversion encodes with unless told otherwise


def as_stored(encoded: bytes) -> bytes | ValueError:
    """Returns the file that a conversion would have stored, or why it would have stored none.

    A file that Pillow cannot open is returned as it is: whoever decodes it says what it is.
    """
    try:
        image = Image.open(io.BytesIO(encoded))
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # UnidentifiedImageError, and whatever else damaged headers provoke
        return encoded
    if image.format in ("JPEG", "MPO") and image.mode in _KEPT_MODES and orientation not in _ROTATED:
        return encoded
    if image.format != "MPO" and getattr(image, "is_animated", False):  # MPO: a preview behind the photograph
        return ValueError(f"{image.format} of {getattr(image, 'n_frames', 0)} frames; give one of them as a file")
    try:
        buffer = io.BytesIO()
        _upright(image).save(buffer, "JPEG", quality=_QUALITY, comment=b"")
        return buffer.getvalue()
    except Exception:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error, …
        return ValueError(f"a damaged {image.format} file")


def _upright(image: Image.Image) -> Image.Image:
    """Returns the image as a viewer shows it, RGB or greyscale, on white where it is transparent."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return image.convert("I").point(lambda value: value / 256).convert("L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if image.mode in _KEPT_MODES:
        return image
    return image.convert("L" if image.mode in ("1", "LA") else "RGB")
