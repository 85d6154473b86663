"""Metrics: sums over the examples of a batch, which add up over batches and replicas, and the figures that follow.

    logits, label, loss, weight of a batch ──batch_sums()──▶ sums ──+ those of other batches──▶ ──results()──▶ by name
    {"accuracy": …, "cross_entropy": …, "recall": [C], "confusion_matrix": [C, C], …} ──Metrics.of()──▶ Metrics

Padding has weight 0 and adds nothing, so the metrics are exact over any batches, replicas and hosts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

TOP = 5
# Its cells are the square of it: 4 MB for 1,000 classes, which TPUEstimator also writes into its events.
CONFUSION_UP_TO = 1000


def batch_sums(logits: tf.Tensor, labels: tf.Tensor, losses: tf.Tensor, weight: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns a batch's sums, by name.

    Args:
      logits: [N, K] float32.
      labels: [N] int32.
      losses: [N] float32.
      weight: [N] float32: 1 for an example, 0 for padding.
    """
    num_classes = logits.shape[1]
    found = tf.argmax(logits, axis=1, output_type=labels.dtype)
    # Counts are integers: above 2^24, one more is lost on a float32.
    ones = tf.cast(weight, tf.int32)
    correct = ones * tf.cast(tf.equal(found, labels), tf.int32)
    sums = {
        "loss": tf.reduce_sum(losses * weight),
        "examples": tf.math.unsorted_segment_sum(ones, labels, num_classes),
        "correct": tf.math.unsorted_segment_sum(correct, labels, num_classes),
    }
    if num_classes > TOP:
        of_label = tf.gather(logits, labels[:, None], batch_dims=1)
        # A class that is tied with others for the fifth place is not found, unless it is the one that `found` names;
        # tf.math.in_top_k would count all that are tied. Written so that NaN counts as above.
        at_least = tf.reduce_sum(tf.cast(tf.logical_not(logits < of_label), tf.int32), axis=1)  # the label's included
        sums["among_top"] = tf.reduce_sum(tf.maximum(correct, ones * tf.cast(at_least <= TOP, tf.int32)))
    if num_classes <= CONFUSION_UP_TO:
        sums["confusion"] = tf.math.confusion_matrix(labels, found, num_classes, ones, tf.int32)
    return sums


def results(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of all examples.

    Args:
      sums: Those of all batches, added up; tensors or variables.

    Returns:
      "num_examples", "accuracy", "cross_entropy" in nats; "top_5_accuracy" of more than 5 classes; "recall" [K], the
      share of each class's examples that were found, NaN of none; "mean_recall" over the classes that have examples;
      and of up to CONFUSION_UP_TO classes "confusion_matrix" [K, K], how many of each class (row) were taken for each.
    """
    # On the host, where float64 costs nothing and holds any count.
    floats = {name: tf.cast(sums[name], tf.float64) for name in sums if name != "confusion"}
    examples, correct = floats["examples"], floats["correct"]
    num_examples = tf.reduce_sum(examples)
    classes = tf.reduce_sum(tf.cast(examples > 0, tf.float64))
    metrics = {
        "num_examples": num_examples,
        "accuracy": tf.reduce_sum(correct) / num_examples,
        "cross_entropy": floats["loss"] / num_examples,
        "recall": correct / examples,
        "mean_recall": tf.reduce_sum(tf.math.divide_no_nan(correct, examples)) / classes,
    }
    if "among_top" in floats:
        metrics[f"top_{TOP}_accuracy"] = floats["among_top"] / num_examples
    if "confusion" in sums:
        metrics["confusion_matrix"] = tf.convert_to_tensor(sums["confusion"])
    return metrics


def streaming(logits: tf.Tensor, labels: tf.Tensor, losses: tf.Tensor, weight: tf.Tensor) -> dict[str, Any]:
    """Returns results() of all batches as Estimator wants them: by name, (value, op that adds this batch).

    Runs on the host, with all replicas' examples.
    """
    sums = batch_sums(logits, labels, losses, weight)
    totals = {name: _local_variable(name, value) for name, value in sums.items()}
    add = tf.group(*(total.assign_add(sums[name]) for name, total in totals.items()))
    return {name: (value, add) for name, value in results(totals).items()}


def _local_variable(name: str, like: tf.Tensor) -> tf.Variable:
    """Returns a variable of zeros that no checkpoint holds."""
    collections = [v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES]
    return v1.Variable(
        lambda: tf.zeros(like.shape, like.dtype),  # a TPU's metrics are made inside a loop
        trainable=False,
        collections=collections,
        use_resource=True,
        name=name,
    )


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
