"""TensorBoard's profile of some steps of training: --profile=FIRST,LAST.

    step FIRST - 1 ──tf.profiler starts──▶ … ──stops──▶ step LAST ─▶ MODEL_DIR/plugins/profile/TIME/HOST.xplane.pb

The profiler records this process: the input pipeline, the dispatch of steps, and the operations of its devices.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
SessionRunHook: Any = v1.train.SessionRunHook


class Profile(SessionRunHook):  # type: ignore[misc]
    """Profiles the steps from `first` to `last` of one stretch of training, as a hook or by calls of reached()."""

    def __init__(self, model_dir: str, first: int, last: int) -> None:
        """Makes the hook.

        Args:
          model_dir: Folder or URI to which the profile is written.
          first: First step that is profiled, from 1.
          last: Last step that is profiled.
        """
        self._model_dir, self._first, self._last = model_dir, first, last
        self._runs = False

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.reached(int(session.run(self._global_step)))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.reached(int(run_context.session.run(self._global_step)))

    def reached(self, step: int) -> None:
        """Starts or stops the profiler when `step` steps are done; on a TPU, at the next end of a loop of steps."""
        if self._runs and step >= self._last:
            self.close()
        elif not self._runs and self._first <= step + 1 <= self._last:
            tf.profiler.experimental.start(self._model_dir)
            self._runs = True

    def close(self) -> None:
        """Stops the profiler if it runs, at the end of the stretch."""
        if self._runs:
            self._runs = False
            tf.profiler.experimental.stop()
