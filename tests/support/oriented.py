"""JPEGs that are turned by their EXIF orientation."""

from __future__ import annotations

import io
import struct

from PIL import Image


def jpeg(exif: bytes) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30)).save(buffer, "JPEG", exif=b"Exif\0\0" + exif)
    return buffer.getvalue()


def directory(*entries: tuple[int, int, int, bytes]) -> bytes:
    """Returns EXIF, little endian, of entries (tag, type, count, 4 bytes)."""
    packed = b"".join(struct.pack("<HHI", *entry[:3]) + entry[3] for entry in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + packed + bytes(4)


ORIENTED = (0x0112, 3, 1, b"\6\0\0\0")
