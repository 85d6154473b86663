"""Metrics: the result of an evaluation, from whichever trainer; without TensorFlow.

{"accuracy": …, "cross_entropy": …, "recall": [C], "confusion_matrix": [C, C], …} ──Metrics.of()──▶ Metrics ──▶ JSON

The values come from tensorflow_metrics.results(), or from sums of NumPy under JAX.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

# Largest number of classes for which the confusion matrix is computed. Its size is quadratic: 4 MB for 1,000 classes,
# which TPUEstimator also writes into its event files.
CONFUSION_UP_TO = 1000
# Names that do not go into Metrics.others: Estimator's own unweighted loss, and those that have fields of their own.
_NOT_METRICS = frozenset({"loss", "global_step", "num_examples", "accuracy", "cross_entropy"})


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The result of an evaluation.

    Attributes:
      step: Global step of the checkpoint.
      split: Split that was evaluated.
      num_examples: Sum of the weights of all evaluated examples, which counts every example once.
      accuracy: Share of the examples whose most likely class is their label; with several labels per image, the share
        of correct decisions, one for each image and class, at a probability of 0.5.
      loss: Mean cross-entropy, in nats.
      others: Further scalar metrics, by name.
      recall: For each class, in label order, the share of its examples that were classified correctly; None for a class
        without examples. Empty if it was not computed.
      confusion: Number of examples by (true, predicted) class, [C, C]; empty if it was not computed, as with more than
        CONFUSION_UP_TO classes, or several labels per image.
      average_precision: For each class with several labels per image, its average precision; None without examples.
      f1: For each class with several labels per image, its F1 at a probability of 0.5; None without examples.
    """

    step: int
    split: str
    num_examples: int
    accuracy: float
    loss: float
    others: Mapping[str, float] = dataclasses.field(default_factory=dict)
    recall: tuple[float | None, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    average_precision: tuple[float | None, ...] = ()
    f1: tuple[float | None, ...] = ()

    @classmethod
    def of(cls, found: Mapping[str, Any], split: str) -> Metrics:
        """Returns the Metrics of a result of Estimator.evaluate(), or of results() with "global_step"."""
        scalars = {name: float(value) for name, value in found.items() if not np.ndim(value)}
        counts = np.rint(found.get("confusion_matrix", np.zeros([0, 0]))).astype(int).tolist()
        return cls(
            step=int(found["global_step"]),
            split=split,
            num_examples=round(scalars["num_examples"]),
            accuracy=scalars["accuracy"],
            loss=scalars["cross_entropy"],
            others={name: value for name, value in scalars.items() if name not in _NOT_METRICS},
            confusion=tuple(map(tuple, counts)),
            **{
                name: tuple(None if np.isnan(share) else float(share) for share in found.get(name, ()))
                for name in _BY_CLASS
            },
        )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Metrics:
        """Returns the metrics from the fields that to_fields() gives.

        Raises:
          TypeError, KeyError, ValueError: A field is missing, or of another type or range.
        """
        fields = {name: {} for name in _BY_CLASS} | dict(fields)
        for name, kind in {"others": dict, "confusion": list, **dict.fromkeys(_BY_CLASS, dict)}.items():
            if not isinstance(fields[name], kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {fields[name]!r}")
        arguments = {field.name: fields[field.name] for field in dataclasses.fields(cls) if field.name in fields}
        arrays = {name: tuple(fields[name].values()) for name in _BY_CLASS}
        arrays["confusion"] = tuple(map(tuple, fields["confusion"]))
        metrics = cls(**arguments | arrays)
        shares = (share for name in _BY_CLASS for share in getattr(metrics, name) if share is not None)
        numbers = (metrics.accuracy, metrics.loss, *metrics.others.values(), *shares)
        counts = (metrics.step, metrics.num_examples, *itertools.chain.from_iterable(metrics.confusion))
        if not isinstance(metrics.split, str) or not all(type(number) in (int, float) for number in numbers):
            raise TypeError("a metric is not a number")
        if not all(type(count) is int and count >= 0 for count in counts):
            raise TypeError("a count is not a non-negative integer")
        if any(len(row) != len(metrics.confusion) for row in metrics.confusion):
            raise ValueError("the confusion matrix is not square")
        return metrics

    def to_fields(self, classes: tuple[str, ...]) -> dict[str, Any]:
        """Returns the fields of metrics.json, with the figures of classes keyed by class name."""
        by_class = {name: dict(zip(classes, getattr(self, name), strict=False)) for name in _BY_CLASS}
        omitted = {"average_precision", "f1"} if not self.average_precision else set[str]()
        fields = dataclasses.asdict(self) | by_class
        return {name: value for name, value in fields.items() if name not in omitted}

    def scalars(self) -> dict[str, float]:
        """Returns the metrics that can be chosen as early_stop_metric, by name."""
        return {"accuracy": self.accuracy, "loss": self.loss, **self.others}

    def __str__(self) -> str:
        if self.average_precision:
            mean = 100 * self.others["mean_average_precision"]
            on = f"{self.num_examples} {self.split} images"
            return f"mean average precision {mean:.1f} % on {on}, loss {self.loss:.3f}"
        return f"accuracy {100 * self.accuracy:.1f} % on {self.num_examples} {self.split} images, loss {self.loss:.3f}"


_BY_CLASS = ("recall", "average_precision", "f1")
