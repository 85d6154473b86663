"""Hooks of TPUEstimator's sessions: what the shared code of the trainers does between two steps, done by Estimator.

session begins ──CheckFits──▶ its checkpoint fits the graph
after each step, on a TPU after each loop of steps ──▶ SaveEvery, StopHook, ProgressHook
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from estimator_app.model_dir.checkpoints import NAME, check_fits
from estimator_app.trainers.profile import Profile
from estimator_app.trainers.progress import Progress

v1 = tf.compat.v1
SessionRunHook: Any = v1.train.SessionRunHook
CheckpointSaverListener: Any = v1.train.CheckpointSaverListener


class StopHook(SessionRunHook):  # type: ignore[misc]
    """Ends a session after the step during which `stop` was set; Estimator's own hooks then write a checkpoint."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._stop.is_set():
            run_context.request_stop()


class ProgressHook(SessionRunHook):  # type: ignore[misc]
    """Adds a measurement to a Progress after each step, and starts and stops a Profile at its steps."""

    def __init__(self, progress: Progress, profile: Profile) -> None:
        self._progress, self._profile = progress, profile

    def begin(self) -> None:
        graph = v1.get_default_graph()
        outputs = [op.outputs for op in graph.get_operations() if op.type == "IteratorGetNext"]
        ready = [tensor for tensors in outputs for tensor in tensors if tensor.dtype == tf.float64]
        self._fetches = {"loss": v1.get_collection(v1.GraphKeys.LOSSES)[-1]} | dict(zip(["ready"], ready, strict=False))
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._profile.reached(int(session.run(self._global_step)))

    def before_run(self, run_context: Any) -> Any:
        self._began = time.time()
        return v1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        results = run_values.results
        step = int(run_context.session.run(self._global_step))
        self._progress.add_step(step, float(results["loss"]), self._began, results.get("ready", math.nan))
        self._profile.reached(step)


class SaveEvery(SessionRunHook):  # type: ignore[misc]
    """Hook that saves a checkpoint when the global step reaches or passes a multiple of one of several numbers.

    Estimator's own hook saves at intervals of time and at the end; this hook is used in addition. It calls `saved` with
    the step of each checkpoint that it has written.
    """

    def __init__(self, model_dir: str, steps: Sequence[int], saved: Callable[[int], None]) -> None:
        self._path, self._steps, self._saved = f"{model_dir}/{NAME}", steps, saved

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._last = int(session.run(self._global_step))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = int(run_context.session.run(self._global_step))
        if any(step // steps > self._last // steps for steps in self._steps):
            # Estimator's own saver, which also deletes old checkpoints.
            (saver,) = v1.get_collection(v1.GraphKeys.SAVERS)
            saver.save(run_context.session, self._path, step)
            self._saved(step)
        self._last = step


class AfterSave(CheckpointSaverListener):  # type: ignore[misc]
    """Listener of Estimator's own hook that calls a function with the step of each checkpoint that the hook writes."""

    def __init__(self, saved: Callable[[int], None]) -> None:
        self._saved = saved

    def after_save(self, session: Any, global_step_value: int) -> None:
        self._saved(int(global_step_value))


class CheckFits(SessionRunHook):  # type: ignore[misc]
    """Hook that checks that a checkpoint fits the graph, before TensorFlow fails with a less clear message.

    Raises:
      ValueError: Raised when the session is created: the checkpoint is of another network or another number of classes.
    """

    def __init__(self, path: str | None, network: str, num_classes: int) -> None:
        self._path, self._network, self._num_classes = path, network, num_classes

    def begin(self) -> None:
        needed = {variable.op.name: variable.shape.as_list() for variable in v1.global_variables()}
        if self._path:
            check_fits(self._path, needed, self._network, self._num_classes)
