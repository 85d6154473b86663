"""Evaluation of any checkpoint or export on any split, with the metrics of training; writes no files.

MODEL_DIR/model.ckpt-5000 + shards ──evaluate_checkpoint()──▶ Metrics
EXPORT_DIR/1763596800     + shards ──evaluate_export()──────▶ Metrics, from the same files that a client would send
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from typing import Any, NamedTuple

from estimator_app.config import TrainConfig
from estimator_app.model.metrics import Metrics
from estimator_app.model.scores import Scores
from estimator_app.model_dir.run_files import read_named
from estimator_app.predictions.record_batches import run_on_records
from estimator_app.runtime.host_memory import check_batch
from estimator_app.runtime.tpu import Tpu
from estimator_app.saved_model.classifier import Classifier, load_classifier
from estimator_app.saved_model.find import find_checkpoint, read_origin
from estimator_app.saved_model.stablehlo import StableHloClassifier
from estimator_app.trainers.checks import check_label_type, check_split, read_dataset
from estimator_app.trainers.registry import find_trainer
from tpu_input import Manifest
from tpu_input.command_line import activity
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.command_line.paths import absolute
from tpu_input.datasets import DatasetLike


class Evaluation(NamedTuple):
    """Result of evaluate().

    Attributes:
      metrics: Metrics over every example of the split.
      classes: Class names in label order.
    """

    metrics: Metrics
    classes: tuple[str, ...]


@checks_arguments
def evaluate(
    model_dir: str | None = None,
    export_dir: str | None = None,
    *,
    dataset: DatasetLike | None = None,
    split: str | None = None,
    eval_batch_size: int | None = None,
    step: int | None = None,
    checkpoint: str | None = None,
    network: str | None = None,
    tpu: Tpu | None = None,
) -> Evaluation:
    """Returns the metrics of a checkpoint or an export over every example of a split, each exactly once.

    Args:
      model_dir: Folder or URI of the training run whose checkpoint is evaluated.
      export_dir: SavedModel to evaluate instead, or a folder of them, from which the newest is taken.
      dataset: Manifest, folder or URI of a dataset with the run's classes; None for the run's own.
      split: Split to read; None for the run's.
      eval_batch_size: Images per step; None for the run's.
      step: Step of a checkpoint in model_dir; None for the last.
      checkpoint: Path of any checkpoint of the same network, instead of a step.
      network: "package.module:function" of a run with a custom network, which is imported only if it is named.
      tpu: The TPU; None runs on this machine.

    Raises:
      ValueError: There is no such run, checkpoint or export, or it does not fit the dataset.
    """
    if (model_dir is None) == (export_dir is None):
        raise ValueError(f"evaluate needs model_dir or export_dir, got {'neither' if model_dir is None else 'both'}")
    model_dir = absolute(model_dir) if model_dir else ""
    classifier = None if export_dir is None else load_classifier(absolute(export_dir))
    config = read_origin(classifier.path)[0] if classifier else read_named(model_dir, network)
    config = dataclasses.replace(
        config,
        split=config.split if split is None else split,
        eval_batch_size=config.eval_batch_size if eval_batch_size is None else eval_batch_size,
    )
    manifest = read_dataset(config, dataset)
    evaluating = activity(f"evaluating on {manifest.split(config.split).num_examples:,} images of {config.split}")
    if classifier:
        with evaluating:
            metrics = evaluate_export(classifier, manifest, config.split, config.eval_batch_size)
        return Evaluation(metrics, classifier.classes)
    path = find_checkpoint(model_dir, step, checkpoint and absolute(checkpoint))
    with evaluating:
        return Evaluation(evaluate_checkpoint(config, manifest, path, tpu and tpu.connect()), config.classes)


def evaluate_checkpoint(config: TrainConfig, manifest: Manifest, checkpoint: str, cluster: Any = None) -> Metrics:
    """Returns metrics over every example of config.split, exactly once.

    Args:
      config: Of the run.
      manifest: Of any dataset with the run's classes.
      checkpoint: Path from find_checkpoint().
      cluster: TPUClusterResolver; None runs on this machine's processor.

    Raises:
      ValueError: The dataset has other classes, the split does not have as many examples as its manifest says, or a
        batch would not fit into memory.
    """
    if cluster is None:  # a TPU's hosts use their own memory, not this machine's
        check_batch("--eval_batch_size", config.eval_batch_size, config.input.image_size)
    trainer = find_trainer(config.trainer)
    # All trainers write an event file per evaluation. In the model_dir, it would appear in TensorBoard's curves.
    with tempfile.TemporaryDirectory() as scratch:
        return trainer.evaluate(trainer.make(config, scratch, cluster), manifest, config, checkpoint=checkpoint)


def evaluate_export(classifier: Classifier, manifest: Manifest, split: str, batch_size: int) -> Metrics:
    """Returns metrics over every example of a split, exactly once.

    Args:
      classifier: From load_classifier().
      manifest: Of any dataset with the classifier's classes.
      split: Split to read.
      batch_size: Files per batch.

    Raises:
      ValueError: The dataset has other classes, a record cannot be read (the message names it), a batch would not fit
        into memory, or the loss is NaN or infinite.
    """
    if manifest.classes != classifier.classes:
        raise ValueError(f"{manifest.path!r} has classes {manifest.classes}, but the export needs {classifier.classes}")
    config, step = read_origin(classifier.path)
    check_label_type(manifest, config)
    batch_size = min(batch_size, max(1, manifest.split(split).num_examples))
    check_batch("--eval_batch_size", batch_size, config.input.image_size)
    check_split(manifest, split)
    scores, with_tensorflow = Scores(len(manifest.classes)), not isinstance(classifier, StableHloClassifier)
    for batch, logits in run_on_records(classifier.logits, manifest, split, batch_size, None, with_tensorflow):
        scores.add_logits(logits, batch.labels)
    metrics = Metrics.of(scores.results() | {"global_step": step}, split)
    if not math.isfinite(metrics.loss):
        raise ValueError(
            f"the loss of {classifier.path!r} is NaN or infinite on split {split!r}: its training diverged; "
            "export an earlier --step, or train with a smaller --learning_rate"
        )
    return metrics
