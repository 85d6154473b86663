"""Losses: logits and labels to numbers.

logits [N, K] float32, label [N] int32 ──▶ cross-entropy of every example, [N] nats ──▶ its mean over those that count
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """Returns every example's cross-entropy in nats, [N] float32.

    Args:
      logits: [N, K] float32.
      labels: [N] integers in [0, K).
      label_smoothing: Share of the target that is spread evenly over all classes: Szegedy et al. 2016, "Rethinking the
        Inception Architecture", section 7.
    """
    of_label = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not label_smoothing:
        return of_label
    of_all = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=1)
    return (1 - label_smoothing) * of_label + label_smoothing * of_all


def weighted_mean(losses: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns the mean of the [N] `losses` that the [N] `weight` does not leave out; 0 of nothing but padding."""
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))


def balanced(class_counts: tuple[int, ...]) -> tuple[float, ...]:
    """Returns a weight for each class, so that all classes together weigh the same; 1 for the mean example.

    Args:
      class_counts: Examples of each class; one without examples weighs nothing.
    """
    present = sum(count > 0 for count in class_counts)
    return tuple(sum(class_counts) / (present * count) if count else 0.0 for count in class_counts)


def training_loss(logits: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor, run: TrainConfig) -> tf.Tensor:
    """Returns the scalar to minimise: the mean cross-entropy, its target smoothed, its classes weighed as asked.

    Weight decay is the optimizer's.
    """
    losses = cross_entropy(logits, labels, run.label_smoothing)
    if run.class_weights == "balanced":
        losses *= tf.gather(tf.constant(balanced(run.class_counts), tf.float32), labels)
    return weighted_mean(losses, weight)


def added_loss(model: Any) -> tf.Tensor:
    """Returns the scalar that a network's own regularizers and add_loss() put on top; 0 where there are none.

    The replicas' losses are averaged, so each takes all of it, as Keras does.
    """
    # In bfloat16, add_loss() may be of that type.
    return tf.add_n([tf.zeros([]), *(tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in model.losses)])
