"""Properties of JPEG files that are visible only in their markers, and that Pillow does not report.

bytes of a JPEG file ──is_decoded, has_end──▶ whether TensorFlow can decode it, or it has to be re-encoded
                     ──misses_its_end──▶ whether libjpeg warns when the last pixels are missing
                     ──num_scans──▶ number of scans that a decoder goes through
                     ──bare──▶ the same coded pixels without metadata
                     ──without_metadata──▶ the same file without EXIF, XMP, IPTC, comments, color profiles and previews
                     ──plain_header──▶ mode and size of a JPEG without metadata
                     ──frame_size, with_rows──▶ size of any JPEG; the same JPEG cut off below a row
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Frame markers (SOF) that TensorFlow decodes: baseline to progressive, with Huffman or arithmetic coding.
# https://www.w3.org/Graphics/JPEG/itu-t81.pdf, table B.1
_DECODED_FRAMES = frozenset(b"\xc0\xc1\xc2\xc9\xca")
_HUFFMAN_FRAMES = frozenset(b"\xc0\xc1")  # not progressive: all coefficients in one scan
_PROGRESSIVE_FRAMES = frozenset(b"\xc2\xca")
_FRAMES = frozenset(range(0xC0, 0xD0)) - frozenset(b"\xc4\xc8\xcc")  # these three are tables and a reserved marker
_DECODING = _FRAMES | frozenset(b"\xc4\xcc\xdb\xdc\xdd")  # frames, tables, number of lines, restart interval
_WITHOUT_LENGTH = frozenset(range(0xD0, 0xDA)) | {0x01}
_MARKER = re.compile(rb"\xff+([^\x00\xff])", re.DOTALL)
_SCAN = re.compile(rb"\xff\xda")  # 3 times as fast as bytes.count()
_SCAN_MARKER = 0xDA
END = b"\xff\xd9"
_PLAIN_FRAMES = frozenset(b"\xc0\xc1\xc2")
_SKIPPED = frozenset(b"\xc4\xdd\xfe")  # Huffman tables, restart interval, comment
_MODES = {1: "L", 3: "RGB"}  # components of a frame: Pillow's mode


class PlainHeader(NamedTuple):
    """Mode and size of a JPEG that has no metadata but a comment.

    Attributes:
      mode: Pillow's mode, "L" or "RGB".
      width: Pixels.
      height: Pixels.
    """

    mode: str
    width: int
    height: int


def is_decoded(data: bytes) -> bool:
    """Returns whether TensorFlow can decode JPEGs of this kind; Pillow can also decode lossless ones."""
    return _frame(data)[0] in _DECODED_FRAMES


def has_end(data: bytes) -> bool:
    """Returns whether a JPEG has its end-of-image marker; without it, TensorFlow fails in the last rows.

    Coded pixels cannot contain this marker. Previews before the frame do, so the search starts after the frame marker.
    """
    return data.endswith(END) or end(data) >= 0


def end(data: bytes) -> int:
    """Returns the offset of the end-of-image marker, -1 if there is none; other images may follow it."""
    return data.find(END, _frame(data)[1])


def num_scans(data: bytes) -> int:
    """Returns the number of scans that a decoder goes through, at least 1.

    A progressive JPEG has several scans, usually 10. A baseline JPEG whose first scan has all components has one.
    """
    marker, start = _frame(data)
    first = data.find(b"\xff\xda", start)
    if first < 0 or len(data) < first + 5:
        return 1
    # The frame: length (2 bytes), precision, height (2), width (2), components; a scan: length (2), components.
    if marker not in _PROGRESSIVE_FRAMES and data[first + 4] == data[start + 7]:
        return 1
    last = data.find(END, first)
    return sum(1 for _ in _SCAN.finditer(data, first, last if last >= 0 else len(data)))


def misses_its_end(data: bytes) -> bool:
    """Returns whether libjpeg would warn if the last coded pixels of this JPEG were missing.

    It does not warn if a whole scan is missing, nor with arithmetic coding, which continues with zeros.
    """
    return _frame(data)[0] in _HUFFMAN_FRAMES and num_scans(data) == 1


def bare(data: bytes) -> bytes:
    """Returns a JPEG with only its coded pixels and the segments needed to decode them.

    The parameters of a baseline scan are corrected. libjpeg also warns of problems that do not change any pixel (an
    unknown revision of JFIF or Adobe's code, a damaged color profile, bytes between segments, parameters of a baseline
    scan, which it ignores). These warnings would hide those that concern the pixels.
    """
    output, offset = bytearray(data[:2]), 2
    while match := _MARKER.search(data, offset):
        marker, offset = match[1][0], match.end()
        if marker == _SCAN_MARKER:
            break
        if marker not in _WITHOUT_LENGTH:
            offset += int.from_bytes(data[offset : offset + 2], "big")
        if marker in _DECODING:
            output += data[match.start() : offset]
    if not match:
        return data
    output += b"\xff\xda"
    scan = len(output)
    output += data[offset:]
    if _frame(data)[0] in _DECODED_FRAMES - _PROGRESSIVE_FRAMES and len(output) > scan + 2:
        parameters = scan + 3 + 2 * output[scan + 2]
        # The values for all coefficients in one scan: T.81, B.2.3.
        output[parameters : parameters + 3] = b"\x00\x3f\x00"
    return bytes(output)


_JFIF, _ADOBE = 0xE0, 0xEE  # application segments that tell how colors are coded


def without_metadata(data: bytes) -> bytes:
    """Returns a JPEG with the segments that its pixels need, JFIF's and Adobe's; the coded pixels are the same.

    What follows the end marker, such as a camera's preview, is left out too.
    """
    output, offset = bytearray(data[:2]), 2
    while match := _MARKER.search(data, offset):
        marker, offset = match[1][0], match.end()
        if marker == _SCAN_MARKER:
            last = end(data)
            return bytes(output) + b"\xff\xda" + (data[offset : last + 2] if last >= offset else data[offset:])
        if marker not in _WITHOUT_LENGTH:
            offset += int.from_bytes(data[offset : offset + 2], "big")
        if marker in _DECODING or marker in (_JFIF, _ADOBE):
            output += b"\xff" + data[match.end() - 1 : offset]
    return data


def plain_header(data: bytes) -> PlainHeader | None:
    """Returns the header of a JPEG that is as plain as most are; None for any other, which may be a good JPEG too.

    It has one frame of 8 bits with Huffman coding, grayscale or of three components. Before its pixels, it has nothing
    but the tables of these, JFIF's and Adobe's markers without a thumbnail, and comments: no EXIF, no color profile, no
    second image, and no byte that is out of place. Reading it takes a fifth of the time of Image.open().
    """
    header, offset, num_bytes = None, 2, len(data)
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    while offset + 4 <= num_bytes and data[offset] == 0xFF:
        marker, start = data[offset + 1], offset + 4
        if marker == _SCAN_MARKER:
            return header
        offset += 2 + (data[offset + 2] << 8 | data[offset + 3])
        if offset < start or offset > num_bytes:
            return None
        if marker in _SKIPPED:
            continue
        if marker == 0xDB:  # quantization tables: of 8 bits, and complete
            if (offset - start) % 65 or any(data[table] > 3 for table in range(start, offset, 65)):
                return None
        elif marker in _PLAIN_FRAMES:
            components = data[start + 5] if offset >= start + 6 else 0
            if header or components not in _MODES or offset != start + 6 + 3 * components or data[start] != 8:
                return None
            height, width = data[start + 1] << 8 | data[start + 2], data[start + 3] << 8 | data[start + 4]
            header = PlainHeader(_MODES[components], width, height)
        elif not (
            (marker == 0xE0 and offset == start + 14 and data.startswith(b"JFIF\0", start))
            or (marker == 0xEE and offset == start + 12 and data.startswith(b"Adobe", start))
        ):
            return None
    return None


def frame_size(data: bytes) -> tuple[int, int] | None:
    """Returns (height, width) in pixels as stated in the frame; None if there is no complete frame."""
    _, offset = _frame(data)
    if offset + 7 > len(data):
        return None
    return int.from_bytes(data[offset + 3 : offset + 5], "big"), int.from_bytes(data[offset + 5 : offset + 7], "big")


def with_rows(data: bytes, rows: int) -> bytes:
    """Returns a JPEG that ends below so many rows of pixels; the pixels of these are the same.

    Its frame states that height (T.81, B.2.2: the number of lines), and the coded pixels of further rows stay. libjpeg
    does not decode these; it looks in them for the end marker alone, and warns of them.

    Args:
      data: A JPEG with a complete frame.
      rows: From 1 to the height of the image.
    """
    _, offset = _frame(data)
    return b"".join((data[: offset + 3], rows.to_bytes(2, "big"), memoryview(data)[offset + 5 :]))


def _frame(data: bytes) -> tuple[int, int]:
    """Returns the frame marker, which tells how a JPEG is coded, and the offset after it; 0 and the size if none."""
    offset = 2
    while match := _MARKER.search(data, offset):
        marker, offset = match[1][0], match.end()
        if marker in _FRAMES:
            return marker, offset
        if marker not in _WITHOUT_LENGTH:
            offset += int.from_bytes(data[offset : offset + 2], "big")
    return 0, len(data)
