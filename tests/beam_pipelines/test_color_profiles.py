"""Images in other colors than sRGB are stored in sRGB, by conversion and by predict; others keep their bytes.

Profiles are built here from published numbers: ICC.1:2010 for the format; primaries, white and tone curves of Display
P3 (SMPTE EG 432-1, D65, sRGB's curve), Adobe RGB (1998) and sRGB (IEC 61966-2-1).
"""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageCms

from beam_pipelines.options import ImageOptions
from support.app_fixtures import keras_warns
from support.profiles import (
    GREEN,
    GREEN_IN_ADOBE_RGB,
    GREEN_IN_P3,
    PROFILES,
    SRGB_TONE,
    curve,
    described,
    encode,
    linear,
    rgb_profile,
)
from tpu_input.stored_images.check import IGNORED_PROFILE, UNUSABLE_PROFILE, check_image, stored_image

pytestmark = keras_warns
SRGB = ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060))


def grey_profile(tone) -> bytes:
    return encode(b"GRAY", b"mntr", b"XYZ ", described({b"kTRC": curve(tone)}))


def cmyk_profile() -> bytes:
    """A press whose colors are L = 100 (1 - K) (1 - (C + M + Y) / 6), a = 60 (M - C), b = 60 Y - 30 (C + M)."""
    corners = np.stack(np.meshgrid(*[[0, 1]] * 4, indexing="ij"), axis=-1).reshape(-1, 4)  # C, M, Y, K; K fastest
    c, m, y, k = corners.T
    lab = np.stack([255 * (1 - k) * (1 - (c + m + y) / 6), 128 + 60 * (m - c), 128 + 60 * y - 30 * (c + m)], axis=-1)
    straight = bytes(range(256))
    head = struct.pack(">4sI4B9i", b"mft1", 0, 4, 3, 2, 0, *(round(v * 65536) for v in np.eye(3).ravel()))
    table = head + 4 * straight + lab.round().astype(np.uint8).tobytes() + 3 * straight
    return encode(b"CMYK", b"prtr", b"Lab ", described({b"A2B0": table}))


