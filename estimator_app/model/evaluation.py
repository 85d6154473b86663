"""What an evaluation found: numbers from Estimator.evaluate(), by name, and what a person reads of them.

{"accuracy": …, "cross_entropy": …, "recall": [C], "confusion_matrix": [C, C], …} ──Metrics.of()──▶ Metrics
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from estimator_app.model.metrics import TOP

# What Estimator adds by itself: its loss knows no weights, and the step has a field of its own.
_NOT_METRICS = frozenset({"loss", "global_step", "num_examples", "accuracy", "cross_entropy"})


@dataclasses.dataclass(frozen=True)
class Metrics:
    """An evaluation.

    Attributes:
      step: Global step of the checkpoint.
      split: What was evaluated.
      num_examples: Sum of the weights that the metrics saw: every example once.
      accuracy: Share of the examples whose likeliest class is theirs.
      loss: Mean cross-entropy, in nats.
      others: Further numbers of the model, by name.
      recall: For each class, in label order, the share of its examples that were found to be of it; None where it has
        none. Empty when the model counts none.
      confusion: Examples by (true, found) class, [C, C]; empty when the model counts none, as with many classes.
    """

    step: int
    split: str
    num_examples: int
    accuracy: float
    loss: float
    others: Mapping[str, float] = dataclasses.field(default_factory=dict)
    recall: tuple[float | None, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, found: Mapping[str, Any], split: str) -> Metrics:
        """Returns the metrics among what Estimator.evaluate() returned."""
        others = {
            name: float(value) for name, value in found.items() if name not in _NOT_METRICS and not np.ndim(value)
        }
        counts = np.rint(found.get("confusion_matrix", np.zeros([0, 0]))).astype(int).tolist()
        return cls(
            step=int(found["global_step"]),
            split=split,
            num_examples=round(float(found["num_examples"])),
            accuracy=float(found["accuracy"]),
            loss=float(found["cross_entropy"]),
            others=others,
            recall=tuple(None if np.isnan(share) else float(share) for share in found.get("recall", ())),
            confusion=tuple(map(tuple, counts)),
        )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Metrics:
        """Returns the metrics that were written as to_fields() says.

        Raises:
          TypeError, KeyError, ValueError: A field is missing, or of another type or range.
        """
        for name, kind in {"others": dict, "recall": dict, "confusion": list}.items():
            if not isinstance(fields[name], kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {fields[name]!r}")
        known = {field.name: fields[field.name] for field in dataclasses.fields(cls) if field.name in fields}
        arrays = {"recall": tuple(fields["recall"].values()), "confusion": tuple(map(tuple, fields["confusion"]))}
        found = cls(**known | arrays)
        numbers = (
            found.accuracy,
            found.loss,
            *found.others.values(),
            *(share for share in found.recall if share is not None),
        )
        counts = (found.step, found.num_examples, *(count for row in found.confusion for count in row))
        if not isinstance(found.split, str) or not all(type(number) in (int, float) for number in numbers):
            raise TypeError("a metric is no number")
        if not all(type(count) is int and count >= 0 for count in counts):
            raise TypeError("a count is no number of examples")
        if any(len(row) != len(found.confusion) for row in found.confusion):
            raise ValueError("the confusion is not square")
        return found

    def to_fields(self, classes: tuple[str, ...]) -> dict[str, Any]:
        """Returns what metrics.json says: the fields, the recall by the class's name."""
        return dataclasses.asdict(self) | {"recall": dict(zip(classes, self.recall, strict=False))}

    def scalars(self) -> dict[str, float]:
        """Returns the numbers that one may be asked to watch, by name."""
        return {"accuracy": self.accuracy, "loss": self.loss, **self.others}

    def __str__(self) -> str:
        return f"accuracy {100 * self.accuracy:.1f} % on {self.num_examples} {self.split} images, loss {self.loss:.3f}"


def watchable(num_classes: int) -> tuple[str, ...]:
    """Returns the names in Metrics.scalars() of an evaluation, whether or not there was one yet."""
    return "accuracy", "loss", "mean_recall", *([f"top_{TOP}_accuracy"] if num_classes > TOP else [])
