"""What is kept byte for byte, what is encoded again, what is rejected and why."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from beam_pipelines.options import ImageOptions
from tpu_input.dataset_format.orientation import apply_orientation
from tpu_input.stored_images import check
from tpu_input.stored_images.check import CheckedImage, Rejected, check_image, stored_bytes


def picture(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A ramp from left to right in every channel."""
    ramp = np.tile(np.linspace(0, 255, size[0], dtype=np.uint8), (size[1], 1))
    return Image.fromarray(np.stack([ramp, ramp // 2, 255 - ramp], axis=-1)).convert(mode)


def checked(data: bytes, **options) -> CheckedImage:
    return check_image(data, ImageOptions(**options))


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "channels"),
    [
        (encoded(picture()), 3),
        (encoded(picture(), progressive=True, quality=60), 3),
        (encoded(picture("L")), 1),
    ],
    ids=["baseline", "progressive", "greyscale"],
)
def test_a_jpeg_that_needs_nothing_is_kept_byte_for_byte(data, channels):
    image = checked(data)
    assert image.encoded is data
    assert (image.height, image.width, image.channels, image.fixed) == (30, 40, channels, "")


@pytest.mark.parametrize(
    ("data", "fixed"),
    [
        (encoded(picture(), "PNG"), "format PNG"),
        (encoded(picture("RGBA"), "PNG"), "format PNG"),
        (encoded(picture("P"), "PNG"), "format PNG"),
        (encoded(picture("1"), "PNG"), "format PNG"),
        (encoded(Image.fromarray(np.full((30, 40), 40_000, np.uint16)), "PNG"), "format PNG"),
        (encoded(picture(), "BMP"), "format BMP"),
        (encoded(picture(), "GIF"), "format GIF"),
        (encoded(picture(), "WEBP"), "format WEBP"),
        (encoded(picture(), "AVIF"), "format AVIF"),
        (encoded(picture("RGBA"), "AVIF"), "format AVIF"),
        (encoded(picture(), "HEIF"), "format HEIF"),
        (encoded(picture("RGBA"), "HEIF"), "format HEIF"),
        (encoded(picture(), "JPEG2000"), "format JPEG2000"),
        (encoded(picture("L"), "JPEG2000"), "format JPEG2000"),
        (encoded(picture("RGBA"), "JPEG2000", no_jp2=True), "format JPEG2000"),
        (encoded(picture(), "TIFF"), "format TIFF"),
        (encoded(picture(), "PPM"), "format PPM"),
        (encoded(picture("CMYK")), "mode CMYK"),
    ],
    ids=[
        *("png", "png alpha", "png palette", "png bits", "png 16 bits", "bmp", "gif", "webp"),
        *("avif", "avif alpha", "heic", "heic alpha", "jp2", "jp2 grey", "j2k alpha", "tiff", "pnm", "cmyk"),
    ],
)
def test_anything_else_becomes_a_jpeg_that_tensorflow_decodes_and_crops(data, fixed):
    image = checked(data)
    assert image.fixed == fixed
    assert tf.io.extract_jpeg_shape(image.encoded).numpy().tolist() == [30, 40, image.channels]
    assert tf.image.decode_and_crop_jpeg(image.encoded, [0, 0, 30, 40], channels=3).shape == (30, 40, 3)


def test_sixteen_bits_keep_their_brightness():
    image = checked(encoded(Image.fromarray(np.full((30, 40), 40_000, np.uint16)), "PNG"))
    assert np.abs(tf.io.decode_jpeg(image.encoded).numpy().astype(int) - 40_000 // 256).max() <= 2


def test_a_rotated_photograph_is_stored_upright_and_without_its_orientation():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn 90 degrees clockwise to see it
    image = checked(encoded(picture(), exif=exif, quality=95))
    assert (image.height, image.width, image.fixed) == (40, 30, "orientation")
    red = tf.io.decode_jpeg(image.encoded).numpy()[:, :, 0].astype(int)
    assert red[0].mean() < 20 < 235 < red[-1].mean()
    assert checked(image.encoded).fixed == ""


def cr2() -> bytes:
    """A TIFF with the mark of Canon's raw files behind its header, and its directory at the end."""
    data = encoded(picture(), "TIFF")
    directory = data[8 : 8 + 2 + 12 * int.from_bytes(data[8:10], "little") + 4]
    return data[:4] + len(data).to_bytes(4, "little") + b"CR\2\0" + data[12:] + directory


def test_transparent_pixels_become_white():
    image = checked(encoded(Image.new("RGBA", (40, 30), (255, 0, 0, 0)), "PNG"))
    assert tf.io.decode_jpeg(image.encoded).numpy().min() >= 250


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"<html>not found</html>", "not_an_image"),
        (encoded(picture(size=(400, 300)), quality=95)[:2000], "truncated"),
        (encoded(picture(), "PNG")[:-40], "truncated"),
        (encoded(picture(), "GIF", save_all=True, append_images=[picture("L")]), "animated"),
        (encoded(picture("L"), "EPS"), "not_an_image"),  # or else Ghostscript would be started
        (encoded(picture("F"), "TIFF"), "unknown_range"),
        (encoded(picture("I"), "TIFF"), "unknown_range"),
        (encoded(picture("L"), "TIFF", tiffinfo={339: 2}), "unknown_range"),
        (encoded(picture("I;16B"), "TIFF", tiffinfo={262: 0}), "unsupported_format"),
        (encoded(picture(), "TIFF", tiffinfo={254: 1}), "unsupported_format"),
        (encoded(picture(), "TIFF", tiffinfo={255: 2}), "unsupported_format"),
        (encoded(picture(), "TIFF", tiffinfo={50706: b"\1\4\0\0"}), "unsupported_format"),
        (cr2(), "unsupported_format"),
        (b"IIU\0" + bytes(100), "unsupported_format"),
        (b"\0\0\0\x18ftypcrx " + bytes(100), "unsupported_format"),
        (encoded(picture(size=(70_000, 4)), "PNG"), "too_large"),
        (encoded(picture("L", (4, 70_000)), "TIFF"), "too_large"),
    ],
    ids=[
        *("empty", "html", "half a jpeg", "half a png", "animation", "eps"),
        *("tiff of floats", "tiff of integers", "tiff of signed bytes", "tiff of big-endian negatives"),
        *("nef", "old nef", "dng", "cr2", "rw2", "cr3"),
        *("wide png", "tall tiff"),
    ],
)
def test_what_is_no_whole_image_is_rejected_with_its_reason(data, reason):
    with pytest.raises(Rejected) as caught:
        checked(data)
    assert caught.value.reason == reason
    assert caught.value.detail


