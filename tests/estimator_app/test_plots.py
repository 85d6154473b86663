"""Pictures of a run: what their axes say and hold, whatever its classes and splits are called."""

from __future__ import annotations

import types
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import recall_score

from estimator_app.model.metrics import Metrics
from estimator_app.model_dir import plots
from estimator_app.model_dir.history import Row
from estimator_app.model_dir.plots import draw_confusion, draw_curves, read_training_curves, write_pictures

NAMES = ("US$ to A$", "$\\frac{$", "$", "100 % _^")


def test_names_are_drawn_as_they_are_and_are_no_formulas():
    metrics = Metrics(1, "$x_{$", 4, 0.5, 1.0, confusion=((1, 0, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0)))
    rows = [Row(step, "$x_{$", {"accuracy": 0.5, "loss": 1.0}) for step in (1, 2)]
    for png in (draw_confusion(metrics, NAMES), draw_curves(rows, "accuracy")):
        assert png.startswith(b"\x89PNG")


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """The figures that are drawn, instead of their files."""
    drawings: list[Figure] = []

    def keep(figure: Figure) -> bytes:
        drawings.append(figure)
        return b""

    monkeypatch.setattr(plots, "_png", keep)
    return drawings


def by_title(figure: Figure) -> dict[str, Axes]:
    return {axes.get_title(): axes for axes in figure.axes}


def lines(axes: Axes) -> dict[Any, list[tuple[float, float]]]:
    """Returns the points of each line by its label."""
    return {
        line.get_label(): [tuple(point) for point in np.array(line.get_xydata()).tolist()] for line in axes.get_lines()
    }


@pytest.mark.parametrize("accuracies", [(0.2, 1.0), (1.0, 1.0), (0.999, 0.9995), (0.0, 0.01)])
def test_accuracies_are_percentages_of_at_most_100(accuracies, figures):
    rows = [Row(step, "validation", {"accuracy": value, "loss": 1.0}) for step, value in enumerate(accuracies)]
    draw_curves(rows, "accuracy")
    axes = by_title(figures[0])["accuracy, %"]
    assert [y for _, y in lines(axes)["validation"]] == pytest.approx([100 * value for value in accuracies])
    low, high = axes.get_ylim()
    assert 0 <= low < high <= 100
    assert low <= 100 * min(accuracies) <= 100 * max(accuracies) <= high
    best = max(range(2), key=lambda step: accuracies[step])
    assert lines(axes)[f"best: step {best}"] == [pytest.approx((best, 100 * accuracies[best]))]


@pytest.mark.parametrize("num_classes", [10, 11])
def test_the_five_most_likely_have_an_axis_of_their_own_above_ten_classes(num_classes, figures, tmp_path, monkeypatch):
    monkeypatch.setattr(tf.summary, "image", lambda *args: None)
    monkeypatch.setattr(tf.image, "decode_png", lambda png: tf.zeros([]))
    config = types.SimpleNamespace(classes=tuple(map(str, range(num_classes))), early_stop_metric="accuracy")
    values = {"accuracy": 0.7, "top_5_accuracy": 0.95, "loss": 1.0}
    metrics = Metrics(1, "validation", 4, 0.7, 1.0)
    write_pictures(str(tmp_path), cast(Any, config), [Row(1, "validation", values)], metrics)
    axes = by_title(figures[0])
    assert [y for _, y in lines(axes["accuracy, %"])["validation"]] == pytest.approx([70])
    expected = ["loss", "accuracy, %", *(["top-5 accuracy, %"] if num_classes > 10 else []), "learning rate"]
    assert list(axes) == expected


