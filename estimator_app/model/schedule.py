"""The learning rate of every step: linear warm-up, then a fall; pure arithmetic, TensorFlow-free.

step 0 ──linear──▶ peak at warmup_steps ──half a cosine, a parabola or steps──▶ 0, or peak / 1000, from decay_steps on
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

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
