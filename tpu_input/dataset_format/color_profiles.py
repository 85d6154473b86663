"""ICC profiles: which images are stored in other colors than sRGB, and the same colors as sRGB.

    image with a profile ──effect──▶ "" as good as sRGB, "converted", or "unusable"
    its pixels           ──to_srgb──▶ the same picture in sRGB, RGB or greyscale

Trainers and the models that they export know no profiles: they take every number for sRGB. LittleCMS, which comes with
Pillow, does the arithmetic (PIL.ImageCms; rendering intent "perceptual", as for ImageCms.profileToProfile).
TensorFlow-free.
"""

from __future__ import annotations

import functools
import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageCms

# Levels of 255 by which a profile may change greys and _MOST colors and still be called sRGB. Cameras and editors embed
# dozens of variants of it, shortened or rounded. Primaries that are off by 0.0001, as by rounding, change 95 % of the
# colors by up to 1.4 levels, and by up to 4 those in which a channel is nearly 0; Display P3 changes half by over 15.
TOLERANCE = 2
_MOST = 0.95
_STEPS = 9  # of each channel, to find out what a profile changes: 729 colors, and all 256 greys
_GREY_MODES = ("L", "LA", "La")
_MAX_PROFILE_BYTES = 4 << 20  # those of printing presses have 0.5 to 3 MB
_DAMAGE = (ImageCms.PyCMSError, OSError, ValueError, TypeError)


class _Conversion(NamedTuple):
    """What becomes of colors.

    Attributes:
      effect: "", "converted" or "unusable".
      table: For grey: the 256 levels in sRGB.
      transform: For RGB and CMYK: what makes RGB of it.
    """

    effect: str
    table: tuple[int, ...] = ()
    transform: ImageCms.ImageCmsTransform | None = None


def effect(image: Image.Image) -> str:
    """Returns what the color profile of an image asks for; the image need not be decoded.

    Returns:
      "": nothing, as there is none, or it is sRGB's but for what TOLERANCE allows; "converted": to_srgb() changes them;
      "unusable": it is damaged, or one for another kind of image, so that it is passed over, as viewers do.
    """
    return _of(image).effect


def to_srgb(pixels: Image.Image, image: Image.Image) -> Image.Image:
    """Returns pixels in sRGB: "L" of "L", "RGB" of "RGB" and of "CMYK"; as they are if effect(image) is another.

    Args:
      pixels: All or part of the image's, in any size; what is of its color space, "L", "RGB" or "CMYK".
      image: What has the profile.
    """
    conversion = _of(image)
    if conversion.table:
        return pixels.point(conversion.table)
    if conversion.transform and pixels.mode == conversion.transform.input_mode:
        converted = ImageCms.applyTransform(pixels, conversion.transform)
        assert converted  # None only where it works in place
        return converted
    return pixels


def _of(image: Image.Image) -> _Conversion:
    profile = image.info.get("icc_profile")
    if not profile or image.mode in ("1", "LAB"):  # black and white stay so; LAB says itself what its colors are
        return _Conversion("")
    if not isinstance(profile, bytes) or len(profile) > _MAX_PROFILE_BYTES:
        return _Conversion("unusable")
    is_grey = image.mode in _GREY_MODES or image.mode.startswith("I")
    return _conversion(profile, "L" if is_grey else "CMYK" if image.mode == "CMYK" else "RGB")


@functools.lru_cache(maxsize=16)  # most images of a dataset have one of a few, and each takes a millisecond to look at
def _conversion(profile: bytes, mode: str) -> _Conversion:
    try:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = opened.profile.xcolor_space.strip()
        if mode == "L":
            return _of_greys(opened, space)
        if space != mode:
            return _Conversion("unusable")
        transform = ImageCms.buildTransform(opened, _srgb(), mode, "RGB")
        return _Conversion("converted" if mode == "CMYK" or _changes(transform) else "", transform=transform)
    except _DAMAGE:
        return _Conversion("unusable")


def _of_greys(profile: ImageCms.ImageCmsProfile, space: str) -> _Conversion:
    """Returns the conversion of a greyscale image, whose profile may be one of grey or, as often, of RGB."""
    if space not in ("GRAY", "RGB"):
        return _Conversion("unusable")
    transform = ImageCms.buildTransform(profile, _srgb(), "L" if space == "GRAY" else "RGB", "RGB")
    ramp = Image.frombytes("L", (256, 1), bytes(range(256)))
    converted = ImageCms.applyTransform(ramp.convert(transform.input_mode), transform)
    assert converted
    table = converted.convert("L").tobytes()
    changed = max(abs(level - grey) for grey, level in enumerate(table)) > TOLERANCE
    return _Conversion("converted", table=tuple(table)) if changed else _Conversion("")


def _changes(transform: ImageCms.ImageCmsTransform) -> bool:
    """Returns whether a transform from RGB to sRGB changes colors by more than TOLERANCE."""
    steps = np.linspace(0, 255, _STEPS).round().astype(np.uint8)
    cube = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(-1, 3)
    greys = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    colors = np.concatenate([cube, greys])[None]
    converted = ImageCms.applyTransform(Image.fromarray(colors), transform)
    difference = np.abs(np.asarray(converted, np.int16) - colors)[0].max(axis=-1)
    of_colors, of_greys = difference[: len(cube)], difference[len(cube) :]
    return bool(np.quantile(of_colors, _MOST) > TOLERANCE or of_greys.max() > TOLERANCE)


@functools.cache
def _srgb() -> Any:
    return ImageCms.createProfile("sRGB")
