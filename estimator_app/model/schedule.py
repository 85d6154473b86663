"""Schedule of the learning rate, and published recipes as the defaults of each optimizer; TensorFlow-free.

step 0 ──linear──▶ peak at warmup_steps ──half a cosine, a parabola or steps──▶ 0, or peak / 1000, at decay_steps
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

# Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 5.1, warms up for 5 of 90 epochs.
WARMUP_SHARE = 5 / 90
# The same section divides the rate by 10 after 30, 60 and 80 of 90 epochs.
STEPS_AT = (30 / 90, 60 / 90, 80 / 90)
Decay = Literal["cosine", "polynomial", "steps"]
Optimizer = Literal["momentum", "lars", "adamw"]


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
    decay: Decay = "cosine"

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


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Default hyperparameters of an optimizer.

    Attributes:
      rate: Function batch size -> peak learning rate.
      weight_decay: Share of a kernel that each step subtracts, times the learning rate.
      decay: Decay of the learning rate.
      warmup_share: Function batch size -> share of the schedule's steps that are warm-up.
    """

    rate: Callable[[int], float]
    weight_decay: float
    decay: Decay = "cosine"
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


RECIPES: dict[Optimizer, Recipe] = {
    # Goyal et al. 2017, section 5.1.
    "momentum": Recipe(_in_proportion(0.1, 256), 1e-4),
    # tensorflow/tpu's ResNet-50 in 90 epochs, models/official/resnet: the rate, its decay and its warm-up of 5, 12 or
    # 16 epochs from poly_rate_schedule() in lars_util.py, weight decay from configs/resnet_config.py. It has values
    # for batches up to 16,384, for 32,768 and for more; here, batch sizes between the first two use the second.
    "lars": Recipe(_lars_rate, 1e-4, "polynomial", _lars_warmup_share),
    # Touvron et al. 2021, "Training data-efficient image transformers", table 9.
    "adamw": Recipe(_in_proportion(5e-4, 512), 0.05),
}
