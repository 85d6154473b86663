"""Export of a checkpoint of tf.distribute as a SavedModel, with the same signatures as that of TPUEstimator.

image_bytes ──tpu_input──▶ image ──network──▶ probabilities ──▶ label ──classes.txt──▶ class
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model.losses import probabilities
from estimator_app.model.networks import apply
from estimator_app.runtime import files
from estimator_app.saved_model.classifier import LOGITS, classified, names_table
from estimator_app.trainers.checks import check_weights, make_weighted_model, named_weights
from tpu_input import from_infeed
from tpu_input.predict import decode_files


def save(
    run: TrainConfig,
    checkpoint: str,
    export_dir: str,
    classes_file: str,
    extra: Mapping[str, str],
    export_to_tpu: bool = False,
) -> str:
    """Returns the path of a new SavedModel, in a folder of `export_dir` named after the time.

    Arguments and signatures are those of tpu_estimator.export.save(), except that export_to_tpu is not supported.

    Raises:
      ValueError: The checkpoint is of another network, or export_to_tpu is True.
    """
    if export_to_tpu:
        raise ValueError(
            "--export_to_tpu needs a run with --trainer=tpu_estimator: TensorFlow writes no TPU graph for other runs"
        )
    model, module = make_weighted_model(run), tf.Module()
    module.weights, module.names = named_weights(model), names_table(classes_file)
    check_weights(checkpoint, module.weights, run)
    saved = {"ema" if run.ema else "weights": module.weights}
    tf.train.Checkpoint(**saved).read(checkpoint).expect_partial()
    arrived = dataclasses.replace(run.input, layout="NHWC")

    files = tf.TensorSpec([None], tf.string, name="image_bytes")

    @tf.function(input_signature=[files], autograph=False)  # type: ignore[untyped-decorator]
    def logits(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        images = from_infeed(decode_files(image_bytes, arrived), arrived)
        return {LOGITS: apply(model, images, training=False)}

    @tf.function(input_signature=[files], autograph=False)  # type: ignore[untyped-decorator]
    def classify(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        found = probabilities(logits(image_bytes)[LOGITS], run.label_type)
        return classified(found, run.label_type, module.names)

    return _write(module, {"serving_default": classify, LOGITS: logits}, export_dir, extra)


def _write(module: tf.Module, signatures: Mapping[str, Any], export_dir: str, extra: Mapping[str, str]) -> str:
    """Writes a SavedModel under a temporary name and renames it when it is complete; returns its path."""
    taken = {
        int(name.removeprefix("temp-")) for name in files.names(export_dir) if name.removeprefix("temp-").isdigit()
    }
    number = max([int(time.time()), *(number + 1 for number in taken)])
    temporary, path = f"{export_dir}/temp-{number}", f"{export_dir}/{number}"
    tf.saved_model.save(module, temporary, signatures)
    files.make_folder(f"{temporary}/assets.extra")
    for name, source in extra.items():
        tf.io.gfile.copy(source, f"{temporary}/assets.extra/{name}")
    tf.io.gfile.rename(temporary, path)
    return path
