"""Losses, computed from logits and labels.

logits [N, K] float32, label [N] int32 ──▶ cross-entropy of every example, [N] nats
                                         ──▶ their weighted mean over the examples of all replicas, and its gradients
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from estimator_app.model.keras_library import plain_variable
from estimator_app.model.networks import apply
from estimator_app.model.tasks import Task

OVER_CORES = "over_cores"  # name scope of the sums over a TPU's cores that are not sums of gradients


def cross_entropy(
    logits: tf.Tensor,
    labels: tf.Tensor,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] = (),
    mixed: bool = False,
) -> tf.Tensor:
    """Returns every example's cross-entropy in nats, [N] float32.

    With several labels per image, it is the mean over the classes of the cross-entropy of each, after a sigmoid.

    Args:
      logits: [N, K] float32.
      labels: [N] integers in [0, K); with several labels per image, [N, K] float32 of zeros and ones.
      label_smoothing: Share of the target that is spread evenly over all classes: Szegedy et al. 2016, "Rethinking the
        Inception Architecture", section 7. With several labels per image: zeros become half of it, ones 1 less half.
      class_weights: Weight of an example of each class; with several labels, of the ones of each class, in relation to
        its zeros. Empty for equal weights.
      mixed: Whether `labels` are shares of the classes, [N, K] float32, that sum to 1 for each example: labels of
        images with one label each that mixup or CutMix has mixed.
    """
    weights = tf.constant(class_weights, tf.float32) if class_weights else 1.0
    if mixed:  # the mean of the losses of each class, weighted by its share of the example
        by_class = -tf.nn.log_softmax(logits)
        smooth = (1 - label_smoothing) * by_class + label_smoothing * tf.reduce_mean(by_class, axis=1, keepdims=True)
        return tf.reduce_sum(labels * smooth * weights, axis=1)
    if labels.shape.rank == 2:
        smooth = (1 - label_smoothing) * labels + label_smoothing / 2
        return tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(smooth, logits, weights), axis=1)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if label_smoothing:
        uniform_loss = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=1)
        losses = (1 - label_smoothing) * losses + label_smoothing * uniform_loss
    return losses * tf.gather(weights, labels) if class_weights else losses


def weighted_mean(losses: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns the mean of the [N] `losses` weighted by the [N] `weight`; 0 if all weights are 0 (only padding)."""
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))


def probabilities(logits: tf.Tensor, task: Task) -> tf.Tensor:
    """Returns [N, K] probabilities: a softmax over the classes; with several labels per image, the sigmoid of each."""
    return getattr(tf.nn, task.activation)(logits)


def weight_and_replicas(weight: tf.Tensor) -> tf.Tensor:
    """Returns [sum of `weight`, 1], [2] float32; loss_and_gradients() takes its sum over all replicas."""
    return tf.stack([tf.reduce_sum(weight), 1.0])


def loss_and_gradients(
    model: Any,
    images: tf.Tensor,
    labels: tf.Tensor,
    weight: tf.Tensor,
    sums: tf.Tensor,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] = (),
    mixed: bool = False,
) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
    """Returns a replica's share of the loss, a scalar, and of its gradients, for each of model.trainable_weights.

    The loss is the weighted mean cross-entropy over the examples of the step on all replicas, with label smoothing and
    class weights as given, plus the network's own losses (added_loss). The shares of all replicas add up to it. A mean
    of the replicas' means would differ where replicas have different sums of weights, that is, padding. Weight decay is
    not part of the loss: the optimizer applies it.

    Args:
      model: keras.Model called with images and `training`.
      images: [N, H, W, 3] float32; images, labels and weight are this replica's.
      labels: [N] int32, or [N, K] float32 with several labels per image.
      weight: [N] float32.
      sums: The sum of weight_and_replicas() over all replicas.
      label_smoothing: See cross_entropy().
      class_weights: Weight in the loss of an example of each class; empty for equal weights.
      mixed: See cross_entropy().
    """
    total, replicas = tf.unstack(sums)
    with tf.GradientTape() as tape:
        logits = apply(model, images, training=True)
        losses = cross_entropy(logits, labels, label_smoothing, class_weights, mixed)
        share = tf.math.divide_no_nan(tf.reduce_sum(losses * weight), total) + added_loss(model) / replicas
    return share, tape.gradient(share, [plain_variable(weight) for weight in model.trainable_weights])


def added_loss(model: Any) -> tf.Tensor:
    """Returns the sum of the losses of a network's own regularizers and add_loss(), a scalar; 0 if there are none."""
    # Under precision bfloat16, the losses of add_loss() may be bfloat16.
    return tf.add_n([tf.zeros([]), *(tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in model.losses)])
