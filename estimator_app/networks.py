"""Networks: functions from images to logits.

    images [N, H, W, 3] float32, normalised ──network(images, num_classes, training)──▶ logits [N, num_classes]

A network is made of Keras layers applied to `images`, and passes `training` to those that ask for it. That is all it
needs to run inside TPUEstimator's graph, where `images` is a tensor, and in a keras.Model of any TensorFlow 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

layers = tf.keras.layers

Network = Callable[[Any, int, bool], Any]


def cnn(images: Any, num_classes: int, training: bool) -> Any:
    """Returns the logits of a small convolutional network: 0.29 million parameters, 19 MFLOP an image at 32 px.

    Three stages of two 3 x 3 convolutions, the first of which halves the image; then the mean over all places, so that
    any image_size will do. There is no dropout: its state would not survive a restart, and resuming is exact.
    """
    for filters in (32, 64, 128):
        images = _convolution(images, filters, stride=2, training=training)
        images = _convolution(images, filters, stride=1, training=training)
    return layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(images))


def _convolution(images: Any, filters: int, stride: int, training: bool) -> Any:
    images = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False, kernel_initializer="he_normal")(images)
    # Keras' own momentum of 0.99 needs thousands of steps to forget where it started.
    images = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(images, training=training)
    return layers.ReLU()(images)


NETWORKS: dict[str, Network] = {"cnn": cnn}


def find_network(name: str) -> Network:
    """Returns the network of that name.

    Raises:
      ValueError: There is none.
    """
    if name not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {name!r}")
    return NETWORKS[name]


def build(network: Network, images: tf.Tensor, num_classes: int, training: bool) -> Any:
    """Returns the keras.Model of `network` on the tensor `images` of TPUEstimator's graph.

    Its `output` are the logits, [N, num_classes] float32; its `updates` move batch normalisation's statistics, which
    nothing else would run.
    """
    inputs = tf.keras.Input(tensor=images)
    logits = network(inputs, num_classes, training)
    return tf.keras.Model(inputs, logits)
