"""JPEGs that Pillow decodes and TensorFlow does not are encoded again; all others keep their bytes."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_pipelines.options import ImageOptions
from tpu_input.dataset_format.jpeg_markers import PlainHeader, has_end, is_decoded, plain_header
from tpu_input.stored_images.check import check_image, stored_bytes


def jpeg(**options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def lossless() -> bytes:
    """A grey JPEG of 30 x 40 pixels as T.81's annex H has it: each differs by 0, one bit, from what is predicted."""
    frame = segment(0xC3, struct.pack(">BHHBBBB", 8, 30, 40, 1, 1, 0x11, 0))
    table = segment(0xC4, bytes([0, 1, *[0] * 15, 0]))  # one code of one bit, for the difference 0
    scan = segment(0xDA, bytes([1, 1, 0, 1, 0, 0]))
    return b"\xff\xd8" + frame + table + scan + bytes(30 * 40 // 8) + b"\xff\xd9"


WITH_PREVIEW = jpeg()[:2] + segment(0xE1, b"Exif\0\0" + lossless()) + jpeg()[2:]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (jpeg(), True),
        (jpeg(progressive=True), True),
        (jpeg(comment=b"\xff\xc3"), True),
        (WITH_PREVIEW, True),
        (jpeg()[:2] + b"\xff\xff\xff" + jpeg()[3:], True),  # fill bytes
        (lossless(), False),
        (b"\xff\xd8\xff\xd9", False),
        (b"", False),
    ],
)
def test_what_kind_of_jpeg_it_is_is_told_by_the_frame_itself(data, expected):
    assert is_decoded(data) == expected


@pytest.mark.parametrize(
    ("data", "mode"),
    [
        (jpeg(), "RGB"),
        (jpeg(progressive=True, comment=b"\xff\xd8\xff\xda"), "RGB"),
        (jpeg(subsampling=0, restart_marker_blocks=3), "RGB"),
        (jpeg()[:2] + segment(0xEE, b"Adobe" + bytes(7)) + jpeg()[2:], "RGB"),
        (jpeg()[:20] + jpeg()[20:].replace(segment(0xC0, b"")[:2], segment(0xC1, b"")[:2]), "RGB"),  # extended
        (WITH_PREVIEW, ""),
        (jpeg(exif=b"Exif\0\0"), ""),
        (jpeg(icc_profile=bytes(9)), ""),
        (jpeg(xmp=b"x"), ""),
        (jpeg()[:2] + segment(0xE0, b"JFIF\0" + bytes(10)) + jpeg()[20:], ""),  # JFIF, a byte too long
        (jpeg()[:2] + segment(0xE0, b"JFIG\0" + bytes(9)) + jpeg()[20:], ""),
        (jpeg()[:2] + segment(0xEE, b"Adobe" + bytes(8)) + jpeg()[2:], ""),
        (jpeg()[:2] + segment(0xDB, bytes([0x10] + [1] * 128)) + jpeg()[2:], ""),  # a table of 16 bits
        (jpeg()[:2] + segment(0xDB, bytes(64)) + jpeg()[2:], ""),  # an incomplete table
        (jpeg()[:2] + segment(0xDB, bytes([4] + [1] * 64)) + jpeg()[2:], ""),
        (jpeg()[:2] + b"\xff\xff\xff" + jpeg()[3:], ""),  # fill bytes
        (jpeg()[:20] + b"\0" + jpeg()[20:], ""),
        (jpeg()[:20] + b"\xff\xdd\0\1" + jpeg()[20:], ""),
        (jpeg()[:300], ""),
        (jpeg()[:20] + segment(0xC0, struct.pack(">BHHB", 8, 30, 40, 2) + bytes(6)) + jpeg()[20:], ""),
        (jpeg()[:20] + segment(0xC0, struct.pack(">BHHB", 8, 30, 40, 1) + bytes(3)) + jpeg()[20:], ""),  # two frames
        (jpeg()[:20] + segment(0xC0, b"") + jpeg()[20:], ""),
        (b"\xff\xd8" + segment(0xC0, struct.pack(">BHHB", 12, 30, 40, 1) + bytes(3)) + segment(0xDA, b""), ""),
        (b"\xff\xd8" + segment(0xC0, struct.pack(">BHHB", 8, 30, 40, 1) + bytes(3)) + segment(0xDA, b""), "L"),
        (b"\xff\xd8" + segment(0xC9, struct.pack(">BHHB", 8, 30, 40, 1) + bytes(3)) + segment(0xDA, b""), ""),
        (b"\xff\xd8" + segment(0xC0, struct.pack(">BHHB", 8, 30, 40, 1) + bytes(4)) + segment(0xDA, b""), ""),
        (b"\xff\xd8" + segment(0xDA, b""), ""),
        (lossless(), ""),
        (b"\xff\xd8\xff\xd9", ""),
        (b"\xff\xd8\xff", ""),
        (b"", ""),
    ],
)
def test_a_header_is_plain_if_nothing_but_pixels_and_what_they_need_follows(data, mode):
    assert plain_header(data) == (PlainHeader(mode, 40, 30) if mode else None)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (jpeg(), True),
        (jpeg() + bytes(1000), True),
        (jpeg()[:-2] + bytes(1000), False),
        (WITH_PREVIEW[:-2] + bytes(1000), False),
    ],
)
def test_the_end_is_looked_for_behind_the_pixels(data, expected):
    assert has_end(data) == expected


def test_a_lossless_jpeg_becomes_one_that_tensorflow_decodes():
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.decode_jpeg(lossless())
    image = check_image(lossless(), ImageOptions())
    assert (image.fixed, image.height, image.width) == ("lossless JPEG", 30, 40)
    assert np.abs(tf.io.decode_jpeg(image.encoded).numpy().astype(int) - 128).max() <= 1
    assert check_image(lossless(), ImageOptions(resize_shorter=15)).height == 15


def test_a_baseline_jpeg_that_has_lost_its_end_becomes_one_that_tensorflow_decodes():
    data = jpeg()[:-2] + bytes(1000)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.decode_jpeg(data)
    image = check_image(data, ImageOptions())
    assert image.fixed == "JPEG without its end"
    assert tf.io.decode_jpeg(image.encoded).shape == (30, 40, 3)
    assert stored_bytes(data, ImageOptions()) == len(data)  # an estimate, for which nothing is decoded


def test_bytes_behind_the_end_are_kept():
    data = jpeg() + b"a camera's notes"
    assert check_image(data, ImageOptions()).encoded is data
