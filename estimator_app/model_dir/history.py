"""history.csv: one row per evaluation, from which the trainer makes all its decisions; by_class/STEP.csv: its classes.

    evaluation ──with_row(), write_history()──▶ MODEL_DIR/history.csv ──best(), is_stale()──▶ export? stop early?

A row is written after everything that its evaluation triggers is done. A run that is killed and resumed reads the same
rows and therefore makes the same decisions.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from estimator_app.model.metrics import Metrics
from estimator_app.runtime import files
from tpu_input.dataset_format.csv_cells import csv_cell

HISTORY_NAME = "history.csv"
BY_CLASS_NAME = "by_class"
_FIXED = ("step", "split")
_COLUMN = re.compile("[A-Za-z0-9_]+")


@dataclasses.dataclass(frozen=True)
class Row:
    """Result of one evaluation, and statistics of the training steps before it.

    Attributes:
      step: Global step of the checkpoint.
      split: Name of the evaluated split.
      values: Numbers by column: the metrics; "train_loss", "learning_rate", "images_per_second", "input_wait" and
        "train_seconds" of the steps that this process took since the previous evaluation; "eval_seconds".
    """

    step: int
    split: str
    values: Mapping[str, float]


def read_history(model_dir: str) -> list[Row]:
    """Returns all rows, in order; an empty list when there is no history.csv.

    Raises:
      ValueError: The file is damaged.
    """
    path = f"{model_dir}/{HISTORY_NAME}"
    try:
        lines = csv.DictReader(io.StringIO(files.read_text(path)))
        return [_row(line) for line in lines]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise ValueError(f"{path!r} is damaged ({error}); repair the line, or remove the file") from error


def write_history(model_dir: str, rows: Sequence[Row]) -> None:
    """Writes all rows to history.csv, with a column for each value that occurs in any row."""
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_FIXED, *columns], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({"step": row.step, "split": row.split, **row.values})
    files.write(f"{model_dir}/{HISTORY_NAME}", text.getvalue())


def write_by_class(model_dir: str, metrics: Metrics, classes: Sequence[str]) -> None:
    """Writes by_class/STEP.csv atomically: a row per class with the figures of one evaluation.

    Columns: class; with one label an image, and up to CONFUSION_UP_TO classes, the number of examples and the
    precision; recall; f1; with several labels per image, the average precision. A figure that is not defined, as the
    recall of a class without examples, is empty.
    """
    figures: dict[str, Sequence[float | None]] = {"recall": metrics.recall}
    if metrics.confusion:
        counts = np.array(metrics.confusion)
        predicted, examples, right = counts.sum(axis=0), counts.sum(axis=1), np.diag(counts)
        figures = {"examples": examples.tolist(), "precision": _shares(right, predicted)} | figures
        figures["f1"] = _shares(2 * right, predicted + examples)
    elif metrics.average_precision:
        figures |= {"average_precision": metrics.average_precision, "f1": metrics.f1}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class", *figures])
    writer.writerows(zip(map(csv_cell, classes), *figures.values(), strict=True))
    files.make_folder(f"{model_dir}/{BY_CLASS_NAME}")
    files.write(f"{model_dir}/{BY_CLASS_NAME}/{metrics.step}.csv", text.getvalue())


def _shares(part: NDArray[np.int64], total: NDArray[np.int64]) -> list[float | None]:
    """Returns part / total for each class; None where total is 0."""
    return [int(one) / int(all_) if all_ else None for one, all_ in zip(part, total, strict=True)]


def with_row(rows: Sequence[Row], row: Row) -> list[Row]:
    """Returns the rows with `row` appended; it replaces a row of the same step and split.

    A split may be re-evaluated at the same step, and two rows of one step would count twice against the patience.
    """
    return [*(one for one in rows if (one.step, one.split) != (row.step, row.split)), row]


def best(rows: Sequence[Row], metric: str) -> Row | None:
    """Returns the row with the best value of a metric, the first one of equals; None when there are no rows.

    NaN counts as worse than any number.

    Raises:
      ValueError: A row does not have this metric.
    """
    for row in rows:
        if metric not in row.values:
            raise ValueError(f"early_stop_metric must be one of {', '.join(row.values)}, got {metric!r}")
    sign = -1 if metric.endswith("loss") else 1

    def rank(row: Row) -> tuple[bool, float]:
        value = row.values[metric]
        # Without the first element, max() would return a NaN that comes first: no comparison with NaN is true.
        return not math.isnan(value), sign * value

    return max(rows, key=rank, default=None)


def is_stale(rows: Sequence[Row], metric: str, patience: int) -> bool:
    """Returns whether none of the last `patience` evaluations beat the best one before them; False if patience is 0."""
    best_row = best(rows, metric) if patience else None
    return best_row is not None and len(rows) - 1 - list(rows).index(best_row) >= patience


def _row(line: Mapping[str, str]) -> Row:
    for name, text in line.items():
        if name is None or text is None or not _COLUMN.fullmatch(name):
            raise ValueError(f"column {name!r} has {text!r}: a line does not have the columns of the header")
    values = {name: float(text) for name, text in line.items() if name not in _FIXED and text}
    step = int(line["step"])
    if step < 0 or not line["split"]:
        raise ValueError(f"step {step}, split {line['split']!r} is not an evaluation")
    return Row(step, line["split"], values)
