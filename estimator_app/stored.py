"""An image file as a conversion would have stored it, which is what evaluation sees.

    upright JPEG, RGB or greyscale, in sRGB ──▶ the same bytes
    anything else that is read ──▶ turned as EXIF says, in sRGB, on white, RGB or greyscale ──▶ a JPEG

beam_pipelines.images.check decides so with its default options. It cannot be asked: it belongs to another program,
whose dependencies are not installed where a model serves; a test holds the two against each other.
"""

from __future__ import annotations

import io
import warnings

from PIL import Image

from tpu_input.dataset_format import color_profiles
from tpu_input.dataset_format.decode_limits import MAX_PIXELS, too_large, too_slow
from tpu_input.dataset_format.orientation import FORMATS, KEPT_MODES, has_unknown_range, turn, upright

_QUALITY = 90  # what a conversion encodes with unless told otherwise


def as_stored(encoded: bytes) -> bytes | ValueError:
    """Returns the file that a conversion would have stored, or why it would have stored none.

    A file that cannot be opened is returned as it is: whoever decodes it says what it is.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and sizes that are checked below
            image = Image.open(io.BytesIO(encoded), formats=FORMATS)
    except Image.DecompressionBombError as error:
        return ValueError(f"{error}; make the image smaller")
    except Exception:  # UnidentifiedImageError, and whatever else damaged headers provoke
        return encoded
    if why := too_large(image, MAX_PIXELS):
        return ValueError(f"{why}; make the image smaller")
    if why := too_slow(image, encoded, MAX_PIXELS):
        return ValueError(f"{why}; save it again as a baseline JPEG")
    is_srgb = color_profiles.effect(image) != "converted"
    if image.format in ("JPEG", "MPO") and image.mode in KEPT_MODES and turn(image) is None and is_srgb:
        return encoded
    try:
        if image.format != "MPO" and getattr(image, "is_animated", False):  # MPO: a preview behind the photograph
            return ValueError(f"{image.format} of {getattr(image, 'n_frames', 0)} frames; give one of them as a file")
        if has_unknown_range(image):
            return ValueError(
                f"{image.format} of mode {image.mode}, whose black and white are unknown; scale it to 8 bits"
            )
        buffer = io.BytesIO()
        upright(image).save(buffer, "JPEG", quality=_QUALITY, comment=b"")
        return buffer.getvalue()
    except Exception:  # Pillow's decoders raise OSError, SyntaxError, IndexError, struct.error, …
        return ValueError(f"a damaged {image.format} file")
