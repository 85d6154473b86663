"""Trained model → SavedModel → classes of JPEG files.

    TPUEstimator ──export_model()──▶ EXPORT_DIR/1763596800/saved_model.pb ──load_classifier()──▶ Classifier

The SavedModel takes "image_bytes", a batch of JPEG files, and gives "probabilities", "label" and "class".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tpu_input import InputConfig, make_serving_input_receiver_fn


class Prediction(NamedTuple):
    """What a classifier says about an image: the likeliest class, and how likely it is in [0, 1]."""

    class_name: str
    probability: float


Classifier = Callable[[bytes], Prediction]


def export_model(estimator: Any, config: InputConfig, export_dir: str) -> str:
    """Returns the path of a new SavedModel of the last checkpoint, in a folder of `export_dir` named after the time."""
    exported = estimator.export_saved_model(export_dir, make_serving_input_receiver_fn(config))
    return os.fsdecode(exported)


def load_classifier(path: str) -> Classifier:
    """Returns a function that classifies one JPEG file's bytes.

    Args:
      path: A SavedModel, or a folder of them named after numbers, of which the largest is taken.

    Raises:
      ValueError: There is none; or, from the function, the bytes are no JPEG file.
    """
    signature = tf.saved_model.load(find_export(path)).signatures["serving_default"]

    def classify(encoded: bytes) -> Prediction:
        if not encoded.startswith(b"\xff\xd8"):
            raise ValueError("not a JPEG file" if encoded else "the file is empty")
        try:
            outputs = signature(image_bytes=tf.constant([encoded]))
        except tf.errors.InvalidArgumentError:
            raise ValueError("a damaged JPEG file") from None
        return Prediction(outputs["class"][0].numpy().decode(), float(tf.reduce_max(outputs["probabilities"])))

    return classify


def classify_file(classify: Classifier, path: str) -> Prediction:
    """Returns what `classify` says about the JPEG file at `path`, which may be a gs:// URI.

    Raises:
      ValueError: It cannot be read, or is no JPEG file.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            encoded = file.read()
    except tf.errors.OpError as error:
        raise ValueError(error.message.rpartition("; ")[2]) from None  # the message begins with the path
    return classify(encoded)


def find_export(path: str) -> str:
    """Returns the SavedModel at `path`, or the newest below it.

    Raises:
      ValueError: There is none.
    """
    path = path.rstrip("/")
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(path)] if tf.io.gfile.isdir(path) else []
    if "saved_model.pb" in names:
        return path
    # An export that was cut short has a name of another kind.
    numbers = [int(name) for name in names if name.isdigit()]
    if not numbers:
        raise ValueError(f"{path!r} holds no SavedModel; make one with: python -m estimator_app export")
    return f"{path}/{max(numbers)}"
