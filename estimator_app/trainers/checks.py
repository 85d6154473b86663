"""Code that all trainers share: initial weights, and checks of checkpoints, datasets and evaluations.

TrainConfig ──make_weighted_model()──▶ keras.Model ──named_weights()──▶ {"0_kernel": …, "36_kernel": …}
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from estimator_app.config import TrainConfig
from estimator_app.model.keras_library import plain_variable, set_random_seed
from estimator_app.model.layer_names import freeze, variables_of
from estimator_app.model.metrics import Metrics
from estimator_app.model.networks import find_network, make_model
from estimator_app.model_dir.checkpoints import VARIABLE_SUFFIX, check_fits
from estimator_app.runtime import files
from tpu_input import Manifest
from tpu_input.dataset_format.label_kinds import label_kind
from tpu_input.dataset_format.record_spec import parse_record
from tpu_input.datasets import DatasetLike, as_manifest, version_with
from tpu_input.storage.patterns import is_pattern

if TYPE_CHECKING:
    import tensorflow as tf


def read_dataset(config: TrainConfig, dataset: DatasetLike | None = None) -> Manifest:
    """Returns the manifest of a run's dataset, in the version that the run has; or of another dataset for its model.

    Args:
      config: Config of the run; with `record`, the dataset is other programs' TFRecords.
      dataset: Another dataset, of the same kind; None for config.dataset.

    Raises:
      ValueError: There is no such dataset.
    """
    if config.record and (dataset is None or (isinstance(dataset, str) and is_pattern(dataset))):
        return read_shards(dataset or config.dataset, config.record, config.classes)
    if dataset is not None:
        return as_manifest(dataset)
    manifest = version_with(as_manifest(config.dataset), config.fingerprint)
    return manifest.held_out(config.hold_out) if config.hold_out else manifest


def read_shards(dataset: DatasetLike, record: str, classes: int | Sequence[str]) -> Manifest:
    """Returns the manifest of other programs' TFRecords.

    Args:
      dataset: Glob of the shards, or train=GLOB,validation=GLOB.
      record: Format of their records; see TrainConfig.
      classes: Names of the classes in label order, or their number.

    Raises:
      ValueError: It is not a glob, no file matches, or the records have another format.
    """
    from tpu_input.storage.foreign_shards import manifest_from_shards, shard_patterns

    if not isinstance(dataset, str) or not is_pattern(dataset):
        raise ValueError(
            f"with --record, the dataset is a glob of shards such as 'gs://bucket/train-*', got {dataset!r}"
        )
    return manifest_from_shards(shard_patterns(dataset), parse_record(record), classes)


def make_weighted_model(config: TrainConfig, initial: Mapping[str, Any] | None = None) -> Any:
    """Returns the run's keras.Model with its initial weights, which are the same in all trainers.

    Args:
      config: Config of the run.
      initial: Arrays by the name of the variable, as of trainers/starting_weights.py; other variables, or all if it is
        None, have the values of their initializers.

    Raises:
      ValueError: config.freeze fits no layer of the network, or all of them.
    """
    set_random_seed(config.input.seed)
    network = find_network(config.network, config.input.mean, config.input.std)
    model = make_model(network, config.input.image_size, len(config.classes), config.precision)
    if initial:
        for name, (variable, _) in variables_of(model).items():
            if name in initial:
                variable.assign(initial[name])
    if config.freeze:
        freeze(model, config.freeze)
    return model


def named_weights(model: Any) -> dict[str, tf.Variable]:
    """Returns the tf.Variables of a keras.Model, by number and kind, such as "36_kernel".

    Keras' own layer names are not stable: they count the layers made before in the same process.
    """
    variables = [*model.trainable_weights, *model.non_trainable_weights]
    kinds = [variable.name.rpartition("/")[2].partition(":")[0] for variable in variables]
    return {
        f"{number}_{kind}": plain_variable(variable)
        for number, (kind, variable) in enumerate(zip(kinds, variables, strict=True))
    }


def check_weights(path: str, weights: Mapping[str, tf.Variable], config: TrainConfig, kind: str = "weights") -> None:
    """Checks that a checkpoint has the variables of named_weights().

    Args:
      path: Of the checkpoint.
      weights: What named_weights() returned.
      config: Config of the run.
      kind: Which of the checkpoint's are loaded, "weights" or "ema".

    Raises:
      ValueError: The checkpoint is of another network.
    """
    needed = {f"{kind}/{name}{VARIABLE_SUFFIX}": list(variable.shape) for name, variable in weights.items()}
    check_fits(path, needed, config.network, len(config.classes))


def nan_loss_error(step: int, config: TrainConfig) -> ValueError:
    """Returns the exception for a loss of training or evaluation that is NaN or infinite after `step`."""
    rate = config.schedule.learning_rate(step - 1.0)
    return ValueError(
        f"the loss is NaN or infinite at step {step}, with a learning rate of {rate:.3g} (its peak is "
        f"{config.learning_rate:.3g}); use a smaller --learning_rate and another --model_dir"
    )


def check_evaluable(manifest: Manifest, config: TrainConfig) -> None:
    """Checks that a dataset has the model's classes, and examples in config.split.

    Raises:
      ValueError: It has other classes, or that split has no examples or lacks a shard.
    """
    check_label_type(manifest, config)
    if manifest.classes != config.classes:
        raise ValueError(f"{manifest.path!r} has classes {manifest.classes}, but the model needs {config.classes}")
    check_split(manifest, config.split)


def check_label_type(manifest: Manifest, config: TrainConfig) -> None:
    """Raises ValueError if the examples of a dataset have several labels and the model's have one, or vice versa."""
    if manifest.label_type != config.label_type:
        raise ValueError(
            f"the images of {manifest.path!r} have {manifest.label_kind.phrase}, but the model needs "
            f"{label_kind(config.label_type).phrase}"
        )


