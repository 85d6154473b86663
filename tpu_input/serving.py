"""Serving input: a batch of JPEG or PNG files in, what evaluation sees out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.pipeline.images import decode_for_evaluation
from tpu_input.pipeline.reading import plain


def make_serving_input_receiver_fn(config: InputConfig) -> Callable[[], Any]:
    """Returns a serving_input_receiver_fn for TPUEstimator.export_saved_model (TensorFlow 2.15).

    Its receiver takes "image_bytes", [batch] strings, each a JPEG or PNG file; its features are {"image": [batch,
    image_size, image_size, 3] of config.dtype}, always NHWC, cropped by evaluation's own function.
    """

    def serving_input_receiver_fn() -> Any:
        image_bytes = tf.compat.v1.placeholder(tf.string, [None], "image_bytes")
        images = decode_files(image_bytes, config)
        receivers = {"image_bytes": image_bytes}
        return tf.compat.v1.estimator.export.ServingInputReceiver({"image": images}, receivers)

    return serving_input_receiver_fn


def decode_files(image_bytes: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns [batch, image_size, image_size, 3] of config.dtype: [batch] JPEG or PNG files as evaluation sees them."""
    images = tf.map_fn(
        plain(lambda encoded: decode_for_evaluation(encoded, config)), image_bytes, fn_output_signature=config.dtype
    )
    images.set_shape([None, config.image_size, config.image_size, 3])
    return images
