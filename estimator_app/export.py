"""Export of a checkpoint as a SavedModel, or as StableHLO: trainers/jax/export.py.

    MODEL_DIR/model.ckpt-5000 ──export_model()──▶ EXPORT_DIR/1763596800/
        saved_model.pb, variables/                  "image_bytes" → "probabilities", "label", "class"
        assets/classes.txt                          names in label order
        assets.extra/config.json, metrics.json      origin: the run's options, the step, its metrics
        assets.extra/tf_serving_warmup_requests     requests that TensorFlow Serving runs at startup

Exports are written atomically: to a folder whose name begins with temp-, which is renamed when it is complete. In a
bucket, where renaming a folder is not atomic because it copies file by file, saved_model.pb is written last: an export
that has this file is complete.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any

from estimator_app.config import TrainConfig
from estimator_app.model.keras_library import load_keras
from estimator_app.model_dir.checkpoints import latest_checkpoint, step_of
from estimator_app.model_dir.exports import ExportFormat, check_export_dir, new_number, program_name
from estimator_app.model_dir.run_files import CONFIG_NAME, METRICS_NAME, read_named
from estimator_app.runtime import files
from estimator_app.saved_model.assets import WARMUP_NAME, write_warmup
from estimator_app.saved_model.classifier import CLASSES_NAME
from estimator_app.saved_model.find import find_checkpoint
from estimator_app.trainers.registry import find_saver, own_format
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.command_line.paths import absolute


@checks_arguments
def export(
    model_dir: str,
    export_dir: str | None = None,
    *,
    step: int | None = None,
    checkpoint: str | None = None,
    network: str | None = None,
    export_to_tpu: bool = False,
    format: ExportFormat | None = None,
) -> str:
    """Exports a checkpoint of a run, and returns the path of the export.

    Args:
      model_dir: Folder or URI of the training run.
      export_dir: Folder or URI for SavedModels; None for MODEL_DIR/export.
      step: Step of a checkpoint in model_dir; None for the last.
      checkpoint: Path of any checkpoint of the same network, instead of a step.
      network: "package.module:function" of a run with a custom network, which is imported only if it is named.
      export_to_tpu: Add a graph for serving on a TPU, tagged "serve" and "tpu".
      format: "saved_model", or "stablehlo" for a run of the trainer jax; None for the trainer's own, which is the only
        one of TensorFlow's trainers. A SavedModel of a run of jax needs TensorFlow, and a process that has not imported
        Keras on JAX.

    Raises:
      ValueError: There is no such run or checkpoint, its trainer does not export in that format, or the export would be
        written through a symbolic link.
      ImportError: TensorFlow or JAX is missing, or Keras was imported on the other.
    """
    if format == "saved_model":
        load_keras("tf_distribute")  # reading the config of a run of jax would choose the other Keras
    model_dir, export_dir = absolute(model_dir), export_dir and absolute(export_dir)
    if export_dir is None and os.path.islink(f"{model_dir}/export"):
        raise ValueError(
            f"{model_dir!r} holds a symbolic link, 'export', through which the export would be written elsewhere; "
            "remove it, or name the folder for exports with --export_dir"
        )
    config = read_named(model_dir, network)
    path = find_checkpoint(model_dir, step, checkpoint and absolute(checkpoint))
    where = export_dir or f"{model_dir}/export"
    return export_model(config, model_dir, where, path, export_to_tpu=export_to_tpu, format=format)


def export_model(
    config: TrainConfig,
    model_dir: str,
    export_dir: str,
    checkpoint: str | None = None,
    metrics: Mapping[str, Any] | None = None,
    export_to_tpu: bool = False,
    format: ExportFormat | None = None,
) -> str:
    """Returns the path of a new export, in a folder of `export_dir` named after the time.

    The export is computed on this machine's CPU, even if the run was trained on a TPU.

    Args:
      config: Config of the run.
      model_dir: Folder or URI of the run.
      export_dir: Folder or URI.
      checkpoint: Path of a checkpoint of the run; None for the last one.
      metrics: Metrics of the checkpoint if it was evaluated; they are stored in the export.
      export_to_tpu: Add a second MetaGraph, tagged "serve" and "tpu", whose network runs on a TPU.
      format: As of export().

    Raises:
      ValueError: The checkpoint is of another network, the run's trainer cannot export to a TPU or in that format, or
        `export_dir` holds a link through which exports would be written elsewhere.
      ImportError: As export().
    """
    format = format or own_format(config.trainer)
    save = find_saver(config.trainer, format)
    check_export_dir(export_dir)
    checkpoint = checkpoint or latest_checkpoint(model_dir)
    with tempfile.TemporaryDirectory() as scratch:
        classes_file = _write(scratch, CLASSES_NAME, _lines(config.classes))
        extra = {
            CONFIG_NAME: f"{model_dir}/{CONFIG_NAME}",
            METRICS_NAME: _write(scratch, METRICS_NAME, _origin(str(checkpoint), metrics)),
        }
        if format == "saved_model":  # TensorFlow Serving takes these
            write_warmup(f"{scratch}/{WARMUP_NAME}", _samples(config.input.image_size))
            extra[WARMUP_NAME] = f"{scratch}/{WARMUP_NAME}"
        in_bucket, number = files.is_in_bucket(export_dir), new_number(export_dir)
        path = f"{scratch if in_bucket else export_dir}/temp-{number}"
        files.make_folder(path)  # before it is filled, which takes a while: another command takes the next number
        save(config, str(checkpoint), path, classes_file, extra, export_to_tpu)
        if in_bucket:
            return copy_export(path, export_dir)
        files.rename(path, f"{export_dir}/{number}")
        return f"{export_dir}/{number}"


def copy_export(source: str, export_dir: str) -> str:
    """Copies an export to another folder under a new number, and returns the path of the copy.

    Args:
      source: Path of an export.
      export_dir: Folder or URI.
    """
    path = f"{export_dir}/{new_number(export_dir)}"
    files.copy_folder(source, path, last=program_name(source))
    return path


def _write(folder: str, name: str, text: str) -> str:
    with open(f"{folder}/{name}", "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    return file.name


def _lines(classes: tuple[str, ...]) -> str:
    """Returns the text with exactly one line per class; line breaks within a name become spaces."""
    return "".join(" ".join(name.splitlines()) + "\n" for name in classes)


def _origin(checkpoint: str, metrics: Mapping[str, Any] | None) -> str:
    return json.dumps({"step": step_of(checkpoint)} | dict(metrics or {}), indent=1, ensure_ascii=False) + "\n"


def _samples(image_size: int) -> list[list[bytes]]:
    """Returns one sample request for each of the two decoders, JPEG and PNG."""
    import tensorflow as tf

    image = tf.zeros([image_size, image_size, 3], tf.uint8)
    return [[tf.io.encode_jpeg(image).numpy()], [tf.io.encode_png(image).numpy()]]
