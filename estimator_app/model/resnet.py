"""Residual networks as the world compares them: ResNet-18 and ResNet-50 v1.5.

    images [N, H, W, 3] ──7 × 7, max 3 × 3──▶ [N, H/4, W/4, 64] ──4 stages──▶ ──mean──▶ logits [N, num_classes]

He et al. 2016, "Deep Residual Learning", table 1. Version 1.5 halves the image in a bottleneck's 3 × 3 convolution and
not in the 1 × 1 before it, which leaves three of four places out: 0.5 % more accuracy at 5 % fewer images/s, say
NVIDIA's Deep Learning Examples, "ResNet50 v1.5".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

layers = tf.keras.layers

# (images, filters, stride, training) -> images
Block = Callable[[Any, int, int, "bool | None"], Any]


def resnet18(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns the logits of ResNet-18."""
    return _resnet(images, num_classes, training, _basic, (2, 2, 2, 2))


def resnet50(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns the logits of ResNet-50 v1.5."""
    return _resnet(images, num_classes, training, _bottleneck, (3, 4, 6, 3))


def _resnet(images: Any, num_classes: int, training: bool | None, block: Block, depths: tuple[int, ...]) -> Any:
    images = layers.ReLU()(normalised(_convolved(images, 64, 7, stride=2), training))
    images = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(images))  # after a ReLU nothing is below zero
    for stage, depth in enumerate(depths):
        for number in range(depth):
            stride = 2 if stage and not number else 1
            images = block(images, 64 * 2**stage, stride, training)
    return logits(layers.GlobalAveragePooling2D()(images), num_classes)


def _basic(images: Any, filters: int, stride: int, training: bool | None) -> Any:
    residual = layers.ReLU()(normalised(_convolved(images, filters, 3, stride), training))
    residual = normalised(_convolved(residual, filters, 3), training, scale="zeros")
    return layers.ReLU()(layers.add([residual, _shortcut(images, filters, stride, training)]))


def _bottleneck(images: Any, filters: int, stride: int, training: bool | None) -> Any:
    residual = layers.ReLU()(normalised(_convolved(images, filters, 1), training))
    residual = layers.ReLU()(normalised(_convolved(residual, filters, 3, stride), training))
    residual = normalised(_convolved(residual, 4 * filters, 1), training, scale="zeros")
    return layers.ReLU()(layers.add([residual, _shortcut(images, 4 * filters, stride, training)]))


def _shortcut(images: Any, filters: int, stride: int, training: bool | None) -> Any:
    """Returns the images themselves, or projected to what the block makes of them."""
    if stride == 1 and images.shape[-1] == filters:
        return images
    return normalised(_convolved(images, filters, 1, stride), training)


def _convolved(images: Any, filters: int, size: int, stride: int = 1) -> Any:
    """Returns convolved() with size // 2 zeros on each side of the images, whatever their size and the stride.

    So do torchvision's and tensorflow/tpu's networks. "same" pads an even image less at a stride of 2, and on one side
    more than on the other, so that published weights would meet another part of the image than they were trained on.
    """
    if stride == 1 or size == 1:
        return convolved(images, filters, size, stride)  # "same" is that, and needs no layer of its own
    return convolved(layers.ZeroPadding2D(size // 2)(images), filters, size, stride, padding="valid")


def convolved(images: Any, filters: int, size: int, stride: int = 1, padding: str = "same") -> Any:
    """Returns a convolution of `size` × `size` without a bias, for batch normalisation to follow.

    Its first weights are He et al. 2015's, "Delving Deep into Rectifiers", section 2.2.
    """
    convolution = layers.Conv2D(filters, size, stride, padding, use_bias=False, kernel_initializer="he_normal")
    return convolution(images)


def normalised(images: Any, training: bool | None, scale: str = "ones") -> Any:
    """Returns batch normalisation, whose statistics and parameters are float32 under any precision.

    Args:
      images: [N, H, W, C].
      training: Whether the statistics are the batch's.
      scale: What the scale begins as. "zeros" in a block's last makes it the identity at first: Goyal et al. 2017,
        "Accurate, Large Minibatch SGD", section 5.1.
    """
    # Keras' own momentum of 0.99 needs thousands of steps to forget where it started; 0.9 is Goyal et al.'s.
    normalisation = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=scale)
    return normalisation(images, training=training)


def logits(features: Any, num_classes: int) -> Any:
    """Returns the dense layer at the end, in float32 under any precision; its first weights are Goyal et al.'s."""
    start = tf.keras.initializers.RandomNormal(stddev=0.01)
    return layers.Dense(num_classes, kernel_initializer=start, dtype="float32")(features)
