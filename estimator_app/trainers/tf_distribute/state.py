"""State of a run under tf.distribute, on a TPU's cores, all GPUs of this machine, or one device.

    TrainConfig + model_dir + cluster ──make_state()──▶ TrainState

    {"image", "weight"}, label of every replica ──steps()──▶ mean loss; updates the variables
                                                └──sums()───▶ metrics.batch_sums() of all replicas together

The network, loss, optimizer, sums and initial values are the same as in tpu_estimator/model_fn.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model.keras_library import plain_variable
from estimator_app.model.losses import cross_entropy, loss_and_gradients, weight_and_replicas
from estimator_app.model.networks import apply
from estimator_app.model.optimizers import averaging, clip, make_optimizer
from estimator_app.model.tensorflow_metrics import PER_EXAMPLE, batch_sums
from estimator_app.model_dir.checkpoints import MAX_TO_KEEP, NAME
from estimator_app.trainers.checks import (
    check_weights,
    class_weights,
    is_mixed,
    make_weighted_model,
    mixed,
    named_weights,
)
from estimator_app.trainers.interruption import Moved
from estimator_app.trainers.progress import READY
from tpu_input import from_infeed, params_from_context

_connected: set[str] = set()  # address of the TPU; global, as TensorFlow's connection is per process


@dataclasses.dataclass(frozen=True)
class TrainState:
    """The variables of a run, and the functions that train and evaluate them.

    Attributes:
      config: Config of the run.
      model_dir: Folder or URI of the checkpoints and event files.
      cluster: TPUClusterResolver; None for this machine.
      strategy: The tf.distribute.Strategy.
      global_step: Variable of int64, the number of steps done.
      weights: Variables of the network, from named_weights(); a checkpoint must match them.
      averages: Moving averages of the weights, by the same names; {} without --ema.
      checkpoint: tf.train.Checkpoint of global_step, weights, the optimizer's variables and averages.
      step: (features, label) of one replica -> its share of the loss; updates the variables.
      evaluation_step: (features, label) of one replica -> metrics.batch_sums() of it.
      steps: tf.function (iterator, number of steps) -> (loss of the last step, time at which its batch was ready
        or NaN).
      sums: tf.function (batch) -> metrics.batch_sums() of all replicas together.
    """

    config: TrainConfig
    model_dir: str
    cluster: Any
    strategy: Any
    global_step: tf.Variable
    weights: dict[str, tf.Variable]
    averages: dict[str, tf.Variable]
    checkpoint: tf.train.Checkpoint
    step: Callable[..., tf.Tensor]
    evaluation_step: Callable[..., dict[str, tf.Tensor]]
    steps: Any
    sums: Any

    @property
    def num_hosts(self) -> int:
        """Number of machines that feed a step."""
        return self.cluster.get_tpu_system_metadata().num_hosts if self.cluster else 1

    def batches(self, input_fn: Callable[..., tf.data.Dataset], batch_size: int) -> Iterator[Any]:
        """Returns an iterator over distributed batches, one part per replica in every step.

        Args:
          input_fn: From tpu_input.
          batch_size: Examples per step over all replicas.

        Raises:
          ValueError: batch_size is not divisible by the number of replicas.
        """
        replicas = self.strategy.num_replicas_in_sync
        if batch_size % replicas:
            raise ValueError(f"batch_size must be a multiple of the number of replicas, {replicas}, got {batch_size}")
        distributed = self.strategy.distribute_datasets_from_function(
            lambda context: input_fn(params_from_context(context, batch_size))
        )
        iterator: Iterator[Any] = iter(distributed)
        return iterator

    def manager(self) -> tf.train.CheckpointManager:
        """Returns the CheckpointManager that writes the run's checkpoints and removes old ones.

        With --eval=watch, prune_checkpoints() removes them, as a checkpoint must stay until it is evaluated.
        """
        most = None if self.config.eval == "watch" else MAX_TO_KEEP
        return tf.train.CheckpointManager(self.checkpoint, self.model_dir, most, checkpoint_name=NAME)

    def restore(self, path: str) -> Any:
        """Loads a checkpoint, and returns TensorFlow's load status object.

        Raises:
          ValueError: The checkpoint is of another network.
        """
        check_weights(path, self.weights, self.config)
        return self.checkpoint.restore(path)

    def restore_evaluated(self, path: str) -> None:
        """Loads the weights of a checkpoint that are evaluated: with --ema, their averages.

        Raises:
          ValueError: The checkpoint is of another network.
        """
        self.restore(path).expect_partial()
        for name, average in self.averages.items():
            self.weights[name].assign(average)


def make_strategy(cluster: Any = None) -> Any:
    """Returns the tf.distribute.Strategy for the available hardware.

    Args:
      cluster: TPUClusterResolver; None for all GPUs of this machine, or its CPU if it has none.

    Raises:
      Moved: This process is already connected to a TPU at another address.
    """
    if cluster:
        _connect(cluster)
        tf.tpu.experimental.initialize_tpu_system(cluster)
        return tf.distribute.TPUStrategy(cluster)
    several = len(tf.config.list_logical_devices("GPU")) > 1
    return tf.distribute.MirroredStrategy() if several else tf.distribute.get_strategy()


def _connect(cluster: Any) -> None:
    """Connects this process to a TPU, also to one that was lost and is back at the same address.

    TensorFlow cannot disconnect from an address within a process.
    """
    if any(address != cluster.master() for address in _connected):
        raise Moved(f"the address of the TPU has changed to {cluster.master()}")
    _connected.add(cluster.master())
    tf.config.experimental_connect_to_cluster(cluster)


def make_state(
    config: TrainConfig,
    model_dir: str,
    cluster: Any = None,
    initial: Mapping[str, Any] | None = None,
    strategy: Any = None,
) -> TrainState:
    """Returns the state of a run, with the initial values of its variables.

    Args:
      config: Config of the run.
      model_dir: Folder or URI of the checkpoints.
      cluster: TPUClusterResolver; None runs on this machine.
      initial: Initial weights, see make_weighted_model().
      strategy: A tf.distribute.Strategy; None for make_strategy(cluster).
    """

    def rate() -> tf.Tensor:
        return config.schedule.learning_rate(tf.cast(step, tf.float32), xp=tf)

    strategy = strategy or make_strategy(cluster)
    with strategy.scope():
        model = make_weighted_model(config, initial)
        step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")
        optimizer = make_optimizer(config.optimizer, rate, config.weight_decay)
    weights = named_weights(model)
    with strategy.scope():
        averages = {name: tf.Variable(weight, trainable=False) for name, weight in weights.items() if config.ema}
    more = {"ema": averages} if config.ema else {}
    checkpoint = tf.train.Checkpoint(global_step=step, weights=weights, optimizer=optimizer, **more)
    average = _make_average(weights, averages, config.ema) if config.ema else None
    replica = _make_step(model, optimizer, config, step, average)
    evaluation = _make_evaluation_step(model, config)
    functions = (replica, evaluation, _make_steps(strategy, replica, step), _make_sums(strategy, evaluation))
    return TrainState(config, model_dir, cluster, strategy, step, weights, averages, checkpoint, *functions)


def _make_average(
    weights: dict[str, tf.Variable], averages: dict[str, tf.Variable], decay: float
) -> Callable[[tf.Tensor], None]:
    """Returns the function of a replica that moves all averages toward the weights, given the steps done before."""

    def update(strategy: Any, share: Any) -> None:
        for name, average in averages.items():
            strategy.extended.update(average, moved if average.dtype.is_floating else copied, (weights[name], share))

    def moved(average: tf.Variable, weight: tf.Tensor, share: tf.Tensor) -> tf.Operation:
        return average.assign_sub((1 - share) * (average - weight))

    def copied(average: tf.Variable, weight: tf.Tensor, share: tf.Tensor) -> tf.Operation:
        return average.assign(weight)  # such as the count of a Normalization layer

    return lambda step: tf.distribute.get_replica_context().merge_call(update, (averaging(decay, step),))


def _make_step(
    model: Any,
    optimizer: Any,
    config: TrainConfig,
    step: tf.Variable,
    average: Callable[[tf.Tensor], None] | None,
) -> Callable[..., tf.Tensor]:
    variables = [plain_variable(variable) for variable in model.trainable_weights]

    def replica(features: dict[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        images, weight, count = from_infeed(features["image"], config.input), features["weight"], tf.identity(step)
        images, labels, weight = mixed(images, labels, weight, count, config)
        sums = total(weight_and_replicas(weight))
        share, gradients = loss_and_gradients(
            model, images, labels, weight, sums, config.label_smoothing, class_weights(config), is_mixed(config)
        )
        if config.clip_norm:
            gradients = clip(gradients, variables, config.clip_norm, total)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))  # also sums the gradients over the replicas
        if average:
            average(count)
        return share

    def total(value: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)

    return replica


def _make_steps(strategy: Any, replica: Callable[..., tf.Tensor], global_step: tf.Variable) -> Any:
    def reduced(values: Any, how: Any) -> tf.Tensor:
        return strategy.reduce(how, values, axis=None)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def steps(iterator: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def step(iteration: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            features, labels = next(iterator)
            ready = reduced(features.pop(READY), tf.distribute.ReduceOp.MEAN) if READY in features else unknown
            loss = reduced(strategy.run(replica, args=(features, labels)), tf.distribute.ReduceOp.SUM)
            global_step.assign_add(1)
            return iteration + 1, loss, ready

        unknown = tf.constant(math.nan, tf.float64)
        start = (tf.constant(0), tf.constant(math.nan), unknown)
        _, loss, ready = tf.while_loop(lambda iteration, *_: iteration < count, step, start)
        return loss, ready

    return steps


def _make_evaluation_step(model: Any, config: TrainConfig) -> Callable[..., dict[str, tf.Tensor]]:
    def replica(features: dict[str, tf.Tensor], labels: tf.Tensor) -> dict[str, tf.Tensor]:
        logits = apply(model, from_infeed(features["image"], config.input), training=False)
        return batch_sums(logits, labels, cross_entropy(logits, labels), features["weight"])

    return replica


def _make_sums(strategy: Any, replica: Callable[..., dict[str, tf.Tensor]]) -> Any:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def sums(batch: Any) -> dict[str, tf.Tensor]:
        replica_sums = strategy.run(replica, args=batch)
        return {
            name: strategy.gather(value, axis=0)
            if name in PER_EXAMPLE
            else strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)
            for name, value in replica_sums.items()
        }

    return sums


def replica_names(state: TrainState) -> str:
    """Returns the number and the kind of the devices that train, such as "2 GPU"."""
    kind = "TPU" if state.cluster else "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return f"{state.strategy.num_replicas_in_sync} {kind}"
