"""Metrics in TensorFlow: sums over the examples of a batch, which add up over batches and replicas, and their values.

logits, label, loss, weight of a batch ──batch_sums()──▶ sums, added up over batches ──results()──▶ by name

Padding has weight 0 and adds nothing, so the metrics are exact over any batches, replicas and hosts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from estimator_app.model.metrics import CONFUSION_UP_TO
from estimator_app.model.tasks import TOP

v1 = tf.compat.v1


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
    predicted = tf.argmax(logits, axis=1, output_type=labels.dtype)
    # Counts are int32: in float32, adding 1 has no effect above 2^24.
    ones = tf.cast(weight, tf.int32)
    correct = ones * tf.cast(tf.equal(predicted, labels), tf.int32)
    sums = {
        "loss": tf.reduce_sum(losses * weight),
        "examples": tf.math.unsorted_segment_sum(ones, labels, num_classes),
        "correct": tf.math.unsorted_segment_sum(correct, labels, num_classes),
    }
    if num_classes > TOP:
        label_logits = tf.gather(logits, labels[:, None], batch_dims=1)
        # A class that is tied with others for the fifth place does not count as found, unless argmax has chosen it;
        # tf.math.in_top_k would count all tied classes. logical_not(<) instead of >= counts NaN logits as larger.
        # at_least counts the label itself too.
        at_least = tf.reduce_sum(tf.cast(tf.logical_not(logits < label_logits), tf.int32), axis=1)
        sums["among_top"] = tf.reduce_sum(tf.maximum(correct, ones * tf.cast(at_least <= TOP, tf.int32)))
    if num_classes <= CONFUSION_UP_TO:
        # tf.math.confusion_matrix computes in int64, which a TPU emulates.
        cells = tf.math.unsorted_segment_sum(ones, labels * num_classes + predicted, num_classes**2)
        sums["confusion"] = tf.reshape(cells, [num_classes, num_classes])
    return sums


# Average precision depends on the order of all examples, so that their scores are kept instead of a sum:
# logits [N, K] float32, labels [N, K] bool, whether each is an example [N] bool.
PER_EXAMPLE = ("scores", "targets", "are_examples")


def _sums_of_sets(logits: tf.Tensor, labels: tf.Tensor, losses: tf.Tensor, weight: tf.Tensor) -> dict[str, tf.Tensor]:
    ones = tf.cast(weight, tf.int32)[:, None]
    positive, predicted = labels > 0.5, logits >= 0  # a probability of at least 0.5

    def count(mask: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(ones * tf.cast(mask, tf.int32), axis=0)

    return {
        "loss": tf.reduce_sum(losses * weight),
        "num_examples": tf.reduce_sum(ones),
        "positive": count(positive),
        "found": count(predicted),
        "both": count(tf.logical_and(positive, predicted)),
        "scores": logits,
        "targets": positive,
        "are_examples": weight > 0,
    }


def added(totals: Mapping[str, tf.Tensor], sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the sums of further examples added to earlier sums, which are {} at first."""
    if not totals:
        return dict(sums)
    return {
        name: tf.concat([totals[name], value], 0) if name in PER_EXAMPLE else totals[name] + value
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
    hits = tf.transpose(tf.boolean_mask(targets, are_examples))
    order = tf.argsort(ascending, axis=1)
    ascending = tf.gather(ascending, order, batch_dims=1)
    hits = tf.cast(tf.gather(hits, order, batch_dims=1), tf.float64)
    last = tf.searchsorted(ascending, ascending, side="right") - 1  # of the examples with the same score
    true = tf.gather(tf.cumsum(hits, axis=1), last, batch_dims=1)
    precision = true / tf.cast(last + 1, tf.float64)
    return tf.reduce_sum(precision * hits, axis=1) / tf.reduce_sum(hits, axis=1)


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
    counts = {name: tf.cast(sums[name], tf.float64) for name in sums if name not in PER_EXAMPLE}
    positive, predicted, both, num_examples = (counts[name] for name in ("positive", "found", "both", "num_examples"))
    precision = average_precision(*(tf.convert_to_tensor(sums[name]) for name in PER_EXAMPLE))
    f1 = 2 * both / (positive + predicted)
    present = positive > 0

    def mean(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.boolean_mask(values, present))

    wrong = tf.reduce_sum(positive + predicted - 2 * both)
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
            if name in PER_EXAMPLE
            else total.assign_add(sums[name])
            for name, total in totals.items()
        )
    )
    return {name: (value, add) for name, value in results(totals).items()}


def _local_variable(name: str, like: tf.Tensor) -> tf.Variable:
    """Returns a local variable of zeros, or for PER_EXAMPLE of no rows at first, which is not saved in checkpoints."""
    shape = like.shape if name not in PER_EXAMPLE else tf.TensorShape([None, *like.shape[1:]])
    begin = like.shape if name not in PER_EXAMPLE else [0, *like.shape[1:]]
    collections = [v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES]
    return v1.Variable(
        lambda: tf.zeros(begin, like.dtype),  # a function, as on a TPU the metrics are created inside a while loop
        shape=shape,
        validate_shape=name not in PER_EXAMPLE,
        trainable=False,
        collections=collections,
        use_resource=True,
        name=name,
    )
