"""What a network adds to the loss with Keras' own means counts in both loops."""

from __future__ import annotations

import pytest
import tensorflow as tf

from estimator_app.config import default_trainer
from estimator_app.train import run as run_training
from estimator_app.trainers.progress import Progress
from support.app_fixtures import configured, keras_warns

pytestmark = keras_warns
KINDS = ["tpu_estimator", "tf_distribute"] if default_trainer() == "tpu_estimator" else ["tf_distribute"]
layers = tf.keras.layers


class Adding(tf.keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(5 * tf.ones([]))
        return inputs


def squares(kernel):
    """At first the number of inputs, 16 x 16 x 3, each of which has a scale that begins with 1."""
    return tf.reduce_sum(kernel**2)


def scaling(images, num_classes, training, regularizer=None):
    hidden = layers.Flatten()(images)
    scaled = layers.DepthwiseConv1D(1, depthwise_initializer="ones", depthwise_regularizer=regularizer, use_bias=False)
    hidden = layers.Reshape([1, -1])(hidden)
    return layers.Dense(num_classes)(layers.Flatten()(scaled(hidden)))


def regularized(images, num_classes, training):
    return scaling(Adding()(images), num_classes, training, squares)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long
def test_what_a_network_adds_to_its_loss_is_minimised_too_and_is_no_part_of_evaluation_s(
    digits_dataset, tmp_path, monkeypatch, kind
):
    losses, original = [], Progress.add_step

    def record(self, step, loss, *args):
        losses.append(loss)
        original(self, step, loss, *args)

    monkeypatch.setattr(Progress, "add_step", record)
    for name in ("scaling", "regularized"):
        network = f"test_added_loss:{name}"
        config = configured(digits_dataset, trainer=kind, network=network, train_steps=3, precision="bfloat16")
        run = run_training(
            digits_dataset, config, str(tmp_path / name), f"{tmp_path}/{name}/export", report=lambda _: None
        )
        assert run
        assert run.metrics.loss < 10
    # 768 by a regularizer, which has a gradient, and 5 by add_loss.
    assert losses[3] - losses[0] == pytest.approx(773, abs=0.1)
    assert losses[5] < 0.9 * losses[3]
