"""Metrics: sums over the examples of a batch, which add up over batches and replicas, and values derived from them.

    logits, label, loss, weight of a batch ──batch_sums()──▶ sums, added up over batches ──results()──▶ by name
    {"accuracy": …, "cross_entropy": …, "recall": [C], "confusion_matrix": [C, C], …} ──Metrics.of()──▶ Metrics

Padding has weight 0 and adds nothing, so the metrics are exact over any batches, replicas and hosts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from estimator_app.model.tasks import TOP

v1 = tf.compat.v1

# Largest number of classes for which the confusion matrix is computed. Its size is quadratic: 4 MB for 1,000 classes,
# which TPUEstimator also writes into its event files.
CONFUSION_UP_TO = 1000


def batch_sums(logits: tf.Tensor, labels: tf.Tensor, losses: tf.Tensor, weight: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the sums of a batch, by name.

    Args:
      logits: [N, K] float32.
      labels: [N] int32; with several labels per image, [N, K] float32 of zeros and ones.
      losses: [N] float32.
      weight: [N] float32: 1 for an example, 0 for padding.
    """
    if labels.shape.rank == 2:
        return _sums_of_sets(logits, labels, losses, weight)
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
        # tf.math.confusion_matrix computes in int64, which a TPU emulates.
        cells = tf.math.unsorted_segment_sum(ones, labels * num_classes + found, num_classes**2)
        sums["confusion"] = tf.reshape(cells, [num_classes, num_classes])
    return sums


# Average precision depends on the order of all examples, so that their scores are kept instead of a sum:
# logits [N, K] float32, labels [N, K] bool, whether each is an example [N] bool.
KEPT = ("scores", "targets", "are_examples")


