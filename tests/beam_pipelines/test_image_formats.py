"""AVIF, HEIC, JPEG 2000 and JPEG XL: stored as viewers show them, and hostile ones rejected with a reason."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from beam_pipelines.options import ImageOptions
from tpu_input.dataset_format.orientation import FORMATS
from tpu_input.stored_images.check import CheckedImage, Rejected, check_image

ROOT = Path(__file__).parents[2]
KINDS: dict[str, dict[str, object]] = {
    "AVIF": {"quality": 95, "subsampling": "4:4:4"},
    "HEIF": {"quality": 95, "chroma": 444},
    "JPEG2000": {},
}
PHOTO = Image.fromarray(load_sample_images().images[0]).resize((160, 106), Image.Resampling.LANCZOS)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **KINDS.get(kind, {}) | options)
    return buffer.getvalue()


def stored(image: CheckedImage) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(image.encoded)).convert("RGB"), np.int32)


def difference(image: CheckedImage, expected: Image.Image) -> float:
    """Mean difference of the stored pixels from the expected ones, in levels of 255."""
    return float(np.abs(stored(image) - np.asarray(expected.convert("RGB"), np.int32)).mean())


def test_all_of_these_formats_are_read_here():
    assert {"AVIF", "HEIF", "JPEG2000"} <= set(FORMATS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_pixels_are_those_of_the_image(kind):
    """Compression in both formats changes a small photograph by up to 3 levels; another picture differs by 40."""
    image = check_image(encoded(PHOTO, kind), ImageOptions(quality=98))
    assert image.fixed == f"format {kind}"
    assert (image.width, image.height, image.channels) == (160, 106, 3)
    assert difference(image, PHOTO) < 4 < difference(image, ImageOps.mirror(PHOTO))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_an_image_is_turned_exactly_once(kind, orientation):
    """Both writers store the turn of the EXIF as properties of the container (irot, imir), as phones do."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(PHOTO, kind, exif=exif.tobytes())
    assert (b"irot" in data or b"imir" in data) == (orientation > 1)
    turned = PHOTO.copy()
    turned.getexif()[0x0112] = orientation
    expected = ImageOps.exif_transpose(turned)
    image = check_image(data, ImageOptions(quality=98))
    assert (image.width, image.height) == expected.size
    assert difference(image, expected) < 4
    assert Image.open(io.BytesIO(image.encoded)).getexif().get(0x0112, 1) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_transparent_pixels_are_white(kind):
    transparent = PHOTO.copy()
    transparent.putalpha(Image.new("L", PHOTO.size, 0))
    pixels = stored(check_image(encoded(transparent, kind), ImageOptions(quality=98)))
    assert pixels.min() >= 250


def test_sixteen_bits_of_jpeg_2000_become_eight():
    greys = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
    data = encoded(Image.fromarray(greys), "JPEG2000")
    image = check_image(data, ImageOptions(quality=98))
    assert image.channels == 1
    assert np.abs(stored(image)[:, :, 0] - greys // 256).max() <= 3


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_a_sequence_is_not_one_image(kind):
    frames = [PHOTO, ImageOps.mirror(PHOTO)]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    with pytest.raises(Rejected) as caught:
        check_image(data, ImageOptions(quality=98))
    assert (caught.value.reason, caught.value.detail) == ("animated", f"{kind} with 2 frames")


@pytest.mark.parametrize("kind", KINDS)
def test_damage_ends_in_a_reason_and_raises_nothing_else(kind):
    original, generator = encoded(PHOTO.resize((40, 30)), kind), np.random.default_rng(0)
    reasons = set()
    for number in range(400):
        data = bytearray(original)
        for place in generator.integers(0, min(len(data), 400), generator.integers(0, 5)):
            data[place] = generator.integers(0, 256)
        cut = bytes(data[: generator.integers(len(data))] if number % 2 else data)
        try:
            check_image(cut, ImageOptions(quality=98))
        except Rejected as rejected:
            reasons.add(rejected.reason)
    assert reasons <= {
        *("corrupt", "truncated", "not_an_image", "too_large", "animated", "empty", "unknown_range"),
        "unsupported_format",
    }
    assert "corrupt" in reasons or "truncated" in reasons


@pytest.mark.parametrize("share", np.linspace(0.3, 0.99, 12))
@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_is_no_image(kind, share):
    original = encoded(PHOTO, kind)
    with contextlib.suppress(Rejected):
        image = check_image(original[: int(share * len(original))], ImageOptions(quality=98))
        # A decoder may be able to decode all pixels of a file that lacks only its last bytes.
        assert difference(image, PHOTO) < 4


@pytest.mark.parametrize("data", [b"\xff\x0a\xfa\x1f\x41", b"\0\0\0\x0cJXL \r\n\x87\n\0\0\0\x14ftypjxl "])
def test_jpeg_xl_is_named(data):
    with pytest.raises(Rejected) as caught:
        check_image(data + bytes(100), ImageOptions(quality=98))
    assert (caught.value.reason, caught.value.detail) == (
        "unsupported_format",
        "JPEG XL; save it as JPEG or PNG",
    )


WITHOUT_HEIC = """
import sys
sys.modules["pillow_heif"] = None
from tpu_input.stored_images.check import Rejected, check_image
from beam_pipelines.options import ImageOptions
try:
    check_image(sys.stdin.buffer.read(), ImageOptions(quality=98))
except Rejected as rejected:
    print(rejected.reason, rejected.detail)
"""


def test_heic_without_its_extra_is_told_what_to_install():
    for image, stdout in (
        (encoded(PHOTO, "HEIF"), b"unsupported_format HEIC; to read it, run: pip install 'jpeg2tpu[heic]'\n"),
        (encoded(PHOTO, "AVIF"), b""),
    ):
        result = subprocess.run([sys.executable, "-c", WITHOUT_HEIC], input=image, capture_output=True, cwd=ROOT)
        assert (result.returncode, result.stdout) == (0, stdout), result.stderr
