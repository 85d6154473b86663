"""How well an order mixes: which examples meet in a batch, and how even classes are; arithmetic over record numbers.

Everything is given relative to what a true permutation of the same size, drawn anew each epoch, has on average.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

CLASSES = 100
TOGETHER = 16  # batches


class Meetings(NamedTuple):
    """How examples meet in batches, relative to a true permutation.

    Attributes:
      mates: Mean number of other examples that an example has met.
      variance: Variance, over all pairs of examples, of how often they have met.
      again: Number of pairs of meetings of the same two examples: those who met twice count once, three times thrice.
    """

    mates: float
    variance: float
    again: float


def meetings(batches: Numbers, num_examples: int, epochs: int) -> Meetings:
    """Returns how the examples of [batches, batch_size] numbers, which are so many epochs, meet."""
    batch_size = batches.shape[1]
    one, other = np.triu_indices(batch_size, 1)
    codes = np.empty((len(batches), len(one)), np.int64)
    for row, batch in zip(codes, np.sort(batches, axis=1), strict=True):
        row[:] = batch[one] * num_examples + batch[other]
    codes = codes.reshape(-1)
    codes = codes[codes // num_examples != codes % num_examples]  # the same example twice in a batch is no pair
    codes.sort()
    ends = np.flatnonzero(np.append(codes[1:] != codes[:-1], True))
    counts = np.diff(ends, prepend=-1)
    pairs, likely = math.comb(num_examples, 2), (batch_size - 1) / (num_examples - 1)
    variance = (counts**2).sum() / pairs - (counts.sum() / pairs) ** 2
    again = (counts * (counts - 1) // 2).sum()
    return Meetings(
        mates=2 * len(counts) / num_examples / ((num_examples - 1) * (1 - (1 - likely) ** epochs)),
        variance=variance / (epochs * likely * (1 - likely)),
        again=again / (pairs * math.comb(epochs, 2) * likely**2),
    )


def class_spread(labels: Numbers, together: int = 1) -> float:
    """Returns the standard deviation of a class's share of consecutive batches.

    Args:
      labels: [batches, batch_size] labels below CLASSES, which have as many examples each.
      together: Number of consecutive batches of which the share is taken.
    """
    size = together * labels.shape[1]
    windows = labels.reshape(-1)[: labels.size // size * size].reshape(-1, size)
    counts = np.zeros((len(windows), CLASSES), np.int64)
    for number, window in enumerate(windows):
        counts[number] = np.bincount(window, minlength=CLASSES)
    return float(np.sqrt(((counts / size - 1 / CLASSES) ** 2).mean()))


def permutation_spread(num_examples: int, size: int) -> float:
    """Returns class_spread() of so many consecutive examples of a true permutation: hypergeometric."""
    share = 1 / CLASSES
    return math.sqrt(share * (1 - share) / size * (num_examples - size) / (num_examples - 1))


def labels_of(num_examples: int, is_sorted: bool) -> Numbers:
    """Returns the labels of the records, in the order on disk: sorted by class, or in random order as converted."""
    labels = np.arange(num_examples, dtype=np.int64) * CLASSES // num_examples
    return labels if is_sorted else np.random.default_rng(1).permutation(labels)


def mixing(batches: Numbers, num_examples: int, epochs: int) -> dict[str, float]:
    """Returns a row of the table: how [batches, batch_size] numbers, which are so many epochs, are mixed."""
    row = dict(meetings(batches, num_examples, epochs)._asdict())
    for kind, is_sorted in (("converted", False), ("sorted", True)):
        labels = labels_of(num_examples, is_sorted)[batches]
        for together in (1, TOGETHER):
            expected = permutation_spread(num_examples, together * batches.shape[1])
            row[f"{kind}{together}"] = class_spread(labels, together) / expected
    return row
