"""history.csv, and what follows from it: the best evaluation, and when a run stops early."""

from __future__ import annotations

import math

import pytest

from estimator_app.model_dir.history import Row, best, is_stale, read_history, write_history


def rows(metric: str, *values: float) -> list[Row]:
    return [Row(10 * (number + 1), "validation", {metric: value}) for number, value in enumerate(values)]


def test_rows_are_read_back_to_the_bit_and_each_value_has_a_column(tmp_path):
    history = [
        Row(10, "validation", {"accuracy": 1 / 3, "train_loss": 1e-30}),
        Row(20, "a, b", {"accuracy": 0.1 + 0.2, "top_5_accuracy": 1.0}),
    ]
    assert read_history(str(tmp_path)) == []
    write_history(str(tmp_path), history)
    assert (tmp_path / "history.csv").read_text().splitlines()[0] == "step,split,accuracy,train_loss,top_5_accuracy"
    assert read_history(str(tmp_path)) == history


@pytest.mark.parametrize(
    "text", ["step,split,accuracy\nten,validation,0.5\n", "steps\n1\n", "step,split,loss\n1,a,x\n"]
)
def test_a_damaged_history_is_refused(tmp_path, text):
    (tmp_path / "history.csv").write_text(text)
    with pytest.raises(ValueError, match=r"history.csv' is damaged \("):
        read_history(str(tmp_path))


@pytest.mark.parametrize(
    ("metric", "values", "step"),
    [
        ("accuracy", (0.5, 0.9, 0.8), 20),
        ("accuracy", (0.5, 0.9, 0.9), 20),  # the first of the best: no better is no new best
        ("loss", (0.5, 0.9, 0.4), 30),
        ("loss", (math.nan, 0.5, 0.4), 30),  # a diverged evaluation is never the best of several
        ("accuracy", (math.nan, 0.1, math.nan), 20),
    ],
)
def test_the_best_is_the_highest_accuracy_or_the_lowest_loss(metric, values, step):
    best_row = best(rows(metric, *values), metric)
    assert best_row
    assert best_row.step == step
    assert best([], metric) is None


@pytest.mark.parametrize(
    ("values", "patience", "stale"),
    [
        ((), 1, False),
        ((0.5,), 1, False),
        ((0.5, 0.6), 1, False),
        ((0.6, 0.5), 1, True),
        ((0.6, 0.6), 1, True),
        ((0.6, 0.5), 2, False),
        ((0.6, 0.5, 0.7), 2, False),
        ((0.6, 0.5, 0.7, 0.6, 0.6), 2, True),
        ((0.6, 0.5, 0.5, 0.5), 0, False),
    ],
)
def test_patience_ends_with_so_many_evaluations_that_are_no_better(values, patience, stale):
    assert is_stale(rows("accuracy", *values), "accuracy", patience) == stale


def test_a_metric_that_no_evaluation_gives_is_refused_with_those_that_it_gives():
    with pytest.raises(ValueError, match="early_stop_metric must be one of accuracy, got 'f1'"):
        best(rows("accuracy", 0.5), "f1")
