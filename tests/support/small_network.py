"""Networks for --network that are built and compiled in a moment, for tests of what does not depend on the network."""

from __future__ import annotations

from typing import Any

from estimator_app.model.keras_library import layers

NAME = "support.small_network:small"
NORMALIZED = "support.small_network:normalized"


def small(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns logits from the mean color of each image, in any trainer's Keras."""
    return layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(images))


def normalized(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns logits from a convolution with batch normalization, in any trainer's Keras."""
    features = layers.BatchNormalization()(layers.Conv2D(8, 3)(images), training=training)
    return layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(layers.ReLU()(features)))
