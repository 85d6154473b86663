"""Optimizers, which apply gradients that are summed over all replicas; and the schedule of the learning rate.

    (gradient, variable) ──weight decay, of kernels only──▶ LARS' rate of the layer ──▶ TensorFlow's update op
    step 0 ──linear──▶ peak at warmup_steps ──half a cosine, a parabola or steps──▶ 0, or peak / 1000, at decay_steps

They subclass tf.compat.v1.train.Optimizer, the only kind that CrossShardOptimizer accepts (it refuses Keras'
optimizers). Every release of TensorFlow has it, and it works in graphs and in functions under tf.distribute. The
arithmetic of the update is done by TensorFlow's kernels. The subclasses override `_resource_apply_dense`, the hook for
one variable's update: when it is called, the gradients are summed over replicas and dense.
Biases and batch normalisation's parameters, the variables of rank 1, are excluded from weight decay (Goyal et al. 2017,
"Accurate, Large Minibatch SGD", section 5.1) and of LARS' rates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

# Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 5.1, warms up for 5 of 90 epochs.
WARMUP_SHARE = 5 / 90
# The same section divides the rate by 10 after 30, 60 and 80 of 90 epochs.
STEPS_AT = (30 / 90, 60 / 90, 80 / 90)
DECAYS = ("cosine", "polynomial", "steps")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Learning rate as a function of the step.

    Attributes:
      peak: Rate at the end of warm-up.
      warmup_steps: Step whose rate is the peak; the rate increases linearly to it, from peak / (warmup_steps + 1) at
        step 0, so that no step has a rate of 0.
      decay_steps: Step at which the decay ends. It does not depend on the end of the run, so that extending a run does
        not change the rates.
      decay: "cosine" falls to 0, after Loshchilov & Hutter 2017, "SGDR"; "polynomial" falls to 0 as the square of the
        remaining steps, after You et al. 2017, "Large Batch Training of Convolutional Networks", section 5; "steps"
        divides by 10 at STEPS_AT.
    """

    peak: float
    warmup_steps: int
    decay_steps: int
    decay: str = "cosine"

    def __post_init__(self) -> None:
        if not 0 < self.peak < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.peak!r}")
        if self.decay_steps < 1:
            raise ValueError(f"decay_steps must be at least 1, got {self.decay_steps!r}")
        if not 0 <= self.warmup_steps < self.decay_steps:
            raise ValueError(f"warmup_steps must be in [0, decay_steps={self.decay_steps}), got {self.warmup_steps!r}")

    def learning_rate(self, step: Any, xp: Any = np) -> Any:
        """Returns the rate of a step.

        Args:
          step: 0-based, a float: a number, an array or a tensor.
          xp: Module to compute with: numpy, or tensorflow inside a graph.
        """
        warmup = xp.minimum(1.0, (step + 1.0) / (self.warmup_steps + 1.0))
        fall = {"cosine": self._cosine, "polynomial": self._polynomial, "steps": self._steps}[self.decay]
        return self.peak * warmup * fall(step, xp)

    def _cosine(self, step: Any, xp: Any) -> Any:
        return 0.5 * (1.0 + xp.cos(math.pi * self._fallen(step, xp)))

    def _polynomial(self, step: Any, xp: Any) -> Any:
        return (1.0 - self._fallen(step, xp)) ** 2

    def _fallen(self, step: Any, xp: Any) -> Any:
        """Returns the share of the decay that is done, in [0, 1]."""
        falling = (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps)
        return xp.minimum(1.0, xp.maximum(0.0, falling))

    def _steps(self, step: Any, xp: Any) -> Any:
        factor = 1.0
        for share in STEPS_AT:
            factor *= xp.where(step < round(share * self.decay_steps), 1.0, 0.1)
        return factor


v1 = tf.compat.v1

MOMENTUM = 0.9  # He et al. 2016, "Deep Residual Learning", section 3.4
TRUST = 0.001  # You et al. 2017, "Large Batch Training of Convolutional Networks", section 4


def dense(gradient: Any, variable: tf.Variable) -> Any:
    """Returns a gradient as a dense tensor of the variable's shape; None, no gradient, is returned unchanged.

    An embedding's gradient is a tf.IndexedSlices of the rows that were looked up. TensorFlow would update only those
    rows, in separate sparse methods, which apply neither weight decay nor LARS' rates, and would not update the
    momentum of the other rows.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])


class _Dense(v1.train.Optimizer):  # type: ignore[misc, name-defined]
    """Base class that makes all gradients dense, and updates no variable before all gradients are computed.

    In TPUEstimator's graph, nothing else orders the two: AdamW's decay could change a kernel before or after the
    forward pass reads it, depending on the scheduling of threads.
    """

    def apply_gradients(self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None) -> Any:
        pairs = [(dense(gradient, variable), variable) for gradient, variable in grads_and_vars]
        there = [tf.identity(gradient) for gradient, _ in pairs if gradient is not None]
        with tf.control_dependencies(there):
            return super().apply_gradients(pairs, global_step, name)


class Momentum(_Dense, v1.train.MomentumOptimizer):  # type: ignore[misc, name-defined]
    """Stochastic gradient descent with Nesterov's momentum and L2 regularisation."""

    def __init__(self, rate: Any, weight_decay: float) -> None:
        super().__init__(rate, MOMENTUM, use_nesterov=True)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        return super()._resource_apply_dense(grad + self._weight_decay * var if _is_kernel(var) else grad, var)


