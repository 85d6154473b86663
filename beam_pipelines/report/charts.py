"""Data of the report's charts: histogram bins, marks and curves, limited in number for datasets of any size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Bin(NamedTuple):
    """One bar of a histogram.

    Attributes:
      low: Smallest value that it counts.
      high: Largest value that it counts.
      total: Number of values from `low` to `high`.
      height: Height in percent of the highest bar; see histogram().
    """

    low: int
    high: int
    total: int
    height: float


def histogram(counts: Ints, limit: int = 40) -> list[Bin]:
    """Returns one bar per value, or at most `limit` ranges of equal ratio if there are more values.

    As bounds are rounded, a range of two whole numbers may be next to a range of one, and counts twice as many. The
    height of a range is therefore its total divided by the logarithm of its ratio.

    Args:
      counts: How often each of the values 0, 1, 2, … occurs.
      limit: Maximum number of bars.
    """
    values = np.flatnonzero(counts)
    if not len(values):
        return []
    low, end = int(values[0]), int(values[-1]) + 1
    edges = np.arange(low, end + 1)
    if end - low > limit:
        edges = np.unique(np.rint(np.geomspace(max(low, 1), end, limit + 1)).astype(int))
        edges[0] = low
    totals = np.diff(np.concatenate([[0], np.cumsum(counts)])[edges])
    heights = totals if end - low <= limit else totals / np.diff(np.log(np.maximum(edges, 0.5)))
    bars = zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), totals.tolist(), heights.tolist(), strict=True)
    return [Bin(first, last, total, percent(height, float(heights.max()))) for first, last, total, height in bars]


def quantile(counts: Ints, share: float) -> int:
    """Returns the quantile of values: the smallest value such that at least `share` of all values are not larger.

    Args:
      counts: How often each of the values 0, 1, 2, … occurs, not all 0.
      share: Fraction of all values, in (0, 1].
    """
    sums = np.cumsum(counts)
    return int(np.searchsorted(sums, share * sums[-1]))


def marks(values: Iterable[int], largest: int) -> list[float]:
    """Returns the positions of values between 0 and `largest`, in percent, sorted; overlapping positions are merged."""
    return sorted({round(percent(value, largest) * 2.5) / 2.5 for value in values})


def curve(counts: Iterable[int], points: int = 200) -> str:
    """Returns the points of an SVG polygon: the counts from the largest to the smallest, in a square of 100 x 100."""
    ordered = np.sort(np.fromiter(counts, np.int64))[::-1]
    if not len(ordered):
        return ""
    at = np.unique(np.linspace(0, len(ordered) - 1, points).astype(int))
    x, y = at * 100 / max(len(ordered) - 1, 1), 100 - ordered[at] * 100 / max(ordered[0], 1)
    line = " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(x, y, strict=True))
    return f"0,100 {line} 100,100"


def percent(part: float, whole: float) -> float:
    """Returns `part` in percent of `whole`, rounded to two decimals; 0 if `whole` is 0."""
    return round(100 * part / whole, 2) if whole else 0.0
