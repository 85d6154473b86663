"""TensorBoard's profile of some steps of training: --profile=FIRST,LAST.

step FIRST - 1 ──jax.profiler starts──▶ … ──stops──▶ step LAST ─▶ MODEL_DIR/plugins/profile/TIME/HOST.xplane.pb
"""

from __future__ import annotations

import jax


class StepProfile:
    """Profiles the steps from `first` to `last` of one stretch of training."""

    def __init__(self, model_dir: str, first: int, last: int) -> None:
        """Takes the folder or URI of the profile, and its first and last step, from 1; 0 for none."""
        self._model_dir, self._first, self._last = model_dir, first, last
        self._runs = False

    def reached(self, step: int) -> None:
        """Starts or stops the profiler when `step` steps are done."""
        if self._runs and step >= self._last:
            self.close()
        elif not self._runs and self._first <= step + 1 <= self._last:
            jax.profiler.start_trace(self._model_dir)
            self._runs = True

    def close(self) -> None:
        """Stops the profiler if it runs, at the end of the stretch."""
        if self._runs:
            self._runs = False
            jax.profiler.stop_trace()
