"""When tf_distribute and jax write a checkpoint; TPUEstimator has hooks of its own for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from estimator_app.config import TrainConfig


class CheckpointSaver:
    """Writes a checkpoint at the first step, every save_seconds, save_steps and steps_per_eval, and when told to."""

    def __init__(self, config: TrainConfig, last: int, saved: Callable[[int], None]) -> None:
        """Begins to count.

        Args:
          config: Config of the run.
          last: Step of the last checkpoint; -1 before the first.
          saved: Called with the step of each checkpoint that was written.
        """
        self._config, self._last, self._saved = config, last, saved
        self._last_time = time.monotonic()

    def reached(self, step: int, write: Callable[[], object], now: bool = False) -> None:
        """Calls write(), which writes the checkpoint of a step, if one is due at this step, or if `now`."""
        if step == self._last:
            return
        multiple = any(
            steps and step // steps > self._last // steps
            for steps in (self._config.steps_per_eval, self._config.save_steps)
        )
        elapsed = self._config.save_seconds and time.monotonic() - self._last_time >= self._config.save_seconds
        if now or self._last < 0 or multiple or elapsed:
            write()
            self._last, self._last_time = step, time.monotonic()
            self._saved(step)
