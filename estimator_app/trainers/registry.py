"""Registry of the trainers: TPUEstimator, which ends with TensorFlow 2.15; tf.distribute; and JAX, without TensorFlow.

    "tpu_estimator" | "tf_distribute" | "jax" ──find_trainer()──▶ make, train, evaluate, save, checks
    trainer, format of an export ──find_saver()──▶ save

train.py decides what to do next; a trainer does it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from estimator_app.model.keras_library import load_keras, require_backend, uses_tensorflow
from estimator_app.runtime.tensorflow_startup import require_estimator

if TYPE_CHECKING:
    from estimator_app.config import TrainerName
    from estimator_app.model.metrics import Metrics
    from estimator_app.model_dir.exports import ExportFormat
    from estimator_app.preflight.trainer_checks import TrainerChecks


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The functions of a trainer, as called by train.py and the commands.

    Attributes:
      make: (config, model_dir, cluster, initial=None) -> the state of a run, the first argument of train and evaluate;
        initial weights as of make_weighted_model().
      train: (state, manifest, config, step, last, stop, time_left, saved, on_step) -> columns of history.csv; trains
        from the checkpoint of `step` to the one of `last`.
      evaluate: (state, manifest, config, stop, checkpoint) -> metrics over every example of config.split.
      save: (config, checkpoint, path, classes_file, extra, export_to_tpu) -> None, with an export written there.
      checks: Class of what preflight checks and compiles of a run.
      devices: (state) -> what the run trains on, such as "8 TPU v6 lite of 2 processes"; "" where its options say that.
      running: Context manager around all calls of train and evaluate of a run.
    """

    make: Callable[..., Any]
    train: Callable[..., dict[str, float]]
    evaluate: Callable[..., Metrics]
    save: Callable[..., None]
    checks: type[TrainerChecks]
    devices: Callable[[Any], str] = lambda state: ""
    running: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


def find_trainer(name: TrainerName) -> Trainer:
    """Returns the trainer of that name.

    Raises:
      ImportError: This TensorFlow has no TPUEstimator, Keras or JAX is missing, or this process has imported Keras for
        another trainer.
    """
    require_backend(name)
    return {"jax": _jax, "tf_distribute": _tf_distribute, "tpu_estimator": _tpu_estimator}[name]()


def _jax() -> Trainer:
    from estimator_app.trainers.jax import batches, export, state, tpu_checks, train

    return Trainer(state.make_run, train.train, train.evaluate, export.save, tpu_checks.JaxChecks, batches.device_names)


def _tf_distribute() -> Trainer:
    from estimator_app.trainers.tf_distribute import export, state, tpu_checks, train

    checks = tpu_checks.StrategyChecks
    return Trainer(state.make_state, train.train, train.evaluate, export.save, checks, state.replica_names)


def _tpu_estimator() -> Trainer:
    require_estimator()
    from estimator_app.runtime.tensorflow_private import no_recovery_in_place
    from estimator_app.trainers.tpu_estimator import export, model_fn, tpu_checks, train

    make, checks = model_fn.make_estimator, tpu_checks.EstimatorChecks
    return Trainer(make, train.train, train.evaluate, export.save, checks, running=no_recovery_in_place)


def own_format(trainer: TrainerName) -> ExportFormat:
    """Returns the format in which a trainer exports."""
    return "saved_model" if uses_tensorflow(trainer) else "stablehlo"


def find_saver(trainer: TrainerName, format: ExportFormat) -> Callable[..., None]:
    """Returns the function that writes a checkpoint of a trainer in a format; as Trainer.save.

    Raises:
      ValueError: Runs of that trainer cannot be exported in that format.
      ImportError: As find_trainer(); or TensorFlow is missing.
    """
    if format == own_format(trainer):
        return find_trainer(trainer).save
    if format != "saved_model":
        raise ValueError(f"--format={format} is for runs of --trainer=jax; this run is of --trainer={trainer}")
    load_keras("tf_distribute")
    from estimator_app.trainers.saving import save_arrays

    return save_arrays