class Lars(_Dense, v1.train.MomentumOptimizer):  # type: ignore[misc, name-defined]
    """LARS, layer-wise adaptive rate scaling: algorithm 1 of You et al. 2017.

    TensorFlow had an implementation in tf.contrib, which was removed.
    """

    def __init__(self, rate: Any, weight_decay: float) -> None:
        super().__init__(rate, MOMENTUM)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        local = tf.constant(1.0)
        if _is_kernel(var):
            size, steepness = tf.norm(var), tf.norm(grad)
            ratio = tf.math.divide_no_nan(TRUST * size, steepness + self._weight_decay * size)
            local = tf.where(ratio > 0, ratio, 1.0)  # a ratio of 0 would never change a kernel of zeros
            grad = grad + self._weight_decay * var
        # As in the paper, the velocity includes the rate. The op of Keras' SGD does so; MomentumOptimizer's does not.
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=var.handle,
            accum=self.get_slot(var, "momentum").handle,
            lr=self._learning_rate_tensor * local,
            grad=grad,
            momentum=self._momentum_tensor,
        )


class AdamW(_Dense, v1.train.AdamOptimizer):  # type: ignore[misc, name-defined]
    """Adam with decoupled weight decay, multiplied by the rate, like tf.keras.optimizers.AdamW."""

    def __init__(self, rate: Any, weight_decay: float) -> None:
        super().__init__(rate, epsilon=1e-7)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        if not _is_kernel(var):
            return super()._resource_apply_dense(grad, var)
        decayed = var.assign_sub(self._lr_t * self._weight_decay * var, read_value=False)
        with tf.control_dependencies([decayed] if decayed is not None else []):
            return super()._resource_apply_dense(grad, var)


def _is_kernel(variable: tf.Variable) -> bool:
    return bool(variable.shape.rank > 1)


@dataclasses.dataclass(frozen=True)
class Kind:
    """An optimizer and its default hyperparameters.

    Attributes:
      make: Function (rate, weight_decay) -> the optimizer.
      rate: Function batch size -> peak learning rate.
      weight_decay: Share of a kernel that each step subtracts, times the learning rate.
      decay: One of DECAYS.
      warmup_share: Function batch size -> share of the schedule's steps that are warm-up.
    """

    make: Callable[[Any, float], Any]
    rate: Callable[[int], float]
    weight_decay: float
    decay: str = "cosine"
    warmup_share: Callable[[int], float] = lambda batch_size: WARMUP_SHARE


def _in_proportion(rate: float, batch_size: int) -> Callable[[int], float]:
    """Returns the function batch size -> rate of the linear scaling rule: Goyal et al. 2017, section 2.1."""
    return lambda other: rate * other / batch_size


def _lars_rate(batch_size: int) -> float:
    """Returns the peak learning rate of the LARS recipe, which is not proportional to the batch size."""
    return 25.0 if batch_size <= 16384 else 34.0 if batch_size <= 32768 else 41.0


def _lars_warmup_share(batch_size: int) -> float:
    """Returns the share of warm-up steps of the LARS recipe."""
    return (5 if batch_size <= 16384 else 12 if batch_size <= 32768 else 16) / 90


OPTIMIZERS = {
    # Goyal et al. 2017, section 5.1.
    "momentum": Kind(Momentum, _in_proportion(0.1, 256), 1e-4),
    # tensorflow/tpu's ResNet-50 in 90 epochs, models/official/resnet: the rate, its decay and its warm-up of 5, 12 or
    # 16 epochs from poly_rate_schedule() in lars_util.py, weight decay from configs/resnet_config.py. It has values
    # for batches up to 16,384, for 32,768 and for more; here, batch sizes between the first two use those of 32,768.
    "lars": Kind(Lars, _lars_rate, 1e-4, "polynomial", _lars_warmup_share),
    # Touvron et al. 2021, "Training data-efficient image transformers", table 9.
    "adamw": Kind(AdamW, _in_proportion(5e-4, 512), 0.05),
}


def make_optimizer(name: str, rate: Any, weight_decay: float) -> Any:
    """Returns the tf.compat.v1.train.Optimizer of that name.

    Args:
      name: One of OPTIMIZERS.
      rate: Learning rate of the step: a tensor in a graph, or a function that returns one.
      weight_decay: See Kind.
    """
    return OPTIMIZERS[name].make(rate, weight_decay)
