"""Data of the report's charts: histogram bins, marks and curves, limited in number for datasets of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_MAX_BARS = 40  # of a histogram
_MAX_POINTS = 200  # of a curve


class Bin(NamedTuple):
    """One bar of a histogram.

    Attributes:
      low: Smallest value that it counts.
      high: Largest value that it counts.
      total: Number of values from `low` to `high`.
      height: Height in percent of the highest bar.
    """

    low: int
    high: int
    total: int
    height: float


class Histogram(NamedTuple):
    """A histogram with what its axes say.

    Attributes:
      title: What is counted, in the plural: "stored images".
      axis: Name and unit of the values.
      bins: Its bars, from the smallest values to the largest; [] if nothing is counted.
      ticks: (position in percent of the width, text) below the bars.
      levels: (position in percent of the height, count) next to the bars, from the highest to 0.
      text: What it shows, in words.
    """

    title: str
    axis: str
    bins: list[Bin]
    ticks: list[tuple[float, str]]
    levels: list[tuple[float, int]]
    text: str


def edges(*counts: Ints) -> Ints:
    """Returns the bounds of at most _MAX_BARS bars for several sets of values: bar i has edges[i] to edges[i + 1] - 1.

    If the values are within 10 * _MAX_BARS of one another, all bars count equally many whole numbers; otherwise, their
    bounds have equal ratios, as sizes of photographs spread over powers of two.

    Args:
      counts: For each set, how often each of the values 0, 1, 2, … occurs.
    """
    values = np.flatnonzero(sum(counts))
    if not len(values):
        return np.zeros(0, np.int64)
    low, end = int(values[0]), int(values[-1]) + 1
    if end - low > 10 * _MAX_BARS:
        bounds: Ints = np.unique(np.rint(np.geomspace(max(low, 1), end, _MAX_BARS + 1)).astype(np.int64))
        bounds[0] = low
        return bounds
    width = next(width for width in range(1, 12) if -(-end // width) - low // width <= _MAX_BARS)
    return np.arange(low // width, -(-end // width) + 1, dtype=np.int64) * width


def histogram(counts: Ints, bounds: Ints | None = None) -> list[Bin]:
    """Returns the bars of a histogram.

    Args:
      counts: How often each of the values 0, 1, 2, … occurs.
      bounds: From edges(); by default edges(values).
    """
    bounds = edges(counts) if bounds is None else bounds
    if not len(bounds):
        return []
    sums = np.concatenate([[0], np.cumsum(counts)])
    totals = np.diff(sums[np.minimum(bounds, len(counts))])
    bars = zip(bounds[:-1].tolist(), (bounds[1:] - 1).tolist(), totals.tolist(), strict=True)
    return [Bin(low, high, total, percent(total, int(totals.max()))) for low, high, total in bars]


def named_histogram(
    title: str, axis: str, counts: Ints, bounds: Ints, format_value: Callable[[int], str] = "{:,}".format
) -> Histogram:
    """Returns a histogram with its axes.

    Args:
      title: What is counted, in the plural.
      axis: Name and unit of the values.
      counts: How often each of the values 0, 1, 2, … occurs.
      bounds: From edges(), so that several histograms have the same axis.
      format_value: Returns the text of a value on the axis.
    """
    bins = histogram(counts, bounds)
    if not bins:
        return Histogram(title, axis, [], [], [], f"no {title}")
    # Fewer ticks where their texts are long: "14.6 KB".
    parts = 2 if max(len(format_value(int(bound))) for bound in bounds) > 6 else 4
    # Where each bar has a single value, the number is below its middle, else at the left of the bar.
    last, shift = (len(bins), 0.0) if bounds[-1] - bounds[0] > len(bins) else (len(bins) - 1, 0.5)
    indices = sorted({last * index // parts for index in range(parts + 1)})
    ticks = [(round(100 * (index + shift) / len(bins), 2), format_value(int(bounds[index]))) for index in indices]
    most = max(bar.total for bar in bins)
    levels = [(100.0, most), *([(percent(most // 2, most), most // 2)] if most > 1 else []), (0.0, 0)]
    low, middle, high = (
        (format_value(quantile(counts, share)) for share in (0.05, 0.5, 0.95)) if most else ("0", "0", "0")
    )
    text = f"{int(counts.sum()):,} {title} by {axis}: 5 % are at most {low}, half at most {middle}, 95 % at most {high}"
    return Histogram(title, axis, bins, ticks, levels, text)


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


def curve(counts: Iterable[int]) -> str:
    """Returns the points of an SVG polygon: the counts from the largest to the smallest, in a square of 100 x 100."""
    ordered = np.sort(np.fromiter(counts, np.int64))[::-1]
    if not len(ordered):
        return ""
    ranks = np.unique(np.linspace(0, len(ordered) - 1, _MAX_POINTS).astype(int))
    x, y = ranks * 100 / max(len(ordered) - 1, 1), 100 - ordered[ranks] * 100 / max(ordered[0], 1)
    line = " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(x, y, strict=True))
    return f"0,100 {line} 100,100"


def percent(part: float, total: float) -> float:
    """Returns `part` in percent of `total`, rounded to two decimals; 0 if `total` is 0."""
    return round(100 * part / total, 2) if total else 0.0
