"""Networks: shapes at any image size, and batch normalisation's statistics, which really move."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from app_fixtures import keras_warns

from estimator_app.networks import build, cnn, find_network

pytestmark = keras_warns


@pytest.mark.parametrize("image_size", [1, 28, 32, 224])
def test_the_cnn_takes_any_image_size(image_size):
    images = tf.keras.Input([image_size, image_size, 3])
    model = tf.keras.Model(images, cnn(images, 10, training=False))
    assert model.output.shape == (None, 10)
    assert model.count_params() == 289_642


def test_an_unknown_network_is_refused_and_the_known_are_named():
    with pytest.raises(ValueError, match="one of cnn, got 'resnet9000'"):
        find_network("resnet9000")


@pytest.mark.skipif(tf.__version__ >= "2.16", reason="TPUEstimator's graph ends with TensorFlow 2.15")
@pytest.mark.parametrize(("training", "share"), [(True, 0.1), (False, 0.0)])
def test_batch_normalisation_moves_a_tenth_towards_the_batch_in_training_alone(training, share):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        images = tf.constant(np.random.default_rng(0).normal(3, 2, [8, 16, 16, 3]), tf.float32)
        model = build(cnn, images, 10, training)
        convolved, normalised = model.layers[1], model.layers[2]
        session.run(tf.compat.v1.global_variables_initializer())
        values = session.run(convolved.output)
        session.run(model.updates)
        mean, variance = session.run([normalised.moving_mean, normalised.moving_variance])
    np.testing.assert_allclose(mean, share * values.mean((0, 1, 2)), atol=1e-5)
    np.testing.assert_allclose(variance, 1 - share + share * values.var((0, 1, 2)), rtol=1e-2)
