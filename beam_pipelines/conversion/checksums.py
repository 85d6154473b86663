"""Checksum of two pieces of data from the checksums of each, without reading them again."""

from __future__ import annotations

import itertools

_POLYNOMIAL = 0x82F63B78  # of CRC-32C, its lowest power in the highest bit: RFC 3720, appendix B.4
_ONE = 1 << 31


def combined_crc32c(first: int, second: int, num_bytes: int) -> int:
    """Returns the CRC-32C of data whose last `num_bytes` bytes have the CRC `second`, and those before them `first`.

    A CRC is a remainder of polynomials over GF(2). Appending n zero bytes multiplies it by x^(8n), which takes some
    log2(n) multiplications, 20 us for a megabyte; zlib's crc32_combine() does the same.
    """
    return _product(_power_of_x(8 * num_bytes), first) ^ second


def _product(one: int, other: int) -> int:
    """Returns the product of two polynomials modulo _POLYNOMIAL."""
    product = 0
    for power in range(31, -1, -1):
        if one >> power & 1:
            product ^= other
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product


# x^(2^n) for each n
_SQUARES = list(itertools.accumulate(range(63), lambda square, _: _product(square, square), initial=_ONE >> 1))


def _power_of_x(exponent: int) -> int:
    power = _ONE
    for square in _SQUARES[: exponent.bit_length()]:
        if exponent & 1:
            power = _product(square, power)
        exponent >>= 1
    return power
