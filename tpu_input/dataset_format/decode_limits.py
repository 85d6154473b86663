"""How much one image may cost: its pixels, which take memory, and a JPEG's scans over them, which take time.

A file of a few hundred kilobytes can ask for gigabytes, or for minutes of a core. Conversion and `predict` refuse such
an image before anything of it is decoded. TensorFlow-free.
"""

from __future__ import annotations

from PIL import Image

from tpu_input.dataset_format.jpeg_markers import num_scans

# So many pixels of an RGBA PNG, of a progressive JPEG that is turned, … take up to 600 MB beside the file itself
# (tests/tpu_input/test_decode_limits.py measures it). 50 megapixels are what phones and most cameras have at most.
MAX_PIXELS = 50_000_000
PILLOW_MAX_PIXELS = 178_956_970  # above, Pillow refuses an image itself: Image.open(), DecompressionBombError
# Of each pixel of max_pixels. Encoders make up to 20 scans; 40 over 50 megapixels take 2 to 4 s of a core.
MAX_SCANS = 40
# Of a file; PILLOW_MAX_PIXELS of four 16-bit channels take 1.4 GB without compression.
MAX_FILE_BYTES = 1 << 31
_MIN_SCAN_BYTES = 11  # a scan's header of 10 bytes, and one of pixels


def too_many_bytes(num_bytes: int) -> str:
    """Returns by how much a file is larger than any image that may be decoded; "" if it is not."""
    if num_bytes <= MAX_FILE_BYTES:
        return ""
    return f"the file has {num_bytes:,} bytes, at most {MAX_FILE_BYTES:,} are read"


def too_large(image: Image.Image, max_pixels: int) -> str:
    """Returns by how much an image, opened but not decoded, has too many pixels; "" if it has not."""
    # WebP's decoder holds 16 bytes for each pixel, that of a CMYK JPEG 12; others 4 to 10.
    is_double = image.format == "WEBP" or image.mode == "CMYK"
    allowed = max_pixels // 2 if is_double else max_pixels
    if image.width * image.height <= allowed:
        return ""
    kind = f"{'WebP' if image.format == 'WEBP' else 'CMYK'} images, which take twice the memory" if is_double else ""
    return (
        f"{image.width} x {image.height} are {image.width * image.height:,} pixels, at most {allowed:,}"
        + (f" of {kind}," if kind else "")
        + " are decoded"
    )


def too_slow(image: Image.Image, data: bytes, max_pixels: int) -> str:
    """Returns how many scans a JPEG, opened but not decoded, has too many; "" if decoding it takes no undue time."""
    pixels, allowed = image.width * image.height, MAX_SCANS * max_pixels
    if image.format not in ("JPEG", "MPO") or len(data) // _MIN_SCAN_BYTES * pixels <= allowed:
        return ""
    scans = num_scans(data)
    if scans * pixels <= allowed:
        return ""
    return (
        f"{scans} scans over {image.width} x {image.height} pixels each are {scans * pixels:,} pixels to go through, "
        f"at most {allowed:,} are ({MAX_SCANS} times {max_pixels:,})"
    )