def test_an_image_that_is_too_wide_for_a_jpeg_is_fine_once_it_is_smaller():
    image = checked(encoded(picture(size=(70_000, 4)), "PNG"), resize_shorter=2, min_side=1)
    assert (image.width, image.height) == (35_000, 2)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG", "JPEG"])
def test_whatever_is_damaged_is_rejected_and_nothing_else_is_raised(kind):
    exif, more = Image.Exif(), {"save_all": True, "append_images": [picture("L")]} if kind == "GIF" else {}
    exif[0x0112] = 6
    original = encoded(picture(), kind, **({"exif": exif} if kind != "GIF" else more))
    generator = np.random.default_rng(0)
    for number in range(600):
        data = bytearray(original)
        for place in generator.integers(0, min(len(data), 300), generator.integers(0, 5)):
            data[place] = generator.integers(0, 256)
        with contextlib.suppress(Rejected):
            checked(bytes(data[: generator.integers(len(data))] if number % 2 else data))


@pytest.mark.parametrize(
    ("place", "kind", "error"),
    [
        ("PIL.Image.open", "JPEG", MemoryError()),
        ("PIL.Image.Image.getexif", "JPEG", MemoryError()),
        ("PIL.ImageFile.ImageFile.load", "PNG", MemoryError()),
        ("simplejpeg.decode_jpeg", "JPEG", MemoryError()),
        ("simplejpeg.decode_jpeg", "JPEG", ValueError("Insufficient memory (case 4)")),
    ],
)
def test_want_of_memory_is_not_the_image_s_fault(monkeypatch, place, kind, error):
    def fail(*_, **__):
        raise error

    data = encoded(picture(), kind, exif=b"Exif\0\0")  # a JPEG without would not be opened by Pillow
    monkeypatch.setattr(place, fail)
    with pytest.raises(MemoryError):
        checked(data)


@pytest.mark.parametrize(
    "options", [{}, {"resize_shorter": 20}, {"resize_shorter": 28}, {"min_side": 31}, {"max_pixels": 1100}], ids=str
)
def test_a_plain_jpeg_damaged_or_not_is_found_the_same_as_when_pillow_reads_its_header(options, monkeypatch):
    """Plain JPEGs take a shorter way; whatever bytes change, it finds the same image or reason, in the same words."""
    colors, random = picture(), np.random.default_rng(len(str(options)))
    originals = [
        encoded(colors),
        encoded(colors, progressive=True, comment=b"a comment"),
        encoded(colors, subsampling=0, restart_marker_blocks=1),
        encoded(picture("L")),
        encoded(picture("CMYK")),
        encoded(colors, exif=b"Exif\0\0", icc_profile=bytes(200)),
    ]
    check_plain, num_plain = check._check_plain, 0
    for number in range(900):
        data = bytearray(originals[number % len(originals)])
        first = random.integers(0, 700)
        if number % 4 == 1:  # a part is missing
            del data[first : first + random.integers(1, 100)]
        elif number % 4 == 2:  # a part is there twice
            data[first:first] = data[first : first + random.integers(1, 100)]
        for place in random.integers(2, min(len(data), 700), random.integers(0, 3)):
            data[place] = random.integers(0, 256)
        monkeypatch.setattr(check, "_check_plain", check_plain)
        expected = outcome(bytes(data), options)
        num_plain += check._check_plain(bytes(data), ImageOptions(**options), True) is not None
        monkeypatch.setattr(check, "_check_plain", lambda *_: None)
        assert outcome(bytes(data), options) == expected
    assert (num_plain > 100) == (options in ({}, {"resize_shorter": 28}))


