"""Losses: Keras' numbers for smoothed targets, padding that counts for nothing, and classes that weigh the same."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.model.losses import cross_entropy, loss_and_gradients, weight_and_replicas, weighted_mean
from estimator_app.model.tasks import task
from support.app_fixtures import keras_warns

pytestmark = keras_warns

LOGITS = np.random.default_rng(0).normal(0, 3, [8, 5]).astype(np.float32)
LABELS = np.arange(8, dtype=np.int32) % 5


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_cross_entropy_is_that_of_keras(smoothing):
    expected = tf.keras.losses.categorical_crossentropy(
        tf.one_hot(LABELS, 5), LOGITS, from_logits=True, label_smoothing=smoothing
    )
    np.testing.assert_allclose(cross_entropy(tf.constant(LOGITS), tf.constant(LABELS), smoothing), expected, rtol=1e-5)
    if not smoothing:
        np.testing.assert_allclose(cross_entropy(tf.constant(LOGITS), tf.constant(LABELS)), expected, rtol=1e-5)


@pytest.mark.parametrize("class_weights", [(), (1.0, 0.0, 3.0, 0.5, 2.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_a_mixed_image_is_that_of_its_classes_by_their_shares(smoothing, class_weights):
    other, share = LABELS[::-1].copy(), np.linspace(0, 1, 8, dtype=np.float32)
    shares = share[:, None] * np.eye(5, dtype=np.float32)[LABELS] + (1 - share)[:, None] * np.eye(5, dtype="f")[other]
    losses = [cross_entropy(tf.constant(LOGITS), tf.constant(x), smoothing, class_weights) for x in (LABELS, other)]
    expected = share * losses[0] + (1 - share) * losses[1]
    mixed = cross_entropy(tf.constant(LOGITS), tf.constant(shares), smoothing, class_weights, mixed=True)
    np.testing.assert_allclose(mixed, expected, rtol=1e-5)


def test_an_example_of_a_class_counts_as_much_as_the_weight_of_the_class():
    equal = cross_entropy(tf.constant(LOGITS), tf.constant(LABELS), 0.1)
    weighted = cross_entropy(tf.constant(LOGITS), tf.constant(LABELS), 0.1, (1.0, 0.0, 3.0, 0.5, 2.0))
    np.testing.assert_allclose(weighted, equal * np.array([1, 0, 3, 0.5, 2, 1, 0, 3], "f"), rtol=1e-5)


def test_padding_counts_for_nothing_and_nothing_but_padding_is_zero():
    losses = tf.constant([1.0, 2.0, 1e9])
    assert weighted_mean(losses, tf.constant([1.0, 1.0, 0.0])).numpy() == 1.5
    assert weighted_mean(losses, tf.zeros(3)).numpy() == 0


@pytest.mark.parametrize(
    ("counts", "weights"),
    [
        ((10, 10), (1.0, 1.0)),
        ((30, 10), (2 / 3, 2.0)),
        ((732, 1300, 1, 0), (2033 / 3 / 732, 2033 / 3 / 1300, 2033 / 3, 0.0)),
    ],
)
def test_balanced_classes_weigh_the_same_and_the_mean_example_one(counts, weights):
    assert task("class").balanced(counts, sum(counts)) == pytest.approx(weights)
    assert np.dot(counts, weights) == pytest.approx(sum(counts))


L2 = 0.01
KERNEL = np.random.default_rng(1).normal(0, 0.5, [12, 5]).astype(np.float32)
IMAGES = np.random.default_rng(2).normal(1, 2, [8, 2, 2, 3]).astype(np.float32)


def network():
    """A linear network behind a batch normalisation, which in training subtracts the mean of the batch."""
    layers = tf.keras.layers
    normalisation = layers.BatchNormalization(center=False, scale=False, epsilon=1e-3)
    dense = layers.Dense(5, use_bias=False, kernel_regularizer=tf.keras.regularizers.L2(L2))
    model = tf.keras.Sequential([tf.keras.Input([2, 2, 3]), layers.Flatten(), normalisation, dense])
    dense.set_weights([KERNEL])
    return model


def by_hand(rows, weight, total, replicas, smoothing, class_weights):
    """Returns the share of the loss, and of the kernel's gradient, of the replica with these rows of the batch."""
    features = IMAGES[rows].reshape(-1, 12).astype(float)
    features = (features - features.mean(0)) / np.sqrt(features.var(0) + 1e-3)
    logits = features @ KERNEL
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    targets = (1 - smoothing) * np.eye(5)[LABELS[rows]] + smoothing / 5
    weight = weight[rows] * np.array(class_weights or np.ones(5))[LABELS[rows]]
    loss = -(weight * (targets * np.log(probabilities)).sum(1)).sum() / total + L2 * (KERNEL**2).sum() / replicas
    error = weight[:, None] * (probabilities - targets) / total
    return loss, features.T @ error + 2 * L2 * KERNEL / replicas


@pytest.mark.parametrize(("smoothing", "class_weights"), [(0.0, ()), (0.1, (1.0, 0.5, 2.0, 1.5, 3.0))])
def test_the_shares_of_replicas_are_those_of_the_mean_over_all_examples(smoothing, class_weights):
    weight = np.array([1, 1, 1, 1, 1, 1, 0, 0], np.float32)  # padding, at the second replica alone
    halves = [slice(0, 4), slice(4, 8)]
    sums = sum(weight_and_replicas(tf.constant(weight[rows])).numpy() for rows in halves)
    assert sums.tolist() == [6, 2]
    options = {"label_smoothing": smoothing, "class_weights": class_weights} if smoothing else {}
    for rows in halves:
        images, labels, weights = (tf.constant(array[rows]) for array in (IMAGES, LABELS, weight))
        loss, gradients = loss_and_gradients(network(), images, labels, weights, tf.constant(sums), **options)
        expected = by_hand(rows, weight, 6, 2, smoothing, class_weights)
        np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
        np.testing.assert_allclose(tf.stack(gradients), [expected[1]], rtol=1e-4, atol=1e-6)


def test_a_step_of_nothing_but_padding_has_the_network_s_own_losses_alone():
    sums = tf.constant([0.0, 1.0])
    loss, gradients = loss_and_gradients(network(), tf.constant(IMAGES), tf.constant(LABELS), tf.zeros(8), sums)
    np.testing.assert_allclose(loss, L2 * (KERNEL**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(tf.stack(gradients), [2 * L2 * KERNEL], rtol=1e-5)