def _sums_of_sets(logits: tf.Tensor, labels: tf.Tensor, losses: tf.Tensor, weight: tf.Tensor) -> dict[str, tf.Tensor]:
    ones = tf.cast(weight, tf.int32)[:, None]
    positive, found = labels > 0.5, logits >= 0  # a probability of at least 0.5

    def count(chosen: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(ones * tf.cast(chosen, tf.int32), axis=0)

    return {
        "loss": tf.reduce_sum(losses * weight),
        "num_examples": tf.reduce_sum(ones),
        "positive": count(positive),
        "found": count(found),
        "both": count(tf.logical_and(positive, found)),
        "scores": logits,
        "targets": positive,
        "are_examples": weight > 0,
    }


def added(totals: Mapping[str, tf.Tensor], sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the sums of further examples added to earlier sums, which are {} at first."""
    if not totals:
        return dict(sums)
    return {
        name: tf.concat([totals[name], value], 0) if name in KEPT else totals[name] + value
        for name, value in sums.items()
    }


def average_precision(scores: tf.Tensor, targets: tf.Tensor, are_examples: tf.Tensor) -> tf.Tensor:
    """Returns the average precision of each class, [K] float64; NaN for a class without examples.

    It is the mean, over the examples of the class, of the share of its examples among all with at least their score:
    the sum of (recall - the one before) * precision over all scores, without interpolation, as scikit-learn has it.

    Args:
      scores: [N, K] float32.
      targets: [N, K] bool: whether an example has the class.
      are_examples: [N] bool: False for padding, which does not count.
    """
    ascending = tf.transpose(tf.boolean_mask(-scores, are_examples))  # [K, N], the most likely examples first
    of_class = tf.transpose(tf.boolean_mask(targets, are_examples))
    order = tf.argsort(ascending, axis=1)
    ascending = tf.gather(ascending, order, batch_dims=1)
    of_class = tf.cast(tf.gather(of_class, order, batch_dims=1), tf.float64)
    last = tf.searchsorted(ascending, ascending, side="right") - 1  # of the examples with the same score
    true = tf.gather(tf.cumsum(of_class, axis=1), last, batch_dims=1)
    precision = true / tf.cast(last + 1, tf.float64)
    return tf.reduce_sum(precision * of_class, axis=1) / tf.reduce_sum(of_class, axis=1)


def results(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of all examples.

    Args:
      sums: Sums over all batches; tensors or variables.

    Returns:
      "num_examples", "accuracy", "cross_entropy" in nats; "top_5_accuracy" for more than 5 classes; "recall" [K], the
      share of each class's examples that were classified correctly, NaN for a class without examples; "mean_recall"
      over the classes that have examples; and for up to CONFUSION_UP_TO classes "confusion_matrix" [K, K], the number
      of examples by true class (row) and predicted class (column).

      With several labels per image, "accuracy" is the share of the decisions that are right, one for each image and
      class, at a probability of 0.5, and there are "average_precision" [K], "mean_average_precision", "f1" [K] and
      "mean_f1", the means over the classes that have examples.
    """
    if "scores" in sums:
        return _results_of_sets(sums)
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


def _results_of_sets(sums: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: tf.cast(sums[name], tf.float64) for name in sums if name not in KEPT}
    positive, found, both, num_examples = (counts[name] for name in ("positive", "found", "both", "num_examples"))
    precision = average_precision(*(tf.convert_to_tensor(sums[name]) for name in KEPT))
    f1 = 2 * both / (positive + found)
    present = positive > 0

    def mean(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.boolean_mask(values, present))

    wrong = tf.reduce_sum(positive + found - 2 * both)
    return {
        "num_examples": num_examples,
        "accuracy": 1 - wrong / (num_examples * positive.shape[0]),
        "cross_entropy": counts["loss"] / num_examples,
        "recall": both / positive,
        "mean_recall": mean(both / positive),
        "average_precision": precision,
        "mean_average_precision": mean(precision),
        "f1": tf.where(present, f1, math.nan),
        "mean_f1": mean(f1),
    }


def streaming(logits: tf.Tensor, labels: tf.Tensor, losses: tf.Tensor, weight: tf.Tensor) -> dict[str, Any]:
    """Returns results() over all batches as Estimator's streaming metrics: by name, (value, op that adds this batch).

    Runs on the host, on the examples of all replicas.
    """
    sums = batch_sums(logits, labels, losses, weight)
    totals = {name: _local_variable(name, value) for name, value in sums.items()}
    add = tf.group(
        *(
            total.assign(tf.concat([total, sums[name]], 0), read_value=False)
            if name in KEPT
            else total.assign_add(sums[name])
            for name, total in totals.items()
        )
    )
    return {name: (value, add) for name, value in results(totals).items()}


def _local_variable(name: str, like: tf.Tensor) -> tf.Variable:
    """Returns a local variable of zeros, or for KEPT of no rows at first, which is not saved in checkpoints."""
    shape = like.shape if name not in KEPT else tf.TensorShape([None, *like.shape[1:]])
    begin = like.shape if name not in KEPT else [0, *like.shape[1:]]
    collections = [v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES]
    return v1.Variable(
        lambda: tf.zeros(begin, like.dtype),  # a function, as on a TPU the metrics are created inside a while loop
        shape=shape,
        validate_shape=name not in KEPT,
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
        known = {field.name: fields[field.name] for field in dataclasses.fields(cls) if field.name in fields}
        arrays = {name: tuple(fields[name].values()) for name in _BY_CLASS}
        arrays["confusion"] = tuple(map(tuple, fields["confusion"]))
        found = cls(**known | arrays)
        numbers = (
            found.accuracy,
            found.loss,
            *found.others.values(),
            *(share for name in _BY_CLASS for share in getattr(found, name) if share is not None),
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
        """Returns the fields of metrics.json, with the figures of classes keyed by class name."""
        by_class = {name: dict(zip(classes, getattr(self, name), strict=False)) for name in _BY_CLASS}
        of_sets = {"average_precision", "f1"} if not self.average_precision else set[str]()
        fields = dataclasses.asdict(self) | by_class
        return {name: value for name, value in fields.items() if name not in of_sets}

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
