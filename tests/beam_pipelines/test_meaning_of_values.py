"""Pixel values whose meaning a file declares, and decoders do not apply by themselves."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.options import ImageOptions
from tpu_input.stored_images.check import DARK, TRANSPARENT, check_image

RED = (200, 30, 30)


def grey_tiff(values: np.ndarray, photometric: int) -> bytes:
    """Returns an uncompressed TIFF 6.0 of one strip in the byte order of the values: 0 is white with photometric 0."""
    order = values.dtype.byteorder if values.dtype.byteorder in "<>" else "<"
    bits, (height, width) = values.dtype.itemsize * 8, values.shape
    entries = [(256, 4, width), (257, 4, height), (258, 3, bits), (259, 3, 1), (262, 3, photometric), (273, 4, 8)]
    entries += [(277, 3, 1), (278, 4, height), (279, 4, values.nbytes)]
    directory = struct.pack(f"{order}H", len(entries))
    for tag, kind, value in entries:
        words = (value, 0) if kind == 3 else (value,)
        directory += struct.pack(f"{order}HHI{'HH' if kind == 3 else 'I'}", tag, kind, 1, *words)
    begin = struct.pack(f"{order}2sHI", b"MM" if order == ">" else b"II", 42, 8 + values.nbytes)
    return begin + values.tobytes() + directory + bytes(4)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("photometric", [0, 1])
def test_a_tiff_is_stored_as_it_is_meant_whether_0_is_white_or_black(bits, photometric):
    grey = np.full((64, 96), 60)
    grey[:16] = 240
    top = (1 << bits) - 1
    values = grey * (top // 255) if photometric else top - grey * (top // 255)
    stored = check_image(grey_tiff(values.astype(f"uint{bits}"), photometric), ImageOptions())
    pixels = np.asarray(Image.open(io.BytesIO(stored.encoded)), int)
    assert np.abs(pixels[[8, 40], 20] - [240, 60]).max() < 8


def bmp(alpha: int) -> bytes:
    """Returns a 32-bit BMP of one color with a BITMAPV4HEADER."""
    body = bytes([*RED[::-1], alpha]) * (96 * 64)
    head = struct.pack("<IiiHHIIiiII", 108, 96, 64, 1, 32, 3, len(body), 2835, 2835, 0, 0)
    head += struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000) + b"BGRs" + bytes(48)
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(body), 0, 0, 14 + len(head)) + head + body


@pytest.mark.parametrize("alpha", [0, 255])
def test_a_bmp_without_alpha_is_opaque(alpha):
    stored = check_image(bmp(alpha), ImageOptions())
    assert np.abs(np.asarray(Image.open(io.BytesIO(stored.encoded)), int)[30, 40] - RED).max() < 8
    assert TRANSPARENT not in stored.noted


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "palette"])
@pytest.mark.parametrize("visible", [0, 1])
def test_images_without_a_visible_pixel_are_counted(kind, visible):
    pixels = np.full((48, 64, 4), 90, np.uint8)
    pixels[..., 3] = 0
    pixels[-1, -1, 3] = 255 * visible
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    if kind == "palette":
        image = Image.fromarray(pixels[..., 3] // 255).convert("P")
        image.info["transparency"] = b"\0" + b"\xff" * 255
        image.save(buffer, "PNG", transparency=image.info["transparency"])
    else:
        image.save(buffer, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
    assert (TRANSPARENT in check_image(buffer.getvalue(), ImageOptions()).noted) == (not visible)


@pytest.mark.parametrize(
    ("white", "is_dark"), [(1 << 10, True), ((1 << 14) - 1, True), (1 << 14, False), (65535, False)]
)
def test_a_16_bit_image_without_its_upper_bits_is_counted(white, is_dark):
    buffer = io.BytesIO()
    Image.fromarray(np.linspace(0, white, 64 * 48).reshape(48, 64).astype(np.uint16)).save(buffer, "PNG")
    assert (DARK in check_image(buffer.getvalue(), ImageOptions()).noted) == is_dark


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("white", [(1 << 14) - 1, 65535])
def test_16_bits_are_read_in_both_byte_orders(order, white):
    """Pillow opens big-endian values in a mode of its own, I;16B, of which it cannot tell the extrema."""
    stored = check_image(grey_tiff(np.full((30, 40), white, f"{order}u2"), 1), ImageOptions())
    assert (DARK in stored.noted) == (white < 1 << 14)
    assert abs(int(np.asarray(Image.open(io.BytesIO(stored.encoded))).mean()) - (white >> 8)) <= 1
