"""The same datasets without TPUEstimator: for Keras, JAX and any other loop, with tf.distribute, and as NumPy arrays.

folder or URI ──load()──▶ tf.data.Dataset of (image, label, weight)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_input.command_line.dataclass_options import checked, checks_arguments, field_types, suggestion
from tpu_input.config import InputConfig
from tpu_input.dataset_format.label_kinds import ONE
from tpu_input.dataset_format.records import Manifest
from tpu_input.datasets import DatasetLike, as_manifest, eval_steps
from tpu_input.evaluate import make_eval_input_fn
from tpu_input.pipeline.batches import PARALLEL_LAYOUTS
from tpu_input.pipeline.device import from_infeed
from tpu_input.pipeline.hosts import Host, check_params, own_share
from tpu_input.pipeline.reading import no_autograph
from tpu_input.train import make_train_input_fn


@checks_arguments
def load(
    dataset: DatasetLike,
    split: str = "train",
    *,
    batch_size: int = 128,
    training: bool | None = None,
    epochs: int | None = None,
    start_step: int = 0,
    static_batch: bool = False,
    normalize: bool = False,
    class_weight: Mapping[int, float] | None = None,
    host: int = 0,
    num_hosts: int = 1,
    **options: Any,
) -> tf.data.Dataset:
    """Returns a dataset of batches (image, label, weight), as Keras takes them.

    image is [N, image_size, image_size, 3] uint8, of another dtype or order of axes where the options say so, or
    normalized float32; with the option `features`, it is {"image": image, NAME: …}. label is [N] int32 in [0, number of
    classes), or [N, classes] float32 of zeros and ones in a dataset of several labels per image. weight is [N] float32:
    1, and 0 for what does not count.

    Training is endless, and its cardinality is tf.data.INFINITE_CARDINALITY; N is always batch_size. Keras' fit() needs
    `steps_per_epoch` with it: Keras 2 raises an error without, Keras 3 never ends its first epoch. With `epochs`, it
    ends after as many passes over the split. One pass follows the other without a gap, also within a batch, so that it
    has ceil(epochs * examples / (batch_size * num_hosts)) batches; the places of the last batch that are left over have
    weight 0. Each example therefore counts exactly `epochs` times. Each iteration over the dataset begins at start_step
    again, with the same examples and crops: set `epochs` here to the number of passes of the whole training.

    Evaluation is one pass: every example once, in the same order every time, and the last batch is smaller. With
    `static_batch`, it is padded with examples of weight 0 instead.

    Args:
      dataset: Folder or URI of the dataset, or its Manifest.
      split: Name of the split.
      batch_size: Examples in a batch, of this host.
      training: Whether to train, with random crops in random order, or to evaluate. None trains on the split "train",
        and evaluates all others.
      epochs: Passes over the split of a training that ends; None is endless.
      start_step: Step at which training begins, to resume one; the examples of earlier steps are not read.
      static_batch: Whether evaluation fills its last batch, so that the shape of each batch is known, and all hosts
        have equally many.
      normalize: Whether the image is float32, (image - mean) / std, on this host. uint8 images take a
        quarter of the bytes and less work here; then use tpu_input.keras.Normalize or from_infeed() on the device.
      class_weight: What the weight of an example is multiplied by, for each number of a class; other classes keep 1.
        As in fit(), where Keras 3 refuses it for a dataset with weights. Padding keeps weight 0.
      host: Number of this host, from 0.
      num_hosts: Number of hosts, which share each step of training and the examples of evaluation.
      options: Fields of InputConfig by name; where they are not given, image_size and crop_area fit the dataset's
        images, and mean and std are taken from its split "train".

    Raises:
      ValueError: There is no such dataset, split or option, or a value is invalid.
    """
    manifest, types = as_manifest(dataset), field_types(InputConfig)
    for name in options.keys() - types.keys():
        others = inspect.signature(load).parameters.keys() - {"options"}
        raise ValueError(f"there is no option {name!r}{suggestion(name, [*types, *others])}")
    config = InputConfig.of(manifest, **options)
    feeder = Host(host, num_hosts)
    params = {"batch_size": batch_size, "host": feeder.index, "num_hosts": feeder.num_hosts}
    check_params(params)
    weights = None if class_weight is None else _weights_by_class(manifest, class_weight)
    if training or (training is None and split == "train"):
        batches, steps = _training(manifest, config, split, params, epochs, start_step)
        return _triples(batches, config, normalize, weights).apply(tf.data.experimental.assert_cardinality(steps))
    if epochs is not None or start_step:
        raise ValueError(
            f"epochs and start_step are for training, and evaluation of {split!r} is one pass; leave them out, or set "
            "training=True"
        )
    if not static_batch and config.layout != "NHWC" and not normalize:
        raise ValueError(f"layout {config.layout!r} is for batches of one size; set static_batch=True for evaluation")
    num_examples = len(own_share(manifest.split(split).num_examples, feeder))
    steps = -(-num_examples // batch_size)
    if static_batch:
        steps = eval_steps(manifest, split, batch_size * num_hosts, num_hosts)
    batches = make_eval_input_fn(manifest, config, split)(params).take(steps)
    batches = _triples(batches, config, normalize, weights)

    @no_autograph
    def unpadded(step: tf.Tensor, batch: Any) -> Any:
        return tf.nest.map_structure(lambda values: values[: num_examples - step * batch_size], batch)

    if not static_batch and num_examples % batch_size:
        batches = batches.enumerate().map(unpadded)
    return batches.apply(tf.data.experimental.assert_cardinality(steps))


def _weights_by_class(manifest: Manifest, class_weight: Mapping[int, float]) -> npt.NDArray[np.float32]:
    """Returns the weight of each class, [classes] float32."""
    num_classes = len(manifest.classes)
    if manifest.label_kind is not ONE:
        raise ValueError(
            f"class_weight is for images of one class, and the images of {manifest.path!r} have "
            f"{manifest.label_kind.phrase}; weigh the loss of each class instead"
        )
    if unknown := [number for number in class_weight if number not in range(num_classes)]:
        raise ValueError(f"class_weight has {unknown[0]!r}; the classes have the numbers 0 to {num_classes - 1}")
    weights = np.ones(num_classes, np.float32)
    for number, weight in class_weight.items():
        weight = checked(weight, float, f"class_weight of class {number}")
        if not 0 <= weight < math.inf:
            raise ValueError(f"class_weight of class {number} must be a number of at least 0, got {weight!r}")
        weights[number] = weight
    return weights


def _training(
    manifest: Manifest, config: InputConfig, split: str, params: dict[str, int], epochs: int | None, start_step: int
) -> tuple[tf.data.Dataset, int]:
    """Returns (batches of the input_fn, whose weights are 0 behind the last epoch; their number)."""
    if epochs is None:
        return make_train_input_fn(manifest, config, split, start_step)(params), tf.data.INFINITE_CARDINALITY
    host, batch_size = Host.from_params(params), params["batch_size"]
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, or None for an endless dataset, got {epochs!r}")
    if not config.deterministic or config.service:
        raise ValueError(
            "epochs needs deterministic=True and no service, which do not keep the order where an epoch ends; "
            "leave epochs out and count steps"
        )
    if config.cache and host.num_hosts > 1:
        raise ValueError(
            "epochs with a cache needs a single host, as every host takes its own share of the examples; "
            "leave epochs out and count steps"
        )
    lanes, num_examples = host.lanes(batch_size), epochs * manifest.split(split).num_examples
    steps = -(-num_examples // lanes) * config.echo
    if start_step >= steps:
        raise ValueError(f"start_step must be below the {steps} steps of epochs={epochs}, got {start_step!r}")
    batches = make_train_input_fn(manifest, config, split, start_step, steps)(params)
    positions = tf.constant(host.positions(batch_size), tf.int64)

    @no_autograph
    def counted(
        step: tf.Tensor, element: tuple[dict[str, tf.Tensor], tf.Tensor]
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        features, label = element
        counts = step // config.echo * lanes + positions < num_examples
        return features | {"weight": features["weight"] * tf.cast(counts, tf.float32)}, label

    return batches.enumerate(start_step).map(counted), steps - start_step


def _triples(
    batches: tf.data.Dataset, config: InputConfig, normalize: bool, weights: npt.NDArray[np.float32] | None
) -> tf.data.Dataset:
    """Returns the batches of an input_fn as (image, label, weight); `weights` are of the classes."""

    @no_autograph
    def triple(features: dict[str, tf.Tensor], label: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
        inputs = {name: values for name, values in features.items() if name != "weight"}
        if normalize:
            inputs["image"] = from_infeed(inputs["image"], config)
        weight = features["weight"] if weights is None else features["weight"] * tf.gather(weights, label)
        return inputs if config.features else inputs["image"], label, weight

    return batches.map(triple, num_parallel_calls=PARALLEL_LAYOUTS if normalize else None)


@checks_arguments
def params_from_context(context: Any, global_batch_size: int) -> dict[str, int]:
    """Returns the params of an input_fn inside strategy.distribute_datasets_from_function.

        strategy.distribute_datasets_from_function(lambda context: input_fn(params_from_context(context, 1024)))

    Args:
      context: The tf.distribute.InputContext.
      global_batch_size: Examples per step over all replicas.

    Raises:
      ValueError: The batch is not divisible by the number of replicas.
    """
    return {
        "batch_size": context.get_per_replica_batch_size(global_batch_size),
        "host": context.input_pipeline_id,
        "num_hosts": context.num_input_pipelines,
        "batches_per_step": context.num_replicas_in_sync // context.num_input_pipelines,
    }


def as_numpy(dataset: tf.data.Dataset) -> Iterator[Any]:
    """Returns an iterator of a dataset's elements as NumPy arrays, e.g. ({"image", "weight"}, label) for JAX."""
    elements: Iterator[Any] = dataset.as_numpy_iterator()
    return elements
