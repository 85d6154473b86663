"""Optimizers as optax has them: gradient transformations, whose updates are added to the weights.

    gradients ──clipping──▶ ──weight decay, of kernels only──▶ ──momentum, LARS or Adam──▶ ──learning rate──▶ updates

They compute the same as model/optimizers.py, the TensorFlow trainers' optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from estimator_app.config import TrainConfig

MOMENTUM = 0.9  # He et al. 2016, "Deep Residual Learning", section 3.4
TRUST = 0.001  # You et al. 2017, "Large Batch Training of Convolutional Networks", section 4
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-7


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """Returns the optimizer of a run, with its schedule of the learning rate."""

    def rate(step: Any) -> Any:
        return config.schedule.learning_rate(step.astype(jnp.float32), xp=jnp)

    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    if config.optimizer == "lars":
        return optax.chain(*clip, lars(rate, config.weight_decay))
    decay = optax.add_decayed_weights(config.weight_decay, mask=are_kernels)
    # Decay is part of the gradient for momentum (L2), and decoupled from it for Adam: Loshchilov and Hutter 2019.
    parts = [adam(), decay] if config.optimizer == "adamw" else [decay, optax.trace(MOMENTUM, nesterov=True)]
    return optax.chain(*clip, *parts, optax.scale_by_learning_rate(rate))


def are_kernels(weights: Any) -> Any:
    """Returns for each weight whether it is a kernel, which decays: not a bias or a scale, which are of rank 1."""
    return jax.tree.map(lambda weight: weight.ndim > 1, weights)


class AdamState(NamedTuple):
    """Number of steps, and moving averages of the gradients and of their squares."""

    count: Any
    mean: Any
    square: Any


def adam() -> optax.GradientTransformation:
    """Returns Adam: Kingma and Ba 2015, algorithm 1 in the more efficient order of section 2, as TensorFlow has it.

    optax.scale_by_adam() adds epsilon to the corrected root instead, and differs in the first steps.
    """

    def init(weights: Any) -> AdamState:
        zeros = jax.tree.map(jnp.zeros_like, weights)
        return AdamState(jnp.zeros([], jnp.int32), zeros, zeros)

    def update(gradients: Any, state: AdamState, weights: Any = None) -> tuple[Any, AdamState]:
        count = state.count + 1
        mean = jax.tree.map(lambda old, new: BETA1 * old + (1 - BETA1) * new, state.mean, gradients)
        square = jax.tree.map(lambda old, new: BETA2 * old + (1 - BETA2) * new * new, state.square, gradients)
        steps = count.astype(jnp.float32)
        correction = jnp.sqrt(1 - BETA2**steps) / (1 - BETA1**steps)
        updates = jax.tree.map(lambda first, second: correction * first / (jnp.sqrt(second) + EPSILON), mean, square)
        return updates, AdamState(count, mean, square)

    return optax.GradientTransformation(init, update)


class LarsState(NamedTuple):
    """Number of steps, and the velocity of each weight, which includes the learning rate."""

    count: Any
    velocity: Any


def lars(rate: Callable[[Any], Any], weight_decay: float) -> optax.GradientTransformation:
    """Returns LARS, layer-wise adaptive rate scaling: algorithm 1 of You et al. 2017, whose velocity includes the rate.

    The ratio of a layer has the sum of the norms of gradient and decay, as in the paper; optax.lars() has the norm of
    their sum.

    Args:
      rate: Function of the number of steps done, int32, to the learning rate.
      weight_decay: Share of a kernel that is added to its gradient.
    """

    def init(weights: Any) -> LarsState:
        return LarsState(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, weights))

    def update(gradients: Any, state: LarsState, weights: Any = None) -> tuple[Any, LarsState]:
        def accelerated(velocity: Any, gradient: Any, weight: Any) -> Any:
            local = jnp.float32(1)
            if weight.ndim > 1:
                size, steepness = jnp.linalg.norm(weight), jnp.linalg.norm(gradient)
                total = steepness + weight_decay * size
                ratio = jnp.where(total > 0, TRUST * size / jnp.where(total > 0, total, 1), 0)
                local = jnp.where(ratio > 0, ratio, 1)  # a ratio of 0 would never change a kernel of zeros
                gradient = gradient + weight_decay * weight
            return MOMENTUM * velocity - rate(state.count) * local * gradient

        velocity = jax.tree.map(accelerated, state.velocity, gradients, weights)
        return velocity, LarsState(state.count + 1, velocity)

    return optax.GradientTransformation(init, update)