def counted(results: Mapping[str, Any], manifest: Manifest, config: TrainConfig) -> Metrics:
    """Returns the Metrics of an evaluation, after a check that it has counted every example once.

    Args:
      results: Values by name, as from metrics.results(), and "global_step".
      manifest: Of the dataset.
      config: Config of the run; its split was evaluated.

    Raises:
      ValueError: It has counted more or fewer examples, there are none, or the loss is NaN or infinite. The training
        loss cannot show NaN weights that the last step before the evaluation has caused.
    """
    metrics, promised = Metrics.of(results, config.split), num_examples(manifest, config.split)
    if metrics.num_examples != promised:
        raise ValueError(
            f"evaluation counted {metrics.num_examples} examples of split {config.split!r}, but the manifest states "
            f"{promised}; find the damage with: jpeg2tpu verify {manifest.path}"
        )
    if not math.isfinite(metrics.loss):
        raise nan_loss_error(metrics.step, config)
    return metrics


def check_split(manifest: Manifest, split: str) -> int:
    """Checks that a split can be read to its end, before any of it is; returns its number of examples.

    Raises:
      ValueError: The split has no examples, or one of its shards is gone.
    """
    total, shards = num_examples(manifest, split), {shard.name for shard in manifest.split(split).shards}
    if missing := sorted(shards - {*files.entries(manifest.path)}):
        advice = f"write them again with: jpeg2tpu verify --repair {shlex.quote(manifest.path)}"
        raise ValueError(
            f"{len(missing)} of the {len(shards)} shards of split {split!r} of {manifest.path!r} are missing, such as "
            f"{missing[0]!r}; {advice if manifest.fingerprint else 'copy them again'}"
        )
    return total


def num_examples(manifest: Manifest, split: str) -> int:
    """Returns the number of examples of a split.

    Raises:
      ValueError: The split has no examples.
    """
    if not manifest.split(split).num_examples:
        raise ValueError(f"split {split!r} of {manifest.path!r} has no examples")
    return manifest.split(split).num_examples


def is_mixed(config: TrainConfig) -> bool:
    """Returns whether the labels of a step are shares of the classes, of images with one label each."""
    return bool(config.mixup or config.cutmix) and config.task.has_one_answer


def mixed(
    images: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor, step: tf.Tensor, config: TrainConfig
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the batch mixed as --mixup and --cutmix say, the same in both trainers on TensorFlow; else as it is."""
    from estimator_app.model.mixing import mix

    if not (config.mixup or config.cutmix):
        return images, labels, weight
    seed = (config.input.seed, step)
    return mix(images, labels, weight, len(config.classes), seed, config.mixup, config.cutmix)


def class_weights(config: TrainConfig) -> tuple[float, ...]:
    """Returns the weight in the loss of an example of each class; () for equal weights."""
    if config.class_weights != "balanced":
        return ()
    return config.task.balanced(config.class_counts, config.train_examples)
