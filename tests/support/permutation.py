"""The permutation of the order of training as it is documented, in Python's integers."""

from __future__ import annotations

import itertools


def hashed(value: int) -> int:
    """SplitMix64, in Python's integers."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def permuted(number: int, size: int, key: int) -> int:
    """The image of a number below `size` under the permutation of a key."""
    height = next(side for side in itertools.count(1) if side * side >= size)
    width = -(-size // height)
    while True:
        row, column = divmod(number, width)
        for round_ in range(8):
            if round_ % 2 == 0:
                row = (row + hashed((key + (round_ << 32) + column) % 2**64) % height) % height
            else:
                column = (column + hashed((key + (round_ << 32) + row) % 2**64) % width) % width
        number = row * width + column
        if number < size:
            return number
