"""Metrics: sums over the examples of a batch, which add up over batches and replicas, and what follows from them.

    logits, label, loss, weight of a batch ──batch_sums()──▶ sums ──+ those of other batches──▶ ──results()──▶ metrics

Padding has weight 0 and adds nothing, so the metrics are exact over any batches, replicas and hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
