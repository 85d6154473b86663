"""Optimizers: gradients, already summed over all replicas, to steps of the variables; and the learning rate's schedule.

    (gradient, variable) ──weight decay, of kernels alone──▶ LARS' rate of the layer ──▶ TensorFlow's own update
    step 0 ──linear──▶ peak at warmup_steps ──half a cosine, a parabola or steps──▶ 0, or peak / 1000, at decay_steps

They are tf.compat.v1.train.Optimizers, the one kind that CrossShardOptimizer takes (it refuses Keras'); TensorFlow has
it in every release, in graphs and in functions under tf.distribute, and its kernels do the arithmetic. Our part
is in `_resource_apply_dense`, the place meant for it: every caller has summed the gradients by then, and all of them
are dense.
Biases and batch normalisation's parameters, the variables of rank 1, are left out of weight decay (Goyal et al. 2017,
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
      warmup_steps: Step whose rate is the peak; the rates before it climb linearly, from peak / (warmup_steps + 1) at
        step 0, so that no step is without effect.
      decay_steps: Step at which the fall ends. Not the end of the run: one that is extended sees the same rates.
      decay: "cosine" falls to 0, after Loshchilov & Hutter 2017, "SGDR"; "polynomial" falls to 0 as the square of the
        steps that are left, after You et al. 2017, "Large Batch Training of Convolutional Networks", section 5; "steps"
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
          xp: Module that computes with such floats: numpy, or tensorflow inside a graph.
        """
        warmup = xp.minimum(1.0, (step + 1.0) / (self.warmup_steps + 1.0))
        fall = {"cosine": self._cosine, "polynomial": self._polynomial, "steps": self._steps}[self.decay]
        return self.peak * warmup * fall(step, xp)

    def _cosine(self, step: Any, xp: Any) -> Any:
        return 0.5 * (1.0 + xp.cos(math.pi * self._fallen(step, xp)))

    def _polynomial(self, step: Any, xp: Any) -> Any:
        return (1.0 - self._fallen(step, xp)) ** 2

    def _fallen(self, step: Any, xp: Any) -> Any:
        """Returns the share of the fall that is over, in [0, 1]."""
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
    """Returns a gradient as a tensor of the variable's shape; None, which is none, as it is.

    An embedding's gradient comes as tf.IndexedSlices, the rows that were looked up. TensorFlow would update those rows
    alone, in methods of their own, which know nothing of decay and of LARS' rates, and leave the other rows' momentum.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])


class _Dense(v1.train.Optimizer):  # type: ignore[misc, name-defined]
    """Takes any gradient as the dense one that it is, and changes no variable before all gradients are there.

    In TPUEstimator's graph nothing else orders the two: AdamW's decay would be done before the forward pass has read a
    kernel, or after it, as threads come.
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
    """Layer-wise adaptive rates, as algorithm 1 of You et al. 2017 has them.

    TensorFlow had one in tf.contrib and has none now.
    """

    def __init__(self, rate: Any, weight_decay: float) -> None:
        super().__init__(rate, MOMENTUM)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        local = tf.constant(1.0)
        if _is_kernel(var):
            size, steepness = tf.norm(var), tf.norm(grad)
            ratio = tf.math.divide_no_nan(TRUST * size, steepness + self._weight_decay * size)
            local = tf.where(ratio > 0, ratio, 1.0)  # nothing would ever move a kernel of zeros
            grad = grad + self._weight_decay * var
        # The rate is in the velocity, as in the paper: the kernel of Keras' SGD; TensorFlow's own keeps it out.
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=var.handle,
            accum=self.get_slot(var, "momentum").handle,
            lr=self._learning_rate_tensor * local,
            grad=grad,
            momentum=self._momentum_tensor,
        )


class AdamW(_Dense, v1.train.AdamOptimizer):  # type: ignore[misc, name-defined]
    """Adam with decoupled weight decay, times the rate: what tf.keras.optimizers.AdamW does."""

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
    """An optimizer and the recipe to start with.

    Attributes:
      make: (rate, weight_decay) -> the optimizer.
      rate: Batch size -> learning rate at its peak.
      weight_decay: Share of a kernel that each step takes away, times the learning rate.
      decay: One of schedule.DECAYS.
      warmup_share: Batch size -> share of the schedule's steps that warm up.
    """

    make: Callable[[Any, float], Any]
    rate: Callable[[int], float]
    weight_decay: float
    decay: str = "cosine"
    warmup_share: Callable[[int], float] = lambda batch_size: WARMUP_SHARE


def _in_proportion(rate: float, batch_size: int) -> Callable[[int], float]:
    """Returns the rule by which the rate grows with the batch: Goyal et al. 2017, section 2.1."""
    return lambda other: rate * other / batch_size


def _lars_rate(batch_size: int) -> float:
    """Returns the recipe's learning rate, which is in no proportion to the batch."""
    return 25.0 if batch_size <= 16384 else 34.0 if batch_size <= 32768 else 41.0


def _lars_warmup_share(batch_size: int) -> float:
    """Returns the recipe's share."""
    return (5 if batch_size <= 16384 else 12 if batch_size <= 32768 else 16) / 90


OPTIMIZERS = {
    # Goyal et al. 2017, section 5.1.
    "momentum": Kind(Momentum, _in_proportion(0.1, 256), 1e-4),
    # tensorflow/tpu's ResNet-50 in 90 epochs, models/official/resnet: the rate, its fall and its warm-up of 5, 12 or 16
    # epochs from poly_rate_schedule() in lars_util.py, weight decay from configs/resnet_config.py. It has numbers for
    # batches up to 16,384, for 32,768 and for more; here, those between the first two take what 32,768 takes.
    "lars": Kind(Lars, _lars_rate, 1e-4, "polynomial", _lars_warmup_share),
    # Touvron et al. 2021, "Training data-efficient image transformers", table 9.
    "adamw": Kind(AdamW, _in_proportion(5e-4, 512), 0.05),
}


def make_optimizer(name: str, rate: Any, weight_decay: float) -> Any:
    """Returns the tf.compat.v1.train.Optimizer of that name.

    Args:
      name: One of OPTIMIZERS.
      rate: Learning rate of the step: a tensor in a graph, or a function that returns one.
      weight_decay: As of Kind.
    """
    return OPTIMIZERS[name].make(rate, weight_decay)