def file(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    if kind == "JPEG":
        options = {"quality": 100, "subsampling": 0} | options
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def flat(color, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (32, 32), color)


def pixel(encoded: bytes) -> list[int]:
    """The middle of a JPEG, as TensorFlow decodes it."""
    return tf.io.decode_jpeg(encoded, channels=3).numpy()[16, 16].astype(int).tolist()


def noted(image) -> tuple[str, tuple[str, ...]]:
    return image.fixed, image.noted


@pytest.mark.parametrize(("name", "color"), [("Display P3", GREEN_IN_P3), ("Adobe RGB", GREEN_IN_ADOBE_RGB)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
def test_colors_become_what_the_published_matrices_say(name, color, kind):
    best: dict[str, dict[str, object]] = {
        "WEBP": {"lossless": True},
        "AVIF": {"quality": 100},
        "HEIF": {"quality": 100},
    }
    data = file(flat(color), kind, icc_profile=PROFILES[name], **best.get(kind, {}))
    image = check_image(data, ImageOptions())
    # In Display P3 its red is 4.2 times as steep, so that a JPEG's rounding shows.
    np.testing.assert_allclose(pixel(image.encoded), GREEN, atol=8)
    assert image.fixed == ("color profile" if kind == "JPEG" else f"format {kind}, color profile")
    assert stored_image(data) == image.encoded
    assert "icc_profile" not in Image.open(io.BytesIO(image.encoded)).info


@pytest.mark.parametrize("name", PROFILES)
def test_a_photograph_becomes_what_littlecms_makes_of_it(name):
    ramp = np.linspace(0, 255, 96).astype(np.uint8)
    pixels = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None], ramp[::-1, None] // 2 + ramp[None] // 2), axis=-1)
    source = Image.fromarray(pixels)
    expected = ImageCms.profileToProfile(
        source, io.BytesIO(PROFILES[name]), ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    stored = check_image(file(source, "PNG", icc_profile=PROFILES[name]), ImageOptions(quality=98)).encoded
    difference = np.abs(tf.io.decode_jpeg(stored).numpy().astype(int) - np.asarray(expected))
    assert difference.mean() < 2
    assert np.abs(pixels.astype(int) - np.asarray(expected)).mean() > 8  # or else there was nothing to convert


TONES = {
    "1,024 steps": SRGB_TONE,
    "26 steps, as in Facebook's c2": linear(np.linspace(0, 1, 26)),
    "20 steps, as in a 410-byte profile": linear(np.linspace(0, 1, 20)),
}


@pytest.mark.parametrize("tone", TONES.values(), ids=TONES)
@pytest.mark.parametrize("shift", [0, 0.0001])
def test_any_variant_of_srgb_leaves_a_jpeg_s_bytes_alone(tone, shift):
    primaries = [(x + shift, y - shift) for x, y in SRGB]
    data = file(flat(GREEN), icc_profile=rgb_profile(primaries, tone))
    image = check_image(data, ImageOptions())
    assert image.encoded is data
    assert noted(image) == ("", ())
    assert stored_image(data) is data


def test_littlecms_own_srgb_leaves_a_jpeg_s_bytes_alone():
    data = file(flat(GREEN), icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    assert check_image(data, ImageOptions()).encoded is data


def test_ignored_profiles_are_counted_and_their_bytes_kept():
    data = file(flat(GREEN_IN_P3), icc_profile=PROFILES["Display P3"])
    image = check_image(data, ImageOptions(color_profiles="ignore"))
    assert image.encoded is data
    assert noted(image) == ("", (IGNORED_PROFILE,))
    png = check_image(
        file(flat(GREEN_IN_P3), "PNG", icc_profile=PROFILES["Display P3"]), ImageOptions(color_profiles="ignore")
    )
    np.testing.assert_allclose(pixel(png.encoded), GREEN_IN_P3, atol=2)


@pytest.mark.parametrize(
    ("grey", "profile"),
    [
        (24, grey_profile(2.2)),
        (100, grey_profile(linear(np.linspace(0, 1, 256)) * 0.8 + np.linspace(0, 1, 256) * 0.2)),  # a dot gain
        (100, rgb_profile(SRGB, 1.0)),  # greyscale files often keep the profile of the color photograph
    ],
    ids=["gamma 2.2", "dot gain", "linear RGB"],
)
@pytest.mark.parametrize("mode", ["L", "LA", "I;16"])
def test_greys_become_those_of_srgb(grey, profile, mode):
    if mode == "I;16":
        source = Image.fromarray(np.full((32, 32), grey * 256 + 128, np.uint16))
    else:
        source = flat(grey, "L").convert(mode)
    reference = ImageCms.buildTransform(
        io.BytesIO(profile), ImageCms.createProfile("sRGB"), "L" if profile[16:20] == b"GRAY" else "RGB", "RGB"
    )
    reference_image = ImageCms.applyTransform(flat(grey, "L").convert(reference.input_mode), reference)
    assert reference_image
    expected = np.array(reference_image.getpixel((0, 0)))
    data = file(source, "PNG" if mode != "L" else "JPEG", icc_profile=profile)
    image = check_image(data, ImageOptions())
    np.testing.assert_allclose(pixel(image.encoded), expected, atol=2)
    assert abs(expected[1] - grey) > 5  # or else there was nothing to convert
    assert stored_image(data) == image.encoded


def test_a_grey_profile_with_srgb_s_curve_changes_nothing():
    data = file(flat(100, "L"), icc_profile=grey_profile(SRGB_TONE))
    assert check_image(data, ImageOptions()).encoded is data


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
@pytest.mark.parametrize("color", [(255, 0, 0, 0), (0, 200, 0, 40), (10, 20, 230, 0), (0, 0, 0, 255)])
def test_cmyk_becomes_what_the_press_prints(kind, color):
    profile = cmyk_profile()
    data = file(flat(color, "CMYK"), kind, icc_profile=profile)
    reference = ImageCms.profileToProfile(
        flat(color, "CMYK"), io.BytesIO(profile), ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    image = check_image(data, ImageOptions())
    assert reference
    np.testing.assert_allclose(pixel(image.encoded), np.array(reference.getpixel((0, 0))), atol=4)
    assert "color profile" in image.fixed
    assert stored_image(data) == image.encoded


def test_what_is_transparent_becomes_white_and_the_rest_srgb():
    source = flat((*GREEN_IN_P3, 255), "RGBA")
    source.paste((0, 0, 0, 0), (0, 0, 32, 8))
    source.paste((*GREEN_IN_P3, 128), (0, 24, 32, 32))
    image = check_image(file(source, "PNG", icc_profile=PROFILES["Display P3"]), ImageOptions(quality=98))
    pixels = tf.io.decode_jpeg(image.encoded).numpy().astype(int)
    np.testing.assert_allclose(pixels[3, 16], (255, 255, 255), atol=3)
    np.testing.assert_allclose(pixels[16, 16], GREEN, atol=4)
    np.testing.assert_allclose(pixels[28, 16], [(value + 255) / 2 for value in GREEN], atol=4)


def test_a_palette_s_colors_are_converted_too():
    data = file(flat(GREEN_IN_P3).quantize(2), "PNG", icc_profile=PROFILES["Display P3"])
    np.testing.assert_allclose(pixel(check_image(data, ImageOptions()).encoded), GREEN, atol=3)


UNUSABLE = {
    "garbage": b"garbage" * 50,
    "cut": PROFILES["Display P3"][:200],
    "empty tags": PROFILES["Display P3"][:128] + bytes(4),
    "for CMYK": cmyk_profile(),
    "for grey": grey_profile(2.2),
    "for Lab": encode(b"Lab ", b"abst", b"Lab ", described({})),
    "for Luv": encode(b"Luv ", b"spac", b"XYZ ", described({})),
    "too long": PROFILES["Display P3"] + bytes(5 << 20),
}


@pytest.mark.parametrize("profile", UNUSABLE.values(), ids=UNUSABLE)
def test_a_profile_that_cannot_be_used_rejects_no_image_and_is_counted(profile):
    data = file(flat(GREEN), icc_profile=profile)
    image = check_image(data, ImageOptions())
    assert image.encoded is data
    assert noted(image) == ("", (UNUSABLE_PROFILE,))
    assert stored_image(data) is data
    png = file(flat(GREEN), "PNG", icc_profile=profile[:500])
    np.testing.assert_allclose(pixel(check_image(png, ImageOptions()).encoded), GREEN, atol=2)


def test_profiles_damaged_at_random_reject_no_image():
    random = np.random.default_rng(0)
    for profile, times in ((PROFILES["Display P3"], 60), (cmyk_profile(), 5)):
        for _ in range(times):
            damaged = bytearray(profile)
            for place in random.integers(0, min(len(profile), 400), 4):
                damaged[place] = random.integers(256)
            mode = "CMYK" if profile[16:20] == b"CMYK" else "RGB"
            check_image(file(flat(0, mode), icc_profile=bytes(damaged)), ImageOptions())


def test_a_smaller_and_turned_image_is_in_srgb_as_well():
    exif = Image.Exif()
    exif[0x0112] = 6
    source = Image.new("RGB", (96, 64), GREEN_IN_P3)
    data = file(source, icc_profile=PROFILES["Display P3"], exif=exif)
    image = check_image(data, ImageOptions(resize_shorter=32))
    assert (image.width, image.height) == (32, 48)
    assert image.fixed == "orientation, color profile, larger than --resize_shorter"
    np.testing.assert_allclose(pixel(image.encoded), GREEN, atol=8)
