"""Limits on the cost of decoding an image: its pixels, which take memory, and a JPEG's scans, which take time.

Decoding a file of a few hundred kilobytes can take gigabytes of memory, or minutes of CPU time. Conversion and
`predict` reject such an image before decoding it. TensorFlow-free.
"""

from __future__ import annotations

import math

from PIL import Image

from tpu_input.dataset_format.jpeg_markers import num_scans

# This many pixels of an RGBA PNG, of a progressive JPEG that is turned, … take up to 600 MB in addition to the file
# (measured in tests/tpu_input/test_decode_limits.py). Phones and most cameras have at most 50 megapixels.
MAX_PIXELS = 50_000_000
PILLOW_MAX_PIXELS = 178_956_970  # above this, Image.open() of Pillow raises DecompressionBombError
# Scans allowed for an image of max_pixels; smaller images may have more. Encoders make up to 20 scans; 40 scans of 50
# megapixels take 2 to 4 s on one core.
MAX_SCANS = 40
# Largest file; PILLOW_MAX_PIXELS with four 16-bit channels take 1.4 GB without compression.
MAX_FILE_BYTES = 1 << 31
# Memory in bytes per pixel that Pillow's decoders of these formats take; CMYK JPEGs take 12, others 4 to 10.
# Measured as in tests/tpu_input/test_decode_limits.py, of images with an alpha channel.
DECODER_BYTES = {"WEBP": 16, "AVIF": 16, "HEIF": 16, "JPEG2000": 26}
_TILE_SIZE = (322, 323)  # tags of a TIFF with the width and the height of its tiles
_MIN_SCAN_BYTES = 11  # a scan has a header of 10 bytes, and at least one byte of pixels


def too_many_bytes(num_bytes: int) -> str:
    """Returns a message if a file is larger than MAX_FILE_BYTES; else ""."""
    if num_bytes <= MAX_FILE_BYTES:
        return ""
    return f"the file has {num_bytes:,} bytes, but at most {MAX_FILE_BYTES:,} are read"


def too_large(image: Image.Image, max_pixels: int) -> str:
    """Returns a message if an image, opened but not decoded, has too many pixels; else ""."""
    kind = image.format if image.format in DECODER_BYTES else image.mode if image.mode == "CMYK" else ""
    times = {"JPEG2000": 3}.get(kind, 2) if kind else 1
    allowed = max_pixels // times
    width, height = _decoded_size(image)
    if width * height <= allowed:
        return ""
    memory = {2: "twice", 3: "three times"}
    kind = f"{kind} images, which take {memory[times]} the memory" if kind else ""
    return (
        f"{width} x {height} = {width * height:,} pixels{' of a tile' * ((width, height) != image.size)}, but at most "
        f"{allowed:,}" + (f" of {kind}," if kind else "") + " are decoded"
    )


def _decoded_size(image: Image.Image) -> tuple[int, int]:
    """Returns the width and height of what is decoded at once: the image, or a tile of a TIFF that is larger."""
    if image.format == "TIFF":
        tile = tuple(image.tag_v2.get(tag, 0) for tag in _TILE_SIZE)  # type: ignore[attr-defined]
        if all(isinstance(side, int) for side in tile) and math.prod(tile) > math.prod(image.size):
            return tile
    return image.size


def is_fast(num_pixels: int, data: bytes, max_pixels: int) -> bool:
    """Returns whether a JPEG is so small that it can have as many scans as its file has room for."""
    return len(data) // _MIN_SCAN_BYTES * num_pixels <= MAX_SCANS * max_pixels


def too_slow(image: Image.Image, data: bytes, max_pixels: int) -> str:
    """Returns a message if a JPEG, opened but not decoded, has too many scans to be decoded in due time; else ""."""
    pixels, allowed = image.width * image.height, MAX_SCANS * max_pixels
    if image.format not in ("JPEG", "MPO") or is_fast(pixels, data, max_pixels):
        return ""
    scans = num_scans(data)
    if scans * pixels <= allowed:
        return ""
    return (
        f"{scans} scans of {image.width} x {image.height} pixels = {scans * pixels:,} pixels, but at most {allowed:,} "
        f"are decoded ({MAX_SCANS} x {max_pixels:,})"
    )
