"""The learning rate of every step: linear warm-up, then half a cosine down to 0; pure arithmetic, TensorFlow-free."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

# Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 5.1: 0.1 for every 256 examples of the batch.
RATE_PER_EXAMPLE = 0.1 / 256
# The same paper warms up for 5 of 90 epochs.
WARMUP_SHARE = 5 / 90


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Learning rate as a function of the step.

    Attributes:
      peak: Rate at the end of warm-up.
      train_steps: Steps of the whole run; the rate reaches 0 at the last.
      warmup_steps: Steps until the peak.
    """

    peak: float
    train_steps: int
    warmup_steps: int

    def __post_init__(self) -> None:
        if not 0 < self.peak < math.inf:
            raise ValueError(f"peak must be positive and finite, got {self.peak!r}")
        if not 0 <= self.warmup_steps < self.train_steps:
            raise ValueError(f"warmup_steps must be in [0, train_steps={self.train_steps}), got {self.warmup_steps!r}")

    @classmethod
    def over(cls, train_steps: int, peak: float) -> Schedule:
        """Returns the schedule of a run of `train_steps`, WARMUP_SHARE of them warming up."""
        return cls(peak, train_steps, int(train_steps * WARMUP_SHARE))

    def learning_rate(self, step: Any, xp: Any = np) -> Any:
        """Returns the rate of a step.

        Args:
          step: 0-based, a float: a number, an array or a tensor.
          xp: Module that computes with such floats: numpy, or tensorflow inside a graph.
        """
        warmup = xp.minimum(1.0, (step + 1.0) / max(self.warmup_steps, 1))
        falling = (step - self.warmup_steps) / (self.train_steps - self.warmup_steps)
        falling = xp.minimum(1.0, xp.maximum(0.0, falling))
        return self.peak * warmup * 0.5 * (1.0 + xp.cos(math.pi * falling))
