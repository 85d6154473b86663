"""What only a JPEG's markers tell, and Pillow decodes without a word: what TensorFlow's decoder will refuse.

bytes of a JPEG file ──is_decoded, has_end──▶ whether it has to be encoded again
"""

from __future__ import annotations

import re

# Of the kinds of frames, those that TensorFlow decodes: baseline to progressive, Huffman or arithmetic coding.
# https://www.w3.org/Graphics/JPEG/itu-t81.pdf, table B.1
_DECODED_FRAMES = frozenset(b"\xc0\xc1\xc2\xc9\xca")
_FRAMES = frozenset(range(0xC0, 0xD0)) - frozenset(b"\xc4\xc8\xcc")  # which are tables and a reserved one
_WITHOUT_LENGTH = frozenset(range(0xD0, 0xDA)) | {0x01}
_MARKER = re.compile(rb"\xff+([^\x00\xff])", re.DOTALL)
_END = b"\xff\xd9"


def is_decoded(data: bytes) -> bool:
    """Returns whether TensorFlow decodes JPEGs of this kind; Pillow decodes lossless ones too."""
    return _frame(data)[0] in _DECODED_FRAMES


def has_end(data: bytes) -> bool:
    """Returns whether a JPEG has the marker that ends it; without, TensorFlow fails in the last rows.

    Coded pixels cannot contain it, previews before the frame do.
    """
    return data.endswith(_END) or data.find(_END, _frame(data)[1]) >= 0


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
