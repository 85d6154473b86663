"""Charts are right at the edges, and bounded whatever the dataset."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from beam_pipelines.report import charts
from beam_pipelines.report.notes import share, shortened
from beam_pipelines.report.page import chosen_classes


def counts(**values: int) -> np.ndarray:
    """Returns how often each value occurs, from v32=5: 32 occurs five times."""
    array = np.zeros(65_536, np.int64)
    for name, count in values.items():
        array[int(name[1:])] = count
    return array


@pytest.mark.parametrize(
    ("values", "bins"),
    [
        (counts(), []),
        (counts(v32=5), [(32, 32, 5, 100)]),
        (counts(v32=1, v34=4), [(32, 32, 1, 25), (33, 33, 0, 0), (34, 34, 4, 100)]),
    ],
)
def test_few_values_have_a_bar_each(values, bins):
    assert charts.histogram(values) == bins


def test_many_values_share_bars_of_equal_ratio():
    values = np.zeros(65_536, np.int64)
    values[1:] = 1
    bins = charts.histogram(values)
    assert len(bins) <= 40
    assert (bins[0].low, bins[-1].high) == (1, 65_535)
    assert sum(bar.total for bar in bins) == 65_535
    assert all(bar.high + 1 == next_bar.low for bar, next_bar in itertools.pairwise(bins))


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        (counts(v32=5), [(50.0, "32")]),
        (counts(v32=1, v34=4), [(16.67, "32"), (50.0, "33"), (83.33, "34")]),
        (counts(v30=1, v109=4), [(0.0, "30"), (25.0, "50"), (50.0, "70"), (75.0, "90"), (100.0, "110")]),
    ],
)
def test_ticks_are_below_what_they_name(values, ticks):
    chart = charts.named_histogram("images", "pixels", values, charts.edges(values))
    assert chart.ticks == ticks
    assert chart.levels[0] == (100.0, values.max())


def test_two_histograms_have_one_axis():
    first, second = counts(v32=5), counts(v90=1, v3000=2)
    bounds = charts.edges(first, second)
    bins = [charts.histogram(values, bounds) for values in (first, second)]
    assert [(bar.low, bar.high) for bar in bins[0]] == [(bar.low, bar.high) for bar in bins[1]]
    assert [sum(bar.total for bar in side) for side in bins] == [5, 3]
    assert [max(bar.height for bar in side) for side in bins] == [100, 100]


def test_a_bar_is_not_higher_for_holding_more_whole_numbers_than_its_neighbour():
    values = np.zeros(65_536, np.int64)
    values[30:91] = 1000
    heights = [bar.height for bar in charts.histogram(values)]
    assert max(after / before for before, after in itertools.pairwise(heights)) < 1.1


@pytest.mark.parametrize(("fraction", "value"), [(0.05, 10), (0.5, 10), (0.51, 20), (0.95, 20), (1.0, 20)])
def test_quantiles(fraction, value):
    assert charts.quantile(counts(v10=50, v20=50), fraction) == value


def test_ten_thousand_shards_make_few_marks():
    sizes = np.random.default_rng(0).integers(95_000_000, 105_000_000, 10_000).tolist()
    marks = charts.marks(sizes, max(sizes))
    assert len(marks) < 50
    assert max(marks) == 100
    assert charts.marks([50, 50, 100], 100) == [50, 100]


@pytest.mark.parametrize("classes", [1, 2, 1000, 100_000])
def test_a_curve_has_a_bounded_number_of_points(classes):
    points = charts.curve(range(classes)).split()
    assert len(points) <= 202
    assert points[0] == "0,100"
    assert points[1].split(",")[0] == "0.0"


def test_all_classes_are_shown_up_to_the_limit_and_the_extremes_beyond():
    assert chosen_classes([3, 1, 2], 50) == [0, 1, 2]
    totals = [1000 - label for label in range(1000)]
    assert chosen_classes(totals, 50) == [*range(25), *range(975, 1000)]
    assert chosen_classes([1, 9, 5, 7, 3], 2) == [1, 0]


@pytest.mark.parametrize(
    ("part", "total", "text"),
    [
        (0, 0, "0 %"),
        (0, 10, "0 %"),
        (1, 10_000_000, "under 0.1 %"),
        (9_999_999, 10_000_000, "over 99.9 %"),
        (1, 3, "33.3 %"),
        (10, 10, "100 %"),
    ],
)
def test_shares_never_round_to_nothing_or_all(part, total, text):
    assert share(part, total) == text


@pytest.mark.parametrize(("text", "short"), [("abcdefghij", "abcdefghij"), ("abcdefghijk", "abc…fghijk"), ("", "")])
def test_long_names_lose_their_middle(text, short):
    assert shortened(text, 10) == short
