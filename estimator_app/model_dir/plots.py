"""PNGs of a run: how it went, and which classes are taken for which.

rows of history.csv ──draw_curves()──▶ PNG        Metrics ──draw_confusion()──▶ PNG
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure  # without pyplot, which keeps every figure and looks for a screen
from matplotlib.text import Text

from estimator_app.model.evaluation import Metrics
from estimator_app.model_dir.history import Row, best
from tpu_input.command_line import printable

# More classes than this have names too small to read, and twice as many digits.
_MOST_NAMES = 50
_MOST_COUNTS = 20
_MOST_LETTERS = 40  # of a name: with one of 8,000, a picture would take gigabytes


def draw_curves(rows: Sequence[Row], metric: str) -> bytes:
    """Returns loss, accuracies and learning rate over the steps, the best evaluation marked.

    Args:
      rows: Of one split, at least one.
      metric: What best means.
    """
    figure = Figure(figsize=(12, 3.6))
    # A layout that matplotlib has to find takes a second drawing.
    figure.subplots_adjust(left=0.05, right=0.99, bottom=0.15, top=0.9, wspace=0.18)
    split, found = _short(rows[-1].split), best(rows, metric)
    accuracies = [name for name in rows[-1].values if "accuracy" in name]
    panels = {
        "loss": {"train_loss": "training", "loss": split},
        "accuracy": {name: f"{split}, {_short(name.replace('_', ' '))}" for name in accuracies},
        "learning rate": {"learning_rate": ""},
    }
    for axes, (title, lines) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for name, label in lines.items():
            points = [(row.step, row.values[name]) for row in rows if name in row.values]
            axes.plot(*zip(*points, strict=True) if points else ((), ()), ".-", label=label)
            if found and name == metric:
                axes.plot(
                    found.step, found.values[name], "o", mfc="none", ms=12, c="C3", label=f"best: step {found.step}"
                )
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
        if any(lines.values()):
            axes.legend(frameon=False)
    return _png(figure)


def draw_confusion(metrics: Metrics, classes: Sequence[str]) -> bytes:
    """Returns a matrix: a row a true class, coloured by the share of its examples found to be of each class."""
    counts = np.array(metrics.confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [_short(name) for name in classes] if len(classes) <= _MOST_NAMES else []
    side = 3.2 + 0.24 * min(len(classes), _MOST_NAMES)  # inches, as all here
    beside = 0.5 + 0.085 * max(map(len, names), default=4)  # for the names: a layout to be found is drawn twice
    width, height = beside + side + 1.1, beside + side + 0.6
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((beside / width, beside / height, side / width, side / height))
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    bar = figure.add_axes(
        ((beside + side + 0.2) / width, (beside + side / 10) / height, 0.15 / width, 0.8 * side / height)
    )
    figure.colorbar(image, bar, label="share of the true class")
    said = str(dataclasses.replace(metrics, split=_short(metrics.split)))
    axes.set(xlabel="found", ylabel="true", title=said.replace(", loss", "\nloss") + f", step {metrics.step}")
    if names:
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
    if len(classes) <= _MOST_COUNTS:
        for true, found in zip(*np.nonzero(counts), strict=True):
            colour = "white" if shares[true, found] > 0.5 else "black"
            axes.text(found, true, f"{counts[true, found]}", ha="center", va="center", color=colour, fontsize=8)
    return _png(figure)


def _short(name: str) -> str:
    """Returns a name as a picture has room for it, in one line."""
    name = printable(name[: _MOST_LETTERS + 1])
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"


def _png(figure: Figure) -> bytes:
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # names of classes and splits are anybody's: "US$ to A$" is no formula
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()