def outcome(data: bytes, options: dict[str, Any]) -> tuple[CheckedImage | str, ...]:
    """The image with and without statistics, or the reason for which it is rejected, and its words."""
    try:
        return tuple(check_image(data, ImageOptions(**options), with_statistics) for with_statistics in (True, False))
    except Rejected as rejected:
        return rejected.reason, rejected.detail


def test_the_sums_give_the_mean_and_deviation_of_the_pixels():
    data = encoded(picture(size=(320, 240)), quality=95)
    image = checked(data)
    pixels = np.asarray(Image.open(io.BytesIO(data)), float).reshape(-1, 3)
    mean = np.array(image.sums) / check.SAMPLE_SIDE**2
    std = np.sqrt(np.array(image.squares) / check.SAMPLE_SIDE**2 - mean**2)
    np.testing.assert_allclose(mean, pixels.mean(axis=0), atol=1.5)
    np.testing.assert_allclose(std, pixels.std(axis=0), atol=1.5)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_jpeg_is_found_also_without_decoding_it_in_full(share, progressive):
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    original = encoded(Image.fromarray(noise), progressive=progressive)
    with pytest.raises(Rejected) as caught:
        check_image(original[: int(share * len(original))], ImageOptions(), with_statistics=False)
    assert caught.value.reason == "truncated"


def test_an_image_is_the_same_but_for_its_statistics_when_it_is_not_decoded_in_full():
    data = encoded(picture(size=(400, 300)))
    full, quick = checked(data), check_image(data, ImageOptions(), with_statistics=False)
    assert quick._replace(dhash=0) == full._replace(dhash=0, sums=None, squares=None)
    assert full.dhash is not None
    assert quick.dhash is not None
    assert bin((full.dhash ^ quick.dhash) & (2**64 - 1)).count("1") <= 3


def test_a_camera_s_photograph_has_the_statistics_and_size_of_the_whole_though_it_is_decoded_smaller(monkeypatch):
    image = picture(size=(2400, 1800))
    data = encoded(image, quality=95)
    quick = checked(data)
    assert (quick.width, quick.height) == (2400, 1800)
    monkeypatch.setattr(check, "MEASURED_SIDE", 1801)
    full = checked(data)
    assert quick.sums != full.sums  # or else nothing was saved
    assert quick.sums
    assert full.sums
    assert quick.squares
    assert full.squares
    np.testing.assert_allclose(quick.sums, full.sums, rtol=0.01)
    np.testing.assert_allclose(quick.squares, full.squares, rtol=0.01)


def test_the_size_of_what_is_stored_is_found_without_decoding_what_is_kept():
    jpeg, png = encoded(picture(size=(400, 300)), quality=95), encoded(picture(), "PNG")
    assert stored_bytes(jpeg[:2000], ImageOptions()) == 2000  # its damage shows when it is written
    assert stored_bytes(png, ImageOptions()) == len(checked(png).encoded)
    smaller = ImageOptions(resize_shorter=30)
    assert stored_bytes(jpeg, smaller) == len(check_image(jpeg, smaller).encoded) < len(jpeg)


def with_first_bytes(kind: str, changed: dict[int, bytes]) -> bytes:
    data = bytearray(encoded(picture(), kind))
    for position, value in changed.items():
        data[position : position + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason", "detail"),
    [
        (with_first_bytes("PNG", {18: b"\0\1"}), "corrupt", "PNG: broken PNG file"),  # its width; the checksum differs
        (with_first_bytes("PNG", {})[:20], "truncated", "PNG: "),
        (with_first_bytes("BMP", {28: b"\7"}), "corrupt", "BMP: "),
        (with_first_bytes("GIF", {})[:10], "corrupt", "GIF: "),
        (with_first_bytes("TIFF", {})[:8], "corrupt", "TIFF: "),
        (with_first_bytes("WEBP", {20: bytes(10)}), "corrupt", "WEBP: "),
        (with_first_bytes("PPM", {3: b"x"}), "corrupt", "PPM: "),
        (b"\xff\xd8\xff\xe0", "corrupt", "JPEG: "),
        (with_first_bytes("PNG", {1: b"M"}), "not_an_image", "begins with"),
        (b"II-\0 something else", "not_an_image", "begins with"),
    ],
    ids=["png", "png's header", "bmp", "gif", "tiff", "webp", "pnm", "jpeg", "no png", "no tiff"],
)
def test_what_begins_as_a_format_is_damaged_and_only_what_does_not_is_no_image(data, reason, detail):
    with pytest.raises(Rejected) as caught:
        checked(data)
    assert caught.value.reason == reason
    assert caught.value.detail.startswith(detail)
    assert len(caught.value.detail) > len(detail)  # what Pillow says


