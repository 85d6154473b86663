"""Export of a checkpoint as StableHLO, for CPU, CUDA and TPU, which runs without Keras and without this package.

MODEL_DIR/model.ckpt-5000.npz ──save()──▶ EXPORT_DIR/1763596800/
    model.stablehlo     jax.export: weights by name, pixels [N, H, W, 3] float32 in [0, 255] → logits, probabilities
    weights.npz         the weights by name
    assets/classes.txt  names in label order
    assets.extra/       config.json, metrics.json: the run's options, the step, its metrics

jax.export.deserialize(program).call(weights, pixels) runs it: https://docs.jax.dev/en/latest/export/export.html
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from estimator_app.config import TrainConfig
from estimator_app.model_dir.array_files import write_arrays
from estimator_app.model_dir.exports import STABLEHLO_NAME, WEIGHTS
from estimator_app.runtime import files
from estimator_app.saved_model.stablehlo import StableHloClassifier
from estimator_app.trainers.jax.checkpoints import read_evaluated
from estimator_app.trainers.jax.state import fed_input, make_variables
from tpu_input import from_infeed

PLATFORMS = ("cpu", "cuda", "tpu")


def save(
    run: TrainConfig,
    checkpoint: str,
    path: str,
    classes_file: str,
    extra: Mapping[str, str],
    export_to_tpu: bool = False,
) -> None:
    """Writes an export of a checkpoint.

    It computes in float32 whatever the run's precision is. Arguments are as in tpu_estimator.export.save(), except that
    export_to_tpu is not supported: every export runs on a TPU.

    Raises:
      ValueError: The checkpoint is of another network or trainer, or export_to_tpu is True.
    """
    if export_to_tpu:
        raise ValueError("--export_to_tpu is for SavedModels; an export of --trainer=jax runs on a TPU as it is")
    classify, weights = _classify(run, checkpoint)
    side = run.input.image_size
    arguments = (
        {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in weights.items()},
        jax.ShapeDtypeStruct(jax_export.symbolic_shape(f"n, {side}, {side}, 3"), np.float32),
    )
    program = jax_export.export(jax.jit(classify), platforms=PLATFORMS)(*arguments)
    for folder in ("assets", "assets.extra"):
        files.make_folder(f"{path}/{folder}")
    write_arrays(f"{path}/{WEIGHTS}", weights)
    files.copy(classes_file, f"{path}/assets/{classes_file.rpartition('/')[2]}")
    for name, source in extra.items():
        files.copy(source, f"{path}/assets.extra/{name}")
    files.write(f"{path}/{STABLEHLO_NAME}", program.serialize())


def load_checkpoint(run: TrainConfig, checkpoint: str) -> StableHloClassifier:
    """Returns the classifier of a checkpoint, as of an export of it.

    Raises:
      ValueError: The checkpoint is of another network or trainer.
    """
    classify, weights = _classify(run, checkpoint)
    on_device, compiled = jax.device_put(weights), jax.jit(classify)
    return StableHloClassifier(checkpoint, run.classes, run, lambda pixels: compiled(on_device, pixels))


def _classify(run: TrainConfig, checkpoint: str) -> tuple[Callable[..., dict[str, Any]], dict[str, Any]]:
    """Returns the function of an export, (weights by name, pixels) -> {"logits", "probabilities"}, and the weights."""
    config = dataclasses.replace(run, precision="float32", input=fed_input(run.input))
    variables = make_variables(config)
    weights, _ = read_evaluated(config, variables, checkpoint)

    def classify(weights: dict[str, Any], pixels: Any) -> dict[str, Any]:
        logits = variables.logits(weights, from_infeed(pixels, config.input))
        return {"logits": logits, "probabilities": getattr(jax.nn, config.task.activation)(logits)}

    return classify, weights
