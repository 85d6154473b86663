"""Export of a checkpoint of TPUEstimator as a SavedModel.

trainers/saving.py writes it and has its signatures, from the keras.Model with the checkpoint's weights. With
export_to_tpu, TPUEstimator writes it from the run's model_fn, as nothing else writes a graph for TPUs:

    image_bytes ──tpu_input's receiver──▶ pixels ──model_fn──▶ probabilities ──▶ label ──classes.txt──▶ class
                                                  (on a TPU)

The host's CPU decodes the files and looks up the class names, as a TPU does not support strings.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model_dir.checkpoints import check_fits
from estimator_app.runtime import files
from estimator_app.runtime.tensorflow_private import infer_on_tpu
from estimator_app.saved_model.classifier import LOGITS, PIXELS, classified, names_table
from estimator_app.trainers.checks import named_weights
from estimator_app.trainers.saving import make_served_model, save_model
from estimator_app.trainers.tpu_estimator.keras_in_graph import AVERAGE, UNTRACKED
from estimator_app.trainers.tpu_estimator.model_fn import make_model_fn
from tpu_input import make_serving_input_receiver_fn

v1 = tf.compat.v1
ModeKeys = v1.estimator.ModeKeys
tpu = v1.estimator.tpu


def save(
    run: TrainConfig,
    checkpoint: str,
    path: str,
    classes_file: str,
    extra: Mapping[str, str],
    export_to_tpu: bool = False,
) -> None:
    """Writes a SavedModel of a checkpoint.

    Args:
      run: Config of the run.
      checkpoint: Path of the checkpoint to export.
      path: Folder or URI that is empty.
      classes_file: Path of the class names, one per line, in label order.
      extra: Paths of files to copy into assets.extra/, by their names there.
      export_to_tpu: Add a second MetaGraph, for TPUs.

    Raises:
      ValueError: The checkpoint is of another network.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    # The model_fn has all variables of a network, also those that Keras does not know.
    if export_to_tpu or any(name.startswith(UNTRACKED) for name in reader.get_variable_to_shape_map()):
        _save_graph(run, checkpoint, path, classes_file, extra, export_to_tpu)
        return
    model = make_served_model(run)
    weights = {f"{AVERAGE if run.ema else ''}{name}": variable for name, variable in named_weights(model).items()}
    needed = {name: list(variable.shape) for name, variable in weights.items()}
    check_fits(checkpoint, needed, run.network, len(run.classes))
    for name, variable in weights.items():
        variable.assign(reader.get_tensor(name))
    save_model(run, model, path, classes_file, extra)


def _save_graph(
    run: TrainConfig,
    checkpoint: str,
    path: str,
    classes_file: str,
    extra: Mapping[str, str],
    export_to_tpu: bool,
) -> None:
    """Writes what save() does, by TPUEstimator, which writes into a folder of its own choice."""
    with tempfile.TemporaryDirectory() as scratch:
        estimator = tpu.TPUEstimator(
            make_serving_model_fn(run, classes_file),
            config=tpu.RunConfig(model_dir=scratch),
            use_tpu=False,
            export_to_tpu=export_to_tpu,
            export_saved_model_api_version=2,  # version 2: the model_fn itself places parts on the TPU
        )
        receiver = make_serving_input_receiver_fn(run.input)
        export_path = estimator.export_saved_model(f"{path}.graph", receiver, dict(extra), checkpoint_path=checkpoint)
        files.remove_folder(path)
        files.rename(os.fsdecode(export_path), path)
        files.remove_folder(f"{path}.graph")


def make_serving_model_fn(run: TrainConfig, classes_file: str) -> Callable[..., Any]:
    """Returns the model_fn(features, labels, mode, params, config) of an export, for TPUEstimator.

    Its signatures are as in trainers/saving.py; on a TPU, there is none over pixels.

    Args:
      run: Config of the run.
      classes_file: Path of the class names, one per line, in label order; becomes an asset of the SavedModel.
    """
    model_fn = make_model_fn(run)

    def serving_model_fn(
        features: Mapping[str, tf.Tensor], labels: Any, mode: str, params: Mapping[str, Any], config: Any
    ) -> Any:
        pixels = features["image"] if params["use_tpu"] else tf.cast(features["image"], tf.float32)
        spec = (infer_on_tpu if params["use_tpu"] else _on_cpu)(model_fn, {"image": pixels}, params, config)
        outputs = classified(spec.predictions["probabilities"], run.task, names_table(classes_file))
        output = tf.estimator.export.PredictOutput
        export_outputs = {"serving_default": output(outputs), LOGITS: output({LOGITS: spec.predictions["logits"]})}
        if not params["use_tpu"]:
            export_outputs[PIXELS] = _OfPixels(pixels, spec.predictions)
        return v1.estimator.tpu.TPUEstimatorSpec(ModeKeys.PREDICT, predictions=outputs, export_outputs=export_outputs)

    return serving_model_fn


class _OfPixels(tf.estimator.export.PredictOutput):  # type: ignore[misc]
    """A signature with its own input, a tensor behind the receiver's, as Estimator gives all signatures the same."""

    def __init__(self, pixels: tf.Tensor, outputs: Mapping[str, tf.Tensor]) -> None:
        super().__init__(outputs)
        self._pixels = pixels

    def as_signature_def(self, receiver_tensors: Mapping[str, tf.Tensor]) -> Any:
        return super().as_signature_def({PIXELS: self._pixels})


def _on_cpu(
    model_fn: Callable[..., Any], features: Mapping[str, tf.Tensor], params: Mapping[str, Any], config: Any
) -> Any:
    return model_fn(features, None, ModeKeys.PREDICT, params, config)
