"""Metrics: sums over the examples of a batch, which add up over batches and replicas, and values derived from them.

    logits, label, loss, weight of a batch ──batch_sums()──▶ sums, added up over batches ──results()──▶ by name
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
# Largest number of classes for which the confusion matrix is computed. Its size is quadratic: 4 MB for 1,000 classes,
# which TPUEstimator also writes into its event files.
CONFUSION_UP_TO = 1000


def batch_sums(logits: tf.Tensor, labels: tf.Tensor, losses: tf.Tensor, weight: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the sums of a batch, by name.

    Args:
      logits: [N, K] float32.
      labels: [N] int32.
      losses: [N] float32.
      weight: [N] float32: 1 for an example, 0 for padding.
    """
    num_classes = logits.shape[1]
    found = tf.argmax(logits, axis=1, output_type=labels.dtype)
    # Counts are int32: in float32, adding 1 has no effect above 2^24.
    ones = tf.cast(weight, tf.int32)
    correct = ones * tf.cast(tf.equal(found, labels), tf.int32)
    sums = {
        "loss": tf.reduce_sum(losses * weight),
        "examples": tf.math.unsorted_segment_sum(ones, labels, num_classes),
        "correct": tf.math.unsorted_segment_sum(correct, labels, num_classes),
    }
    if num_classes > TOP:
        of_label = tf.gather(logits, labels[:, None], batch_dims=1)
        # A class that is tied with others for the fifth place does not count as found, unless argmax has chosen it;
        # tf.math.in_top_k would count all tied classes. logical_not(<) instead of >= counts NaN logits as larger.
        # at_least counts the label itself too.
        at_least = tf.reduce_sum(tf.cast(tf.logical_not(logits < of_label), tf.int32), axis=1)
        sums["among_top"] = tf.reduce_sum(tf.maximum(correct, ones * tf.cast(at_least <= TOP, tf.int32)))
    if num_classes <= CONFUSION_UP_TO:
        sums["confusion"] = tf.math.confusion_matrix(labels, found, num_classes, ones, tf.int32)
    return sums


def results(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of all examples.

    Args:
      sums: Sums over all batches; tensors or variables.

    Returns:
      "num_examples", "accuracy", "cross_entropy" in nats; "top_5_accuracy" for more than 5 classes; "recall" [K], the
      share of each class's examples that were classified correctly, NaN for a class without examples; "mean_recall"
      over the classes that have examples; and for up to CONFUSION_UP_TO classes "confusion_matrix" [K, K], the number
      of examples by true class (row) and predicted class (column).
    """
    # This runs on the host, where float64 is cheap; it represents any count exactly.
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
    """Returns results() over all batches as Estimator's streaming metrics: by name, (value, op that adds this batch).

    Runs on the host, on the examples of all replicas.
    """
    sums = batch_sums(logits, labels, losses, weight)
    totals = {name: _local_variable(name, value) for name, value in sums.items()}
    add = tf.group(*(total.assign_add(sums[name]) for name, total in totals.items()))
    return {name: (value, add) for name, value in results(totals).items()}


def _local_variable(name: str, like: tf.Tensor) -> tf.Variable:
    """Returns a local variable of zeros, which is not saved in checkpoints."""
    collections = [v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES]
    return v1.Variable(
        lambda: tf.zeros(like.shape, like.dtype),  # a function, as on a TPU the metrics are created inside a while loop
        trainable=False,
        collections=collections,
        use_resource=True,
        name=name,
    )


# Names that do not go into Metrics.others: Estimator's own unweighted loss, and those that have fields of their own.
_NOT_METRICS = frozenset({"loss", "global_step", "num_examples", "accuracy", "cross_entropy"})


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The result of an evaluation.

    Attributes:
      step: Global step of the checkpoint.
      split: Split that was evaluated.
      num_examples: Sum of the weights of all evaluated examples, which counts every example once.
      accuracy: Share of the examples whose most likely class is their label.
      loss: Mean cross-entropy, in nats.
      others: Further scalar metrics, by name.
      recall: For each class, in label order, the share of its examples that were classified correctly; None for a class
        without examples. Empty if it was not computed.
      confusion: Number of examples by (true, predicted) class, [C, C]; empty if it was not computed, as with more than
        CONFUSION_UP_TO classes.
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
        """Returns the Metrics of a result of Estimator.evaluate(), or of results() with "global_step"."""
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
        """Returns the metrics from the fields that to_fields() gives.

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
            raise TypeError("a metric is not a number")
        if not all(type(count) is int and count >= 0 for count in counts):
            raise TypeError("a count is not a non-negative integer")
        if any(len(row) != len(found.confusion) for row in found.confusion):
            raise ValueError("the confusion matrix is not square")
        return found

    def to_fields(self, classes: tuple[str, ...]) -> dict[str, Any]:
        """Returns the fields of metrics.json, with the recall keyed by class name."""
        return dataclasses.asdict(self) | {"recall": dict(zip(classes, self.recall, strict=False))}

    def scalars(self) -> dict[str, float]:
        """Returns the metrics that can be chosen as early_stop_metric, by name."""
        return {"accuracy": self.accuracy, "loss": self.loss, **self.others}

    def __str__(self) -> str:
        return f"accuracy {100 * self.accuracy:.1f} % on {self.num_examples} {self.split} images, loss {self.loss:.3f}"


def watchable(num_classes: int) -> tuple[str, ...]:
    """Returns the names in Metrics.scalars(), without needing an evaluation."""
    return "accuracy", "loss", "mean_recall", *([f"top_{TOP}_accuracy"] if num_classes > TOP else [])
