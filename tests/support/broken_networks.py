"""Networks as their authors give them to --network, most with one mistake that a TPU does not forgive."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


def fine(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    pooled = tf.keras.layers.GlobalAveragePooling2D()(images)
    return tf.keras.layers.Dense(num_classes)(pooled)


def changed(images: tf.Tensor, num_classes: int, change: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """A network whose logits somebody changes; in a layer, for newer Keras takes no op outside of one."""
    return tf.keras.layers.Lambda(change)(fine(images, num_classes, None))


def summary(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    def change(logits: tf.Tensor) -> tf.Tensor:
        tf.compat.v1.summary.scalar("largest", tf.reduce_max(logits))  # SUMMARY
        return logits

    return changed(images, num_classes, change)


def python(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    def change(logits: tf.Tensor) -> tf.Tensor:
        doubled = tf.numpy_function(lambda array: 2 * array, [logits], tf.float32)  # PYTHON
        return logits + tf.stop_gradient(tf.ensure_shape(doubled, logits.shape))

    return changed(images, num_classes, change)


def text(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    def change(logits: tf.Tensor) -> tf.Tensor:
        return logits + tf.strings.to_number(tf.strings.as_string(logits))  # TEXT

    return changed(images, num_classes, change)


class TextWithoutTraining(tf.keras.layers.Layer):  # type: ignore[misc]
    def call(self, logits: tf.Tensor, training: bool = False) -> tf.Tensor:
        if training:
            return logits
        return logits + tf.strings.to_number(tf.strings.as_string(logits))  # EVALUATED

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return shape


def text_in_evaluation(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    return TextWithoutTraining()(fine(images, num_classes, training), training=training)


def data_dependent_size(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    def change(images: tf.Tensor) -> tf.Tensor:
        side = tf.cast(tf.reduce_max(images), tf.int32)
        return tf.reduce_mean(tf.image.resize(images, [side, side]), [1, 2])  # SIZE

    return tf.keras.layers.Dense(num_classes)(tf.keras.layers.Lambda(change)(images))


def masked(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    def change(logits: tf.Tensor) -> tf.Tensor:
        return logits + tf.reduce_mean(tf.boolean_mask(logits, logits > 0))  # MASKED

    return changed(images, num_classes, change)


def precise(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    def change(logits: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.cast(logits, tf.float64) * 2, tf.float32)  # PRECISE

    return changed(images, num_classes, change)


def lstm(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    """Not broken: reads an image row by row."""
    return recurrent(tf.keras.layers.LSTM(8), images, num_classes)


def gru(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    return recurrent(tf.keras.layers.GRU(8), images, num_classes)


def recurrent(layer: tf.keras.layers.Layer, images: tf.Tensor, num_classes: int) -> tf.Tensor:
    _, height, width, channels = images.shape
    return tf.keras.layers.Dense(num_classes)(layer(tf.keras.layers.Reshape((height, width * channels))(images)))


def large(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    """Keeps 128 maps of every image's full size for the gradients."""
    maps = tf.keras.layers.Conv2D(128, 1, activation="relu")(images)
    return fine(maps, num_classes, training)


def unbuildable(images: tf.Tensor, num_classes: int, training: bool | None) -> tf.Tensor:
    return fine(images @ tf.ones([4, 4]), num_classes, training)  # UNBUILDABLE


def line_of(mark: str) -> str:
    """Returns "broken_networks.py:N" of the line that ends with a comment."""
    with open(__file__) as file:
        numbers = [number for number, line in enumerate(file, 1) if line.endswith(f"# {mark}\n")]
    return f"broken_networks.py:{numbers[0]}"
