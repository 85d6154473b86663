"""Orientations of EXIF, also where the rest of it is odd or damaged."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from beam_pipelines.options import ImageOptions
from support.oriented import ORIENTED, directory, jpeg
from tpu_input.dataset_format.orientation import apply_orientation
from tpu_input.stored_images.check import check_image


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_pillow_turns_them(orientation):
    pixels = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(buffer, "PNG", exif=exif)
    turned, expected = apply_orientation(Image.open(buffer)), ImageOps.exif_transpose(Image.open(buffer))
    np.testing.assert_array_equal(np.asarray(turned), np.asarray(expected))


@pytest.mark.parametrize("kind", [(2, 4, b"abc\0"), (7, 4, b"abcd"), (11, 1, struct.pack("<f", 1.5))])
@pytest.mark.parametrize("tag", [0x0100, 0x0102, 0x011A, 0x8769, 0x8825])
def test_an_odd_tag_does_not_keep_a_photograph_from_being_turned(tag, kind):
    image = check_image(jpeg(directory(ORIENTED, (tag, *kind))), ImageOptions())
    assert (image.height, image.width, image.fixed) == (40, 30, "orientation")


@pytest.mark.parametrize("exif", [b"", b"garbage!garbage", b"II*\0", b"II*\0\xff\xff\xff\xff"])
def test_exif_that_cannot_be_read_says_nothing_against_the_pixels(exif):
    data = jpeg(exif)
    assert check_image(data, ImageOptions()).encoded is data


def test_damaged_exif_of_a_webp_says_nothing_against_its_pixels():
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30)).save(buffer, "WEBP", exif=b"garbage!garbage")
    assert check_image(buffer.getvalue(), ImageOptions()).fixed == "format WEBP"
