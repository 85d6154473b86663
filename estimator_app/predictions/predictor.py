"""The model that predicts a dataset: an export, or a checkpoint, which can also give the output of a layer.

[N] files' bytes ──Predictor.run()──▶ N rows: probabilities, then features, float32; or a ValueError

A checkpoint's network can run on a TPU: this machine decodes the files, and each core takes its part of a batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from estimator_app.config import TrainConfig
from estimator_app.model.keras_library import uses_tensorflow
from estimator_app.model_dir.checkpoints import main_file
from estimator_app.model_dir.exports import STABLEHLO_NAME, WEIGHTS, program_name
from estimator_app.model_dir.run_files import CONFIG_NAME, read_named
from estimator_app.runtime import files
from estimator_app.saved_model.classifier import CLASSES_NAME, Array, load_classifier, run_on_files
from estimator_app.saved_model.find import find_checkpoint, read_origin
from estimator_app.saved_model.stablehlo import StableHloClassifier
from tpu_input import from_infeed

if TYPE_CHECKING:
    import tensorflow as tf


class Predictor(NamedTuple):
    """A model.

    Attributes:
      config: Config of its run.
      classes: Names of the classes, in label order.
      digest: Hex digest that changes with the model.
      num_features: Number of features of each image; 0 for none.
      run: Function that returns a row of each file, or a ValueError for a file that is not an image.
    """

    config: TrainConfig
    classes: tuple[str, ...]
    digest: str
    num_features: int
    run: Callable[[Sequence[bytes]], list[Array | ValueError]]

    @property
    def is_jax(self) -> bool:
        """Whether JAX computes it, without TensorFlow."""
        return isinstance(self.run, StableHloClassifier)


def load_export(export_dir: str) -> Predictor:
    """Returns the model of a SavedModel; see load_classifier() for the path.

    Raises:
      ValueError: There is no SavedModel, or it is of another program.
    """
    classifier = load_classifier(export_dir)
    config, _ = read_origin(classifier.path)
    # The index of the variables has their checksums.
    names = ("saved_model.pb", "variables/variables.index", f"assets/{CLASSES_NAME}")
    if program_name(classifier.path) == STABLEHLO_NAME:
        names = (STABLEHLO_NAME, f"{WEIGHTS}.npz", f"assets/{CLASSES_NAME}")
    digest = _digest(f"{classifier.path}/{name}" for name in names)
    return Predictor(config, classifier.classes, digest, 0, classifier)


def load_run(
    model_dir: str,
    step: int | None = None,
    network: str | None = None,
    features: str | None = None,
    batch_size: int = 32,
    cluster: Any = None,
) -> Predictor:
    """Returns the model of a checkpoint.

    Args:
      model_dir: Folder or URI of the run.
      step: Step of the checkpoint; None for the last.
      network: "package.module:function" of a run with a custom network.
      features: Name of the layer whose output is wanted; None for none.
      batch_size: Largest number of files that run() is given.
      cluster: TPUClusterResolver; None runs on this machine.

    Raises:
      ValueError: There is no such run, checkpoint or layer, or batch_size is not divisible by the TPU's cores.
    """
    config = read_named(model_dir, network)
    checkpoint = find_checkpoint(model_dir, step)
    digest = _digest([main_file(checkpoint), f"{model_dir}/{CONFIG_NAME}"])
    if not uses_tensorflow(config.trainer):
        from estimator_app.trainers.jax.export import load_checkpoint

        if features is not None:
            raise ValueError("--trainer=jax has no --features yet; leave it out")
        return Predictor(config, config.classes, digest, 0, load_checkpoint(config, checkpoint))
    import tensorflow as tf

    from estimator_app.model.losses import probabilities
    from estimator_app.trainers.checks import make_weighted_model
    from estimator_app.trainers.starting_weights import weights_of_run
    from estimator_app.trainers.tf_distribute.state import make_strategy
    from tpu_input.predict import decode_files

    weights = weights_of_run(config, checkpoint, f"--model_dir={model_dir}")
    strategy = make_strategy(cluster) if cluster else tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync
    if batch_size % replicas:
        raise ValueError(f"--batch_size must be a multiple of the TPU's {replicas} cores, got {batch_size}")
    with strategy.scope():
        model = make_weighted_model(config, weights)
        outputs = [model.output]
        num_features = 0
        if features is not None:
            layer = _layer(model, features)
            outputs.append(tf.keras.layers.Flatten(dtype="float32")(layer.output))
            num_features = outputs[1].shape[-1]
            if num_features is None:
                raise ValueError(f"--features={features}: the size of the layer's output depends on the image")
        full_model = tf.keras.Model(model.input, outputs)
    arrived = dataclasses.replace(config.input, layout="NHWC")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)  # type: ignore[untyped-decorator]
    def decoded(encoded: tf.Tensor) -> tf.Tensor:
        return decode_files(encoded, arrived)

    def run_replica(images: tf.Tensor) -> tf.Tensor:
        results = full_model(from_infeed(images, arrived), training=False)
        logits, *others = results if isinstance(results, (list, tuple)) else [results]
        return tf.concat([probabilities(logits, config.task), *others], axis=1)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def rows(images: Any) -> tf.Tensor:
        return strategy.gather(strategy.run(run_replica, args=(images,)), axis=0)

    def run_batch(encoded: tf.Tensor) -> Array:
        count = len(encoded)
        images = tf.pad(decoded(encoded), [[0, batch_size - count], [0, 0], [0, 0], [0, 0]])  # one shape, compiled once
        parts = tf.split(images, replicas)
        values = strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )
        return rows(values).numpy()[:count]  # type: ignore[no-any-return]

    def run(encoded: Sequence[bytes]) -> list[Array | ValueError]:
        return run_on_files(encoded, run_batch)

    return Predictor(config, config.classes, digest, num_features, run)


def _layer(model: Any, name: str) -> Any:
    """Returns a layer of the model by its name; see layer_names.py.

    Raises:
      ValueError: There is none of this name, or its output cannot be had.
    """
    import tensorflow as tf

    from estimator_app.model.layer_names import every_layer

    layers = dict(every_layer(model))
    if name not in layers:
        raise ValueError(f"--features={name} is not a layer of the network; it has {', '.join(layers)}")
    with contextlib.suppress(ValueError, AttributeError):  # a layer inside another model, or one that is applied twice
        output = layers[name].output
        tf.keras.Model(model.input, output)
        if hasattr(output, "shape"):
            return layers[name]
    raise ValueError(f"--features={name}: the layer is inside another model, or has several outputs; use another")


def _digest(paths: Iterable[str]) -> str:
    """Returns the hex digest of the contents of some files; those that are missing count as such."""
    total = hashlib.sha256()
    for path in paths:
        content = files.read_bytes(path) if files.exists(path) else b""
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()
