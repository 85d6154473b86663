"""A trained keras.Model as a SavedModel, the same from all trainers.

    image_bytes ──tpu_input──▶ pixels ──network──▶ logits, probabilities ──▶ label ──classes.txt──▶ class

It is written by tf.saved_model.save(), as objects with functions: converters to TFLite and ONNX take a single function
of it, without the decoders and the class names. They cannot do that with the graph that TPUEstimator exports.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from estimator_app.config import TrainConfig
from estimator_app.runtime import files
from estimator_app.saved_model.classifier import LOGITS, PIXELS, classified, names_table
from estimator_app.trainers.checks import make_weighted_model, named_weights
from estimator_app.trainers.starting_weights import weights_of_run
from tpu_input import from_infeed
from tpu_input.command_line.wording import first_line

if TYPE_CHECKING:
    import tensorflow as tf


def make_served_model(run: TrainConfig) -> Any:
    """Returns the run's keras.Model, whose weights are to be loaded, for save_model().

    It computes in float32 whatever the run's precision is: neither TFLite's converter nor tf2onnx takes bfloat16.
    """
    return make_weighted_model(dataclasses.replace(run, precision="float32"))


def save_arrays(
    run: TrainConfig,
    checkpoint: str,
    path: str,
    classes_file: str,
    extra: Mapping[str, str],
    export_to_tpu: bool = False,
) -> None:
    """Writes a SavedModel of a checkpoint of --trainer=jax, whose network Keras makes on TensorFlow.

    Arguments are as in tpu_estimator.export.save(), except that export_to_tpu is not supported.

    Raises:
      ValueError: The checkpoint is of another network, the network cannot be made on TensorFlow, or export_to_tpu is
        True.
    """
    if export_to_tpu:
        raise ValueError("--export_to_tpu needs a run with --trainer=tpu_estimator")
    run = dataclasses.replace(run, precision="float32")
    weights = weights_of_run(run, checkpoint, "export")
    try:
        model = make_weighted_model(run, weights)
    except ValueError:
        raise
    except Exception as error:  # of operations of JAX, of almost any type
        raise ValueError(
            f"network {run.network!r} cannot be built by Keras on TensorFlow ({first_line(error)}); leave out "
            "--format=saved_model"
        ) from error
    save_model(run, model, path, classes_file, extra)


def save_model(run: TrainConfig, model: Any, path: str, classes_file: str, extra: Mapping[str, str]) -> None:
    """Writes a SavedModel.

    Its signatures are serving_default, whose outputs are classifier.classified()'s, classifier.LOGITS and
    classifier.PIXELS.

    Args:
      run: Config of the run.
      model: From make_served_model(), with trained weights.
      path: Folder or URI that is empty.
      classes_file: Path of the class names, one per line, in label order; becomes an asset of the SavedModel.
      extra: Paths of files to copy into assets.extra/, by their names there.
    """
    import tensorflow as tf

    from estimator_app.model.losses import probabilities
    from estimator_app.model.networks import apply
    from tpu_input.predict import decode_files

    module = tf.Module()
    module.weights, module.names = named_weights(model), names_table(classes_file)
    arrived, side = dataclasses.replace(run.input, layout="NHWC"), run.input.image_size
    encoded = tf.TensorSpec([None], tf.string, name="image_bytes")
    decoded = tf.TensorSpec([None, side, side, 3], tf.float32, name=PIXELS)

    @tf.function(input_signature=[decoded], autograph=False)  # type: ignore[untyped-decorator]
    def run_pixels(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = apply(model, from_infeed(pixels, arrived), training=False)
        return {"probabilities": probabilities(outputs, run.task), LOGITS: outputs}

    # A function of its own, so that the decoders are built and stored once for both signatures that have them.
    @tf.function(input_signature=[encoded], autograph=False)  # type: ignore[untyped-decorator]
    def run_files(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs: dict[str, tf.Tensor] = run_pixels(tf.cast(decode_files(image_bytes, arrived), tf.float32))
        return outputs

    @tf.function(input_signature=[encoded], autograph=False)  # type: ignore[untyped-decorator]
    def logits(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return {LOGITS: run_files(image_bytes)[LOGITS]}

    @tf.function(input_signature=[encoded], autograph=False)  # type: ignore[untyped-decorator]
    def classify(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return classified(run_files(image_bytes)["probabilities"], run.task, module.names)

    signatures = {"serving_default": classify, LOGITS: logits, PIXELS: run_pixels}
    tf.saved_model.save(module, path, signatures)
    files.make_folder(f"{path}/assets.extra")
    for name, source in extra.items():
        files.copy(source, f"{path}/assets.extra/{name}")
