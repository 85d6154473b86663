"""ICC color profiles: detects images whose colors are not sRGB, and converts them to sRGB.

    image with a profile ──effect──▶ "" (sRGB or close to it), "converted", or "unusable"
    its pixels           ──to_srgb──▶ the same image in sRGB, RGB or grayscale

Trainers and exported models ignore profiles: they interpret all pixel values as sRGB. The conversion uses LittleCMS,
which is part of Pillow (PIL.ImageCms; rendering intent "perceptual", as for ImageCms.profileToProfile).
TensorFlow-free.
"""

from __future__ import annotations

import functools
import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageCms

# Levels, of 255, by which a profile may change any gray, and the share _MOST of colors, and still count as sRGB.
# Cameras and editors embed dozens of variants of sRGB, shortened or rounded. Primaries that are off by 0.0001, as by
# rounding, change 95 % of the colors by up to 1.4 levels, and colors in which a channel is nearly 0 by up to 4; Display
# P3 changes half of the colors by over 15.
TOLERANCE = 2
_MOST = 0.95
_STEPS = 9  # per channel, of the colors with which a profile is tested: 729 colors, and all 256 grays
_GREY_MODES = ("L", "LA", "La")
_MAX_PROFILE_BYTES = 4 << 20  # profiles of printing presses have 0.5 to 3 MB
_DAMAGE = (ImageCms.PyCMSError, OSError, ValueError, TypeError)


class _Conversion(NamedTuple):
    """Conversion of colors to sRGB according to a profile.

    Attributes:
      effect: "", "converted" or "unusable".
      table: For grayscale: lookup table from the 256 levels to sRGB; else empty.
      transform: For RGB and CMYK with a usable profile: the transform to RGB in sRGB; else None.
    """

    effect: str
    table: tuple[int, ...] = ()
    transform: ImageCms.ImageCmsTransform | None = None


def effect(image: Image.Image) -> str:
    """Returns the effect of the color profile of an image on its colors; the image need not be decoded.

    Returns:
      "": none, as there is no profile, or it equals sRGB within TOLERANCE; "converted": to_srgb() converts the colors;
      "unusable": the profile is damaged, or for another kind of image, and is ignored, as viewers do.
    """
    return _image_conversion(image).effect


def to_srgb(pixels: Image.Image, image: Image.Image) -> Image.Image:
    """Returns pixels converted to sRGB: "L" for "L", "RGB" for "RGB" and "CMYK".

    To be called if effect(image) is "converted". Pixels are returned unchanged if the profile is unusable or for
    another color space.

    Args:
      pixels: All or some of the pixels of the image, in any size, in its color space: "L", "RGB" or "CMYK".
      image: The image that has the profile.
    """
    conversion = _image_conversion(image)
    if conversion.table:
        return pixels.point(conversion.table)
    if conversion.transform and pixels.mode == conversion.transform.input_mode:
        converted = ImageCms.applyTransform(pixels, conversion.transform)
        assert converted  # it is None only with inPlace=True
        return converted
    return pixels


def _image_conversion(image: Image.Image) -> _Conversion:
    profile = image.info.get("icc_profile")
    # Black and white ("1") do not change; LAB defines its colors without a profile.
    if not profile or image.mode in ("1", "LAB"):
        return _Conversion("")
    if not isinstance(profile, bytes) or len(profile) > _MAX_PROFILE_BYTES:
        return _Conversion("unusable")
    is_grey = image.mode in _GREY_MODES or image.mode.startswith("I")
    return _conversion(profile, "L" if is_grey else "CMYK" if image.mode == "CMYK" else "RGB")


@functools.lru_cache(maxsize=16)  # a dataset has few different profiles; evaluating one takes 1 ms
def _conversion(profile: bytes, mode: str) -> _Conversion:
    try:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = opened.profile.xcolor_space.strip()
        if mode == "L":
            return _grey_conversion(opened, space)
        if space != mode:
            return _Conversion("unusable")
        transform = ImageCms.buildTransform(opened, _srgb(), mode, "RGB")
        return _Conversion("converted" if mode == "CMYK" or _changes(transform) else "", transform=transform)
    except _DAMAGE:
        return _Conversion("unusable")


def _grey_conversion(profile: ImageCms.ImageCmsProfile, space: str) -> _Conversion:
    """Returns the conversion of a grayscale image; its profile may be for gray or, just as often, for RGB."""
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
    color_differences, grey_differences = difference[: len(cube)], difference[len(cube) :]
    return bool(np.quantile(color_differences, _MOST) > TOLERANCE or grey_differences.max() > TOLERANCE)


@functools.cache
def _srgb() -> Any:
    return ImageCms.createProfile("sRGB")
