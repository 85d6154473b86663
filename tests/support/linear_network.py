"""A linear network for --network, and NumPy's own writing of its first step over examples that weigh differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

SIZE, CLASSES, RATE, L2 = 4, 3, 0.5, 0.01
KERNEL = np.random.default_rng(0).normal(0, 0.1, [SIZE * SIZE * 3, CLASSES]).astype("f")


def linear(images: tf.Tensor, num_classes: int, training: bool) -> tf.Tensor:
    dense = tf.keras.layers.Dense(num_classes, kernel_regularizer=tf.keras.regularizers.L2(L2))
    logits = dense(tf.keras.layers.Flatten()(images))
    dense.set_weights([KERNEL, np.zeros(num_classes, "f")])
    return logits


# The examples of two replicas. The second has one that counts, which is much like what on_corrupt="skip" leaves.
RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.integers(0, 256, [8, SIZE, SIZE, 3], np.uint8)
LABELS = RANDOM.integers(0, CLASSES, 8).astype(np.int32)
WEIGHT = np.array([1, 1, 1, 1, 1, 0, 0, 0], np.float32)


def step(mean: Sequence[float], std: Sequence[float]) -> tuple[Any, Any, Any]:
    """Returns the loss of all eight, and kernel and bias after a step of Nesterov's momentum that starts at rest."""
    rows = ((IMAGES.astype("f") - np.array(mean, np.float32)) / np.array(std, np.float32)).reshape(8, -1)
    logits = rows @ KERNEL
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    losses = -np.log(probabilities[np.arange(8), LABELS])
    loss = (losses * WEIGHT).sum() / WEIGHT.sum() + L2 * (KERNEL**2).sum()
    error = (probabilities - np.eye(CLASSES)[LABELS]) * WEIGHT[:, None] / WEIGHT.sum()
    kernel = KERNEL - RATE * 1.9 * (rows.T @ error + 2 * L2 * KERNEL)  # gradient, and 0.9 of it again
    return loss, kernel, -RATE * 1.9 * error.sum(0)


OPTIONS = {
    "network": "support.linear_network:linear",
    "image_size": SIZE,
    "learning_rate": RATE,
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "decay": "steps",
    "train_batch_size": 8,
}
