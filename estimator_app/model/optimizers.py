"""Optimizers, which apply gradients that are summed over all replicas.

    (gradient, variable) ──weight decay, of kernels only──▶ LARS' rate of the layer ──▶ TensorFlow's update op

They subclass tf.compat.v1.train.Optimizer, the only kind that CrossShardOptimizer accepts (it refuses Keras'
optimizers). Every release of TensorFlow has it, and it works in graphs and in functions under tf.distribute. The
arithmetic of the update is done by TensorFlow's kernels. The subclasses override `_resource_apply_dense`, the hook for
one variable's update: when it is called, the gradients are summed over replicas and dense.
Biases and batch normalization's parameters, the variables of rank 1, are excluded from weight decay (Goyal et al. 2017,
"Accurate, Large Minibatch SGD", section 5.1) and of LARS' rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from estimator_app.model.schedule import Optimizer

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


def clip(gradients: Sequence[Any], variables: Sequence[Any], norm: float, total: Callable[[Any], Any]) -> list[Any]:
    """Returns a replica's gradients, all scaled by one factor so that the norm of their sum is at most `norm`.

    The norm is over all gradients together (Pascanu et al. 2013, "On the difficulty of training recurrent neural
    networks"), summed over all replicas: clipping each replica's part would change with the number of replicas.

    Args:
      gradients: Of one replica, which add up over the replicas; None for a variable without one.
      variables: The variables, in the same order.
      norm: Largest norm.
      total: Returns the sum of a tensor over all replicas.
    """
    parts = [dense(gradient, variable) for gradient, variable in zip(gradients, variables, strict=True)]
    global_norm = tf.linalg.global_norm([total(part) for part in parts if part is not None])
    factor = norm / tf.maximum(global_norm, norm)
    return [None if part is None else part * factor for part in parts]


class _Dense(v1.train.Optimizer):  # type: ignore[misc, name-defined]
    """Base class that makes all gradients dense, and updates no variable before all gradients are computed.

    In TPUEstimator's graph, nothing else orders the two: AdamW's decay could change a kernel before or after the
    forward pass reads it, depending on the scheduling of threads.
    """

    def apply_gradients(self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None) -> Any:
        pairs = [(dense(gradient, variable), variable) for gradient, variable in grads_and_vars]
        gradients = [tf.identity(gradient) for gradient, _ in pairs if gradient is not None]
        with tf.control_dependencies(gradients):
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


_MAKE: dict[str, Callable[[Any, float], Any]] = {"momentum": Momentum, "lars": Lars, "adamw": AdamW}


def averaging(decay: float, step: tf.Tensor) -> tf.Tensor:
    """Returns the share of the old moving average that a step keeps, float32.

    It rises from 0.1 to `decay`, so that the average forgets the initial weights: as in tf.train's
    ExponentialMovingAverage with num_updates.

    Args:
      decay: TrainConfig.ema.
      step: Number of steps done before this one.
    """
    count = tf.cast(step, tf.float32)
    return tf.minimum(decay, (1 + count) / (10 + count))


def make_optimizer(name: Optimizer, rate: Any, weight_decay: float) -> Any:
    """Returns the tf.compat.v1.train.Optimizer of that name.

    Args:
      name: Name of the optimizer.
      rate: Learning rate of the step: a tensor in a graph, or a function that returns one.
      weight_decay: Share of a kernel that the step subtracts, times the rate.
    """
    return _MAKE[name](rate, weight_decay)
