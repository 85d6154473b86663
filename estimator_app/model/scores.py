"""Exact metrics of an evaluation: sums of integers and of float64 on the host, over every example once.

values of the examples of a batch, from step.make_eval_step() ──Scores.add()──▶ sums ──results()──▶ as metrics.results()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from estimator_app.model.metrics import CONFUSION_UP_TO
from estimator_app.model.tasks import TOP

Array = npt.NDArray[Any]


class Scores:
    """Sums over the examples of any number of batches; padding, of weight 0, adds nothing."""

    def __init__(self, num_classes: int) -> None:
        """Begins with no examples."""
        self._num_classes = num_classes
        self._loss, self._among_top = 0.0, 0
        self._examples, self._correct = np.zeros([2, num_classes], np.int64)
        self._confusion = np.zeros(num_classes**2 if num_classes <= CONFUSION_UP_TO else 0, np.int64)
        self._logits: list[Array] = []
        self._labels: list[Array] = []

    def add(self, values: Mapping[str, Array]) -> None:
        """Adds the examples of a batch.

        Args:
          values: Arrays by name, from the evaluation's step.
        """
        is_example = values["weight"] > 0
        examples = {name: np.asarray(value)[is_example] for name, value in values.items()}
        self._loss += float(np.sum(examples["loss"], dtype=np.float64))
        if "logits" in examples:
            self._logits.append(examples["logits"])
            self._labels.append(examples["label"] > 0.5)
            return
        labels, predicted, count = examples["label"], examples["predicted"], self._num_classes
        correct = predicted == labels
        self._examples += np.bincount(labels, minlength=count)
        self._correct += np.bincount(labels[correct], minlength=count)
        # A class that is tied with others for the fifth place does not count as found, unless it was chosen.
        self._among_top += int(np.sum(correct | (examples["rank"] <= TOP)))
        if len(self._confusion):
            self._confusion += np.bincount(labels.astype(np.int64) * count + predicted, minlength=count**2)

    @np.errstate(invalid="ignore")  # of logits that are NaN or infinite, whose loss is NaN
    def add_logits(self, logits: Array, labels: Array) -> None:
        """Adds examples by their logits, whose cross-entropy is computed in float64.

        Args:
          logits: [N, K] float32.
          labels: [N] integers; with several labels per image, [N, K] of zeros and ones.
        """
        exact = logits.astype(np.float64)
        values = {"label": labels, "weight": np.ones(len(logits), np.float32)}
        if labels.ndim == 2:
            loss = (np.logaddexp(0, exact) - labels * exact).mean(axis=1)
            self.add(values | {"loss": loss, "logits": logits})
            return
        label_logits = np.take_along_axis(exact, labels[:, None], axis=1)
        loss = np.logaddexp.reduce(exact, axis=1) - label_logits[:, 0]
        rank = np.sum(~(exact < label_logits), axis=1)
        self.add(values | {"loss": loss, "predicted": logits.argmax(axis=1), "rank": rank})

    def results(self) -> dict[str, Any]:
        """Returns the metrics of all examples, by the names and with the meanings of metrics.results()."""
        with np.errstate(divide="ignore", invalid="ignore"):  # of classes without examples
            return self._set_metrics() if self._logits else self._label_metrics()

    def _label_metrics(self) -> dict[str, Any]:
        total, present = int(self._examples.sum()), self._examples > 0
        recall = self._correct / self._examples
        metrics: dict[str, Any] = {
            "num_examples": total,
            "accuracy": np.float64(self._correct.sum()) / total,
            "cross_entropy": np.float64(self._loss) / total,
            "recall": recall,
            "mean_recall": recall[present].mean() if present.any() else np.nan,
        }
        if self._num_classes > TOP:
            metrics[f"top_{TOP}_accuracy"] = np.float64(self._among_top) / total
        if len(self._confusion):
            metrics["confusion_matrix"] = self._confusion.reshape(self._num_classes, self._num_classes)
        return metrics

    def _set_metrics(self) -> dict[str, Any]:
        logits, targets = np.concatenate(self._logits), np.concatenate(self._labels)
        is_predicted, total = logits >= 0, len(logits)  # a probability of at least 0.5
        positive, predicted = targets.sum(axis=0), is_predicted.sum(axis=0)
        both = (targets & is_predicted).sum(axis=0)
        present = positive > 0
        precision = average_precision(logits, targets)
        f1 = np.where(present, 2 * both / (positive + predicted), np.nan)
        wrong = int((positive + predicted - 2 * both).sum())
        return {
            "num_examples": total,
            "accuracy": 1 - wrong / (total * targets.shape[1]),
            "cross_entropy": np.float64(self._loss) / total,
            "recall": both / positive,
            "mean_recall": (both / positive)[present].mean(),
            "average_precision": precision,
            "mean_average_precision": precision[present].mean(),
            "f1": f1,
            "mean_f1": f1[present].mean(),
        }


def average_precision(logits: Array, targets: Array) -> npt.NDArray[np.float64]:
    """Returns the average precision of each class, [K]; NaN for a class without examples.

    As metrics.average_precision(): examples with the same score count together.

    Args:
      logits: [N, K] float32.
      targets: [N, K] bool: whether an example has the class.
    """
    precisions = []
    for scores, hits in zip(-logits.T, targets.T, strict=True):
        order = np.argsort(scores, kind="stable")
        scores, hits = scores[order], hits[order]
        last = np.searchsorted(scores, scores, side="right") - 1  # of the examples with the same score
        precision = np.cumsum(hits)[last] / (last + 1)
        precisions.append(np.sum(precision[hits]) / np.sum(hits))
    return np.array(precisions, np.float64)
