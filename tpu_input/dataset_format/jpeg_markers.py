"""What only a JPEG's markers tell, and Pillow decodes without a word.

bytes of a JPEG file ──is_decoded, has_end──▶ whether TensorFlow's decoder takes it, or it has to be encoded again
                     ──misses_its_end──▶ whether a decoder says so when the last pixels are missing
                     ──num_scans──▶ how often a decoder passes over the whole image
                     ──bare──▶ the same coded pixels without what stands beside them
"""

from __future__ import annotations

import re

# Of the kinds of frames, those that TensorFlow decodes: baseline to progressive, Huffman or arithmetic coding.
# https://www.w3.org/Graphics/JPEG/itu-t81.pdf, table B.1
_DECODED_FRAMES = frozenset(b"\xc0\xc1\xc2\xc9\xca")
_HUFFMAN_FRAMES = frozenset(b"\xc0\xc1")  # all coefficients at once
_PROGRESSIVE_FRAMES = frozenset(b"\xc2\xca")
_FRAMES = frozenset(range(0xC0, 0xD0)) - frozenset(b"\xc4\xc8\xcc")  # which are tables and a reserved one
_DECODING = _FRAMES | frozenset(b"\xc4\xcc\xdb\xdc\xdd")  # and tables, number of lines, restart interval
_WITHOUT_LENGTH = frozenset(range(0xD0, 0xDA)) | {0x01}
_MARKER = re.compile(rb"\xff+([^\x00\xff])", re.DOTALL)
_SCAN = re.compile(rb"\xff\xda")  # 3 times as fast as bytes.count()
_SCAN_MARKER = 0xDA
END = b"\xff\xd9"


def is_decoded(data: bytes) -> bool:
    """Returns whether TensorFlow decodes JPEGs of this kind; Pillow decodes lossless ones too."""
    return _frame(data)[0] in _DECODED_FRAMES


def has_end(data: bytes) -> bool:
    """Returns whether a JPEG has the marker that ends it; without, TensorFlow fails in the last rows.

    Coded pixels cannot contain it, previews before the frame do.
    """
    return data.endswith(END) or end(data) >= 0


def end(data: bytes) -> int:
    """Returns where the marker stands that ends a JPEG's image, -1 if there is none; other images may follow it."""
    return data.find(END, _frame(data)[1])


def num_scans(data: bytes) -> int:
    """Returns how many scans a decoder goes through, at least 1.

    A progressive JPEG sends its image in several, a usual one in 10. A baseline one whose first scan holds all
    components has that one.
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
    """Returns whether libjpeg warns of a JPEG whose last coded pixels are missing.

    Of a scan that is missing as a whole it says nothing, nor of arithmetic codes, which go on with zeros.
    """
    return _frame(data)[0] in _HUFFMAN_FRAMES and num_scans(data) == 1


def bare(data: bytes) -> bytes:
    """Returns a JPEG's coded pixels and what describes them alone, the parameters of a baseline scan mended.

    What libjpeg warns of in other places (an unknown revision of JFIF or Adobe's code, a damaged color profile, bytes
    between segments, parameters of a baseline scan, which it ignores) changes no pixel, but hides what it would say of
    the pixels.
    """
    kept, at = bytearray(data[:2]), 2
    while found := _MARKER.search(data, at):
        marker, at = found[1][0], found.end()
        if marker == _SCAN_MARKER:
            break
        if marker not in _WITHOUT_LENGTH:
            at += int.from_bytes(data[at : at + 2], "big")
        if marker in _DECODING:
            kept += data[found.start() : at]
    if not found:
        return data
    kept += b"\xff\xda"
    scan = len(kept)
    kept += data[at:]
    if _frame(data)[0] in _DECODED_FRAMES - _PROGRESSIVE_FRAMES and len(kept) > scan + 2:
        parameters = scan + 3 + 2 * kept[scan + 2]
        kept[parameters : parameters + 3] = b"\x00\x3f\x00"  # all coefficients at once: T.81, B.2.3
    return bytes(kept)


def _frame(data: bytes) -> tuple[int, int]:
    """Returns the marker that says how a JPEG's pixels are coded, 0 if there is none, and what comes behind it."""
    at = 2
    while found := _MARKER.search(data, at):
        marker, at = found[1][0], found.end()
        if marker in _FRAMES:
            return marker, at
        if marker not in _WITHOUT_LENGTH:
            at += int.from_bytes(data[at : at + 2], "big")
    return 0, len(data)
