"""TensorBoard's profile of some steps of training: --profile=FIRST,LAST.

    step FIRST - 1 ──start(MODEL_DIR)──▶ … ──stop()──▶ step LAST ─▶ MODEL_DIR/plugins/profile/TIME/HOST.xplane.pb

The profiler records this process: the input pipeline, the dispatch of steps, and the operations of its devices.
"""

from __future__ import annotations

from collections.abc import Callable


class Profile:
    """Profiles the steps from `first` to `last` of one stretch of training by calls of reached()."""

    def __init__(
        self, model_dir: str, first: int, last: int, start: Callable[[str], object], stop: Callable[[], object]
    ) -> None:
        """Makes the profile.

        Args:
          model_dir: Folder or URI to which the profile is written.
          first: First step that is profiled, from 1.
          last: Last step that is profiled; 0 for none.
          start: Starts the framework's profiler, given the folder.
          stop: Stops it.
        """
        self._start, self._stop = start, stop
        self._model_dir, self._first, self._last = model_dir, first, last
        self._runs = False

    def reached(self, step: int) -> None:
        """Starts or stops the profiler when `step` steps are done; on a TPU, at the next end of a loop of steps."""
        if self._runs and step >= self._last:
            self.close()
        elif not self._runs and self._first <= step + 1 <= self._last:
            self._start(self._model_dir)
            self._runs = True

    def close(self) -> None:
        """Stops the profiler if it runs, at the end of the stretch."""
        if self._runs:
            self._runs = False
            self._stop()