@pytest.mark.parametrize("transparent", [0, 40_000, 65_535])
def test_a_16_bit_png_is_on_white_where_its_one_transparent_grey_is(transparent):
    greys = np.tile(np.array([0, 12_345, 40_000, 65_535], np.uint16).repeat(16), (32, 1))
    data = encoded(Image.fromarray(greys), "PNG", transparency=transparent)
    # libpng, in TensorFlow, makes an alpha channel of a tRNS chunk.
    grey, _, _, alpha = np.moveaxis(tf.io.decode_png(data, channels=4, dtype=tf.uint16).numpy() / 65_535, -1, 0)
    assert set(alpha.ravel()) == {0, 1}
    expected = 255 * (grey * alpha + 1 - alpha)
    stored = tf.io.decode_jpeg(checked(data).encoded).numpy()[:, :, 0]
    np.testing.assert_allclose(stored[:, 8::16], expected[:, 8::16], atol=3)


def test_sixteen_bits_become_eight_as_they_always_did():
    greys = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
    png = Image.open(io.BytesIO(encoded(Image.fromarray(greys), "PNG")))
    np.testing.assert_array_equal(np.asarray(apply_orientation(png)), greys // 256)


def test_a_large_image_is_put_on_white_in_bands_as_a_small_one_is(monkeypatch):
    random = np.random.default_rng(0)
    pixels = Image.fromarray(random.integers(0, 256, (60, 50, 4), np.uint8))
    expected = Image.alpha_composite(Image.new("RGBA", pixels.size, "white"), pixels).convert("RGB")
    monkeypatch.setattr("tpu_input.dataset_format.orientation._BAND_PIXELS", 7 * 50)
    np.testing.assert_array_equal(np.asarray(apply_orientation(pixels.copy())), np.asarray(expected))


@pytest.mark.parametrize("shorter", [40, 59, 60, 90, 120, 150, 180, 230, 290, 340, 460, 500, 630])
@pytest.mark.parametrize("kind", ["upright", "turned", "progressive", "cmyk", "grey"])
def test_a_photograph_made_smaller_has_the_pixels_of_one_decoded_in_full(kind, shorter):
    picture = Image.fromarray(load_sample_images().images[0]).resize((1043, 697))  # no multiples of 8
    data = encoded(picture, quality=95)
    if kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 3  # upside down
        data = encoded(picture.transpose(Image.Transpose.ROTATE_180), quality=95, exif=exif)
    elif kind == "progressive":
        data = encoded(picture, quality=95, progressive=True)
    elif kind != "upright":
        data = encoded(picture.convert({"cmyk": "CMYK", "grey": "L"}[kind]), quality=95)
    smaller = checked(data, resize_shorter=shorter, quality=100)
    width = round(1043 * shorter / 697)
    assert (smaller.height, smaller.width) == (shorter, width)
    original = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    expected = original.resize((width, shorter), Image.Resampling.BICUBIC).convert("L")
    stored = Image.open(io.BytesIO(smaller.encoded)).convert("L")  # a JPEG stores colors at half the size
    difference = np.asarray(stored, float) - np.asarray(expected, float)
    assert np.abs(difference).mean() < 1.2
    assert 10 * np.log10(255**2 / (difference**2).mean()) > 43


def test_a_jpeg_at_most_a_tenth_larger_than_asked_for_is_kept_and_counted():
    data = encoded(picture(size=(150, 110)))
    image = checked(data, resize_shorter=100)
    assert image.encoded is data
    assert (image.height, image.fixed, image.noted) == (110, "", ("slightly larger than --resize_shorter",))
    assert stored_bytes(data, ImageOptions(resize_shorter=100)) == len(data)
    larger = checked(encoded(picture(size=(150, 111))), resize_shorter=100)
    assert (larger.height, larger.fixed, larger.noted) == (100, "larger than --resize_shorter", ())
    assert checked(data, resize_shorter=110).noted == checked(data).noted == ()


def test_an_image_that_is_encoded_anyway_gets_the_exact_size():
    png = checked(encoded(picture(size=(150, 110)), "PNG"), resize_shorter=100)
    assert (png.height, png.fixed, png.noted) == (100, "format PNG, larger than --resize_shorter", ())
