"""Losses: Keras' numbers for smoothed targets, padding that counts for nothing, and classes that weigh the same."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.model.losses import balanced, cross_entropy, weighted_mean

LOGITS = np.random.default_rng(0).normal(0, 3, [8, 5]).astype(np.float32)
LABELS = np.arange(8, dtype=np.int32) % 5


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_cross_entropy_is_that_of_keras(smoothing):
    expected = tf.keras.losses.categorical_crossentropy(
        tf.one_hot(LABELS, 5), LOGITS, from_logits=True, label_smoothing=smoothing
    )
    np.testing.assert_allclose(cross_entropy(tf.constant(LOGITS), tf.constant(LABELS), smoothing), expected, rtol=1e-5)


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
    assert balanced(counts) == pytest.approx(weights)
    assert np.dot(counts, balanced(counts)) == pytest.approx(sum(counts))
