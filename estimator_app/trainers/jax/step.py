"""One step of training, and one of evaluation, as pure functions of a state and a batch.

    TrainState, batch, mixing ──train_step()──▶ TrainState, mean loss
    TrainState, batch ──eval_step()──▶ of every example: loss, predicted class, rank of its label

    batch   image [N, H, W, 3] of InputConfig.dtype in [0, 255]
            label [N] int32; with several labels per image, [N, K] float32 of zeros and ones
            weight [N] float32: 1 for an example, 0 for padding

A batch may lie on any number of devices, which each have a part of its examples: XLA then adds the sums of all devices
(GSPMD, Xu et al. 2021). So the mean loss, the norm of the gradients and the statistics of batch normalization are
computed over the whole batch, whatever the number of devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from estimator_app.config import TrainConfig
from estimator_app.trainers.checks import class_weights, is_mixed
from estimator_app.trainers.jax.mixing import mixed
from estimator_app.trainers.jax.optimizer import make_optimizer
from tpu_input import from_infeed

Array = Any  # a jax.Array, or a tracer of one
Batch = Mapping[str, Array]


class TrainState(NamedTuple):
    """All that a step changes, and a checkpoint holds.

    Attributes:
      step: Number of steps done, int32.
      weights: Trained variables, float32, by LAYER/KIND, such as "stage1_conv1/kernel".
      fixed: Other variables by name: moving statistics, frozen weights, and the state of random layers.
      optimizer: State of the optimizer.
      averages: Moving averages of all variables by name; {} without --ema.
    """

    step: Array
    weights: dict[str, Array]
    fixed: dict[str, Array]
    optimizer: Any
    averages: dict[str, Array]

    @property
    def evaluated(self) -> dict[str, Array]:
        """The variables that are evaluated and exported, by name: with --ema, their averages."""
        return self.averages or {**self.weights, **self.fixed}


@dataclasses.dataclass(frozen=True)
class Variables:
    """The variables of a keras.Model by name, in the order in which Keras takes them.

    Attributes:
      model: The keras.Model.
      weights: Names of model.trainable_variables.
      fixed: Names of model.non_trainable_variables.
    """

    model: Any
    weights: tuple[str, ...]
    fixed: tuple[str, ...]

    def logits(self, values: Mapping[str, Array], images: Array) -> Array:
        """Returns the logits of normalized images, [N, K] float32, as in evaluation."""
        variables = ([values[name] for name in names] for names in (self.weights, self.fixed))
        logits, _ = self.model.stateless_call(*variables, images, training=False)
        return logits


def make_train_step(variables: Variables, config: TrainConfig) -> Callable[..., tuple[TrainState, Array]]:
    """Returns (state, batch, mixing) -> (the state after a step, the mean loss of the batch before it).

    The loss is the cross-entropy's mean over the examples of the batch, by their weight, plus the losses of the
    network's own regularizers.
    """
    optimizer = make_optimizer(config)

    def train_step(state: TrainState, batch: Batch, mixing: Mapping[str, Array]) -> tuple[TrainState, Array]:
        images = from_infeed(batch["image"], config.input)
        images, labels, weight = mixed(images, batch["label"], batch["weight"], mixing, len(config.classes))

        def mean_loss(weights: dict[str, Array]) -> tuple[Array, list[Array]]:
            arguments = [weights[name] for name in variables.weights], [state.fixed[name] for name in variables.fixed]
            logits, fixed, added = variables.model.stateless_call(*arguments, images, training=True, return_losses=True)
            losses = cross_entropy(logits, labels, config.label_smoothing, class_weights(config), is_mixed(config))
            total = jnp.sum(weight)
            mean = jnp.sum(losses * weight) / jnp.where(total > 0, total, 1)
            return mean + sum(jnp.sum(loss.astype(jnp.float32)) for loss in added), fixed

        (loss, fixed), gradients = jax.value_and_grad(mean_loss, has_aux=True)(state.weights)
        updates, moments = optimizer.update(gradients, state.optimizer, state.weights)
        weights = optax.apply_updates(state.weights, updates)
        statistics = dict(zip(variables.fixed, fixed, strict=True))
        averages = moved(state.averages, {**weights, **statistics}, config.ema, state.step)
        return TrainState(state.step + 1, weights, statistics, moments, averages), loss

    return train_step


def make_eval_step(variables: Variables, config: TrainConfig) -> Callable[..., dict[str, Array]]:
    """Returns (the values of all variables by name, batch) -> values of every example, by name.

    They are "loss" [N] in nats, "label" and "weight" of the batch, and with one label per image "predicted" [N] int32
    and "rank" [N] int32: the number of classes whose logit is not below the label's, at least 1; with several
    labels per image "logits" [N, K].
    """

    def eval_step(values: Mapping[str, Array], batch: Batch) -> dict[str, Array]:
        logits, labels = variables.logits(values, from_infeed(batch["image"], config.input)), batch["label"]
        results = {"loss": cross_entropy(logits, labels), "label": labels, "weight": batch["weight"]}
        if labels.ndim == 2:
            return results | {"logits": logits}
        label_logits = jnp.take_along_axis(logits, labels[:, None], axis=1)
        rank = jnp.sum(~(logits < label_logits), axis=1)  # NaN counts as larger
        return results | {"predicted": jnp.argmax(logits, axis=1), "rank": rank}

    return eval_step


def cross_entropy(
    logits: Array,
    labels: Array,
    label_smoothing: float = 0.0,
    class_weights: tuple[float, ...] = (),
    mixed: bool = False,
) -> Array:
    """Returns every example's cross-entropy in nats, [N] float32; arguments are as of model.losses.cross_entropy()."""
    weights = jnp.asarray(class_weights, jnp.float32) if class_weights else jnp.float32(1)
    if labels.ndim == 2 and not mixed:  # several labels per image
        smooth = (1 - label_smoothing) * labels + label_smoothing / 2
        # -log(sigmoid(x)) = softplus(-x)
        losses = weights * smooth * jax.nn.softplus(-logits) + (1 - smooth) * jax.nn.softplus(logits)
        return jnp.mean(losses, axis=1)
    by_class = -jax.nn.log_softmax(logits)
    # Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7.
    smooth = (1 - label_smoothing) * by_class + label_smoothing * jnp.mean(by_class, axis=1, keepdims=True)
    shares = labels if mixed else jax.nn.one_hot(labels, logits.shape[1])
    return jnp.sum(shares * smooth * weights, axis=1)


def moved(averages: dict[str, Array], values: Mapping[str, Array], decay: float, step: Array) -> dict[str, Array]:
    """Returns the moving averages after a step (Polyak and Juditsky 1992); {} stays {}.

    The share of the old average rises from 0.1 to `decay`, so that the average forgets the initial weights.

    Args:
      averages: Before the step, by name.
      values: Of the variables after it.
      decay: TrainConfig.ema.
      step: Number of steps done before it.
    """
    steps = step.astype(jnp.float32)
    share = jnp.minimum(decay, (1 + steps) / (10 + steps))

    def average(old: Array, value: Array) -> Array:
        is_number = jnp.issubdtype(value.dtype, jnp.floating)  # a count, or a seed, has no average
        return old - (1 - share) * (old - value) if is_number else value

    return {name: average(old, values[name]) for name, old in averages.items()}
