"""Images with ICC profiles."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Primaries = Sequence[tuple[float, float]]  # x and y of red, green and blue

D65 = (0.3127, 0.3290)


DISPLAY_P3 = ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060))


ADOBE_RGB = ((0.640, 0.330), (0.210, 0.710), (0.150, 0.060))


BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])


D50 = np.array([0.9642, 1.0, 0.8249])


# sRGB's (30, 150, 60) in these spaces, by their published matrices and curves.
GREEN, GREEN_IN_P3, GREEN_IN_ADOBE_RGB = (30, 150, 60), (72, 148, 71), (88, 149, 69)


def linear(encoded: Floats) -> Floats:
    """sRGB's curve."""
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def xyz(x: float, y: float) -> Floats:
    return np.array([x / y, 1, (1 - x - y) / y])


def matrix(primaries: Primaries) -> Floats:
    """Linear RGB to XYZ relative to D65."""
    columns = np.stack([xyz(*primary) for primary in primaries], axis=1)
    scales: Floats = np.linalg.solve(columns, xyz(*D65))
    return columns * scales


def encode(space: bytes, kind: bytes, pcs: bytes, tags: dict[bytes, bytes]) -> bytes:
    """An ICC profile of version 2.1."""
    table, body, start = b"", b"", 128 + 4 + 12 * len(tags)
    for name, data in tags.items():
        table += struct.pack(">4sII", name, start + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    header = struct.pack(
        ">I4sI4s4s4s12s4s", start + len(body), b"\0\0\0\0", 0x02100000, kind, space, pcs, bytes(12), b"acsp"
    )
    header += bytes(28) + struct.pack(">3i", *(round(value * 65536) for value in D50)) + bytes(48)
    return header + struct.pack(">I", len(tags)) + table + body


def described(tags: dict[bytes, bytes], white: Floats = D50) -> dict[bytes, bytes]:
    text = b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + bytes(78)
    return {b"desc": text, b"cprt": b"text\0\0\0\0none\0", b"wtpt": position(white)} | tags


def position(values: Iterable[float]) -> bytes:
    return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(value * 65536) for value in values))


def curve(values: float | Iterable[float]) -> bytes:
    """A table of values in [0, 1], or one exponent."""
    numbers = [round(values * 256)] if isinstance(values, float) else [round(value * 65535) for value in values]
    return b"curv\0\0\0\0" + struct.pack(f">I{len(numbers)}H", len(numbers), *numbers)


def rgb_profile(primaries: Primaries, tone: float | Iterable[float]) -> bytes:
    cones = BRADFORD @ xyz(*D65)
    adapted = np.linalg.inv(BRADFORD) @ np.diag(BRADFORD @ D50 / cones) @ BRADFORD @ matrix(primaries)
    tags = {name: position(adapted[:, number]) for number, name in enumerate((b"rXYZ", b"gXYZ", b"bXYZ"))}
    return encode(b"RGB ", b"mntr", b"XYZ ", described(tags | dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve(tone))))


SRGB_TONE = linear(np.linspace(0, 1, 1024))


PROFILES = {"Display P3": rgb_profile(DISPLAY_P3, SRGB_TONE), "Adobe RGB": rgb_profile(ADOBE_RGB, 2.19921875)}
