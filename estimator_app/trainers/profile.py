"""TensorBoard's profile of some steps of training: --profile=FIRST,LAST.

    step FIRST - 1 ──tf.profiler starts──▶ … ──stops──▶ step LAST ─▶ MODEL_DIR/plugins/profile/TIME/HOST.xplane.pb

The profiler records this process: the input pipeline, the dispatch of steps, and the operations of its devices.
"""

from __future__ import annotations


class Profile:
    """Profiles the steps from `first` to `last` of one stretch of training by calls of reached()."""

    def __init__(self, model_dir: str, first: int, last: int) -> None:
        """Makes the profile.

        Args:
          model_dir: Folder or URI to which the profile is written.
          first: First step that is profiled, from 1.
          last: Last step that is profiled.
        """
        self._model_dir, self._first, self._last = model_dir, first, last
        self._runs = False

    def reached(self, step: int) -> None:
        """Starts or stops the profiler when `step` steps are done; on a TPU, at the next end of a loop of steps."""
        import tensorflow as tf

        if self._runs and step >= self._last:
            self.close()
        elif not self._runs and self._first <= step + 1 <= self._last:
            tf.profiler.experimental.start(self._model_dir)
            self._runs = True

    def close(self) -> None:
        """Stops the profiler if it runs, at the end of the stretch."""
        import tensorflow as tf

        if self._runs:
            self._runs = False
            tf.profiler.experimental.stop()