def test_the_loss_of_training_is_that_of_tensorboard(figures, tmp_path):
    """As tf.summary writes it, also into the file of a process that was killed while it wrote."""
    for first, last in ((10, 600), (500, 1500)):
        writer = tf.summary.create_file_writer(str(tmp_path), filename_suffix=f".{first}")
        with writer.as_default():
            for step in range(first, last, 10):
                tf.summary.scalar("train/loss", float(first + step), step)
                tf.summary.scalar("examples/sec", 1.0, step)
        writer.close()
    *_, damaged = sorted(tmp_path.glob("events.*"))
    damaged.write_bytes(damaged.read_bytes()[:-3])
    (tmp_path / "events.out.tfevents.0.stranger").write_bytes(b"\xff" * 100)
    huge = tf.compat.v1.Event(step=5)
    huge.summary.value.add(tag="train/loss").tensor.CopyFrom(tf.make_tensor_proto(1.0, shape=(1,)))
    huge.summary.value[0].tensor.tensor_shape.dim[0].size = 1 << 50
    with tf.io.TFRecordWriter(str(tmp_path / "events.out.tfevents.1.stranger")) as writer:
        writer.write(huge.SerializeToString())
        writer.write(b"\xff" * 100)
    curves = read_training_curves(str(tmp_path))
    steps = [step for step, _ in curves["train/loss"]]
    assert list(curves) == ["train/loss"]
    assert steps in (
        list(range(10, 1500, 10)),
        list(range(10, 1490, 10)),
    )  # the last record was cut off, or its neighbour
    expected = {step: 10.0 + step for step in range(10, 600, 10)} | {
        step: 500.0 + step for step in range(500, 1500, 10)
    }
    assert dict(curves["train/loss"]) == {step: expected[step] for step in steps}
    rows = [Row(1500, "validation", {"accuracy": 0.5, "loss": 1.0, "train_loss": 7.0, "learning_rate": 0.1})]
    draw_curves(rows, "accuracy", curves)
    assert lines(by_title(figures[0])["loss"])["training"] == curves["train/loss"]
    draw_curves(rows, "accuracy")
    assert lines(by_title(figures[1])["loss"])["training"] == [(1500, 7.0)]


def test_a_million_points_of_a_curve_are_drawn_as_the_means_of_neighbours(figures):
    values = np.random.default_rng(0).random(100_000)
    rows = [Row(1, "validation", {"accuracy": 0.5, "loss": 1.0})]
    draw_curves(rows, "accuracy", {"train/loss": list(enumerate(values.tolist()))})
    points = lines(by_title(figures[0])["loss"])["training"]
    assert len(points) <= 500
    assert np.mean([value for _, value in points]) == pytest.approx(values.mean())
    assert points[-1][0] == 99_999


def test_one_wrong_example_of_a_thousand_is_seen_and_recall_is_beside(figures):
    counts = np.diag([1300, 40, 0, 7])
    counts[0, 2], counts[3, 1] = 1, 7
    metrics = Metrics(9, "validation", int(counts.sum()), 0.9, 0.1, confusion=tuple(map(tuple, counts.tolist())))
    draw_confusion(metrics, ("a", "b", "c", "d"))
    matrix, recall = figures[0].axes[:2]
    assert (matrix.get_xlabel(), matrix.get_ylabel(), recall.get_title()) == (
        "predicted class",
        "true class",
        "recall, %",
    )
    colors = {}
    for image in matrix.images:
        array = image.get_array()
        for true, predicted in zip(*np.nonzero(~np.ma.getmaskarray(array)), strict=True):
            colors[true, predicted] = np.array(image.to_rgba(array)[true, predicted][:3])
    assert set(colors) == set(zip(*np.nonzero(counts), strict=True))
    assert all(np.abs(1 - color).max() > 0.15 for color in colors.values())  # of white
    red, _, blue = colors[0, 2]
    assert red > blue  # orange where it is wrong
    assert colors[0, 0][2] > colors[0, 0][0]  # blue where it is right
    true, predicted = np.nonzero(counts)
    repeats = counts[true, predicted]
    expected = recall_score(
        true.repeat(repeats), predicted.repeat(repeats), labels=range(4), average=None, zero_division=0
    )
    texts = [text.get_text() for text in recall.texts]
    assert texts == [f"{100 * value:.1f}" if label != 2 else "–" for label, value in enumerate(expected)]
