"""Export of a checkpoint of tf.distribute as a SavedModel; trainers/saving.py has its signatures."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.trainers.checks import check_weights, named_weights
from estimator_app.trainers.saving import make_served_model, save_model


def save(
    run: TrainConfig,
    checkpoint: str,
    path: str,
    classes_file: str,
    extra: Mapping[str, str],
    export_to_tpu: bool = False,
) -> None:
    """Writes a SavedModel of a checkpoint.

    Arguments are as in tpu_estimator.export.save(), except that export_to_tpu is not supported.

    Raises:
      ValueError: The checkpoint is of another network, or export_to_tpu is True.
    """
    if export_to_tpu:
        raise ValueError(
            "--export_to_tpu needs a run with --trainer=tpu_estimator: TensorFlow writes no TPU graph for other runs"
        )
    model = make_served_model(run)
    weights, kind = named_weights(model), "ema" if run.ema else "weights"
    check_weights(checkpoint, weights, run, kind)
    tf.train.Checkpoint(**{kind: weights}).read(checkpoint).expect_partial()
    save_model(run, model, path, classes_file, extra)
