"""Export with TPUEstimator: a SavedModel of the run's model_fn that also returns the label and the class name.

    image_bytes ──tpu_input's receiver──▶ image ──model_fn──▶ probabilities ──▶ label ──classes.txt──▶ class
                                                 (on a TPU with export_to_tpu)

The host's CPU decodes the files and looks up the class names, as a TPU does not support strings.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.saved_model.classifier import LOGITS, classified, names_table
from estimator_app.trainers.tpu_estimator.model_fn import make_model_fn
from tpu_input import make_serving_input_receiver_fn

v1 = tf.compat.v1
ModeKeys = v1.estimator.ModeKeys
tpu = v1.estimator.tpu


def save(
    run: TrainConfig,
    checkpoint: str,
    export_dir: str,
    classes_file: str,
    extra: Mapping[str, str],
    export_to_tpu: bool = False,
) -> str:
    """Returns the path of a new SavedModel, in a folder of `export_dir` named after the time.

    Args:
      run: Config of the run.
      checkpoint: Path of the checkpoint to export.
      export_dir: Folder or URI.
      classes_file: Path of the class names, one per line, in label order.
      extra: Paths of files to copy into assets.extra/, by their names there.
      export_to_tpu: Add a second MetaGraph, for TPUs.
    """
    with tempfile.TemporaryDirectory() as scratch:
        estimator = tpu.TPUEstimator(
            make_serving_model_fn(run, classes_file),
            config=tpu.RunConfig(model_dir=scratch),
            use_tpu=False,
            export_to_tpu=export_to_tpu,
            export_saved_model_api_version=2,  # version 2: the model_fn itself places parts on the TPU
        )
        receiver = make_serving_input_receiver_fn(run.input)
        return os.fsdecode(estimator.export_saved_model(export_dir, receiver, dict(extra), checkpoint_path=checkpoint))


def make_serving_model_fn(run: TrainConfig, classes_file: str) -> Callable[..., Any]:
    """Returns the model_fn(features, labels, mode, params, config) of an export, for TPUEstimator.

    Its signature for clients, serving_default, returns what classifier.classified() does; a second one,
    classifier.LOGITS, returns the logits, the input of softmax or sigmoid, for evaluation.

    Args:
      run: Config of the run.
      classes_file: Path of the class names, one per line, in label order; becomes an asset of the SavedModel.
    """
    model_fn = make_model_fn(run)

    def serving_model_fn(
        features: Mapping[str, tf.Tensor], labels: Any, mode: str, params: Mapping[str, Any], config: Any
    ) -> Any:
        spec = (_on_tpu if params["use_tpu"] else _here)(model_fn, features, params, config)
        outputs = classified(spec.predictions["probabilities"], run.label_type, names_table(classes_file))
        output = tf.estimator.export.PredictOutput
        return v1.estimator.tpu.TPUEstimatorSpec(
            ModeKeys.PREDICT,
            predictions=outputs,
            export_outputs={
                "serving_default": output(outputs),
                LOGITS: output({LOGITS: spec.predictions["logits"]}),
            },
        )

    return serving_model_fn


def _here(
    model_fn: Callable[..., Any], features: Mapping[str, tf.Tensor], params: Mapping[str, Any], config: Any
) -> Any:
    return model_fn(features, None, ModeKeys.PREDICT, params, config)


def _on_tpu(
    model_fn: Callable[..., Any], features: Mapping[str, tf.Tensor], params: Mapping[str, Any], config: Any
) -> Any:
    """Returns the spec whose predictions are computed on one of the TPU's cores, which may differ from call to call."""
    # A private API, although TPUEstimator's documentation of export_saved_model_api_version refers to it.
    from tensorflow_estimator.python.estimator.tpu.tpu_estimator import model_fn_inference_on_tpu

    return model_fn_inference_on_tpu(model_fn, features, config=config, params=params)
