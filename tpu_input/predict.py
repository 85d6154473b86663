"""Prediction and serving input: image files, decoded and cropped as in evaluation.

    file names ──▶ bytes ──▶ center crop ──▶ {"image": [batch_size, image_size, image_size, 3]}, the last batch shorter

A serving input receiver takes a batch of JPEG or PNG files and does the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tpu_input.config import InputConfig, check_config
from tpu_input.pipeline.batches import check_batch_size
from tpu_input.pipeline.hosts import check_params
from tpu_input.pipeline.images import decode_for_evaluation
from tpu_input.pipeline.reading import finished, no_autograph
from tpu_input.train import InputFn


def make_predict_input_fn(files: Iterable[str | os.PathLike[str]], config: InputConfig) -> InputFn:
    """Returns input_fn(params) -> finite Dataset of {"image": …} of config.dtype, for TPUEstimator.predict.

    The layout is NHWC whatever config.layout is, because TPUEstimator pads the first axis of the last batch.

    Args:
      files: Paths or URIs of JPEG or PNG files.
      config: For image_size, dtype, resize, eval_crop, and mean as the color of "pad".

    A file that cannot be decoded raises an error that names it, when the dataset is read.

    Raises:
      ValueError: There are no files.
    """
    check_config(config)
    if isinstance(files, str):
        raise ValueError(f"files must be a sequence of paths, got the text {files!r}")
    paths = [os.fspath(file) for file in files]  # also of an array of NumPy
    if not paths:
        raise ValueError("files is empty; give at least one image")
    input_config = config
    shape = [config.image_size, config.image_size, 3]

    @no_autograph
    def decode(path: tf.Tensor) -> dict[str, tf.Tensor]:
        encoded = tf.io.read_file(path)
        # A nested dataset can ignore the failure of an op, so that the error can name the file; 0.07 ms per image.
        tried = tf.data.Dataset.from_tensors(encoded).map(no_autograph(lambda data: (crop(data), True))).ignore_errors()
        failed = tf.data.Dataset.from_tensors((tf.zeros(shape, input_config.dtype), False))
        image, decoded = tried.concatenate(failed).take(1).get_single_element()
        problem = tf.strings.join([path, " is not a JPEG or PNG file that can be decoded"])
        with tf.control_dependencies([tf.raw_ops.Assert(condition=decoded, data=[problem])]):
            return {"image": tf.identity(image)}

    def crop(encoded: tf.Tensor) -> tf.Tensor:
        return decode_for_evaluation(encoded, input_config)

    def input_fn(params: Mapping[str, Any], config: Any = None) -> tf.data.Dataset:
        batch_size = check_params(params)
        check_batch_size(batch_size, input_config)
        dataset = tf.data.Dataset.from_tensor_slices(paths)
        dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return finished(dataset.batch(batch_size).prefetch(2))

    return input_fn


def make_serving_input_receiver_fn(config: InputConfig) -> Callable[[], Any]:
    """Returns a serving_input_receiver_fn for TPUEstimator.export_saved_model (TensorFlow 2.15).

    Its receiver takes "image_bytes", [batch] strings, each a JPEG or PNG file; its features are {"image": [batch,
    image_size, image_size, 3] of config.dtype}, always NHWC, cropped by the same function as in evaluation.
    """

    def serving_input_receiver_fn() -> Any:
        image_bytes = tf.compat.v1.placeholder(tf.string, [None], "image_bytes")
        images = decode_files(image_bytes, config)
        receivers = {"image_bytes": image_bytes}
        return tf.compat.v1.estimator.export.ServingInputReceiver({"image": images}, receivers)

    return serving_input_receiver_fn


def decode_files(image_bytes: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns [batch, image_size, image_size, 3] of config.dtype: JPEG or PNG files, cropped as in evaluation."""
    images = tf.map_fn(
        no_autograph(lambda encoded: decode_for_evaluation(encoded, config)),
        image_bytes,
        fn_output_signature=config.dtype,
    )
    images.set_shape([None, config.image_size, config.image_size, 3])
    return images
