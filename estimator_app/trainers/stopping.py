"""SIGTERM and Ctrl-C: the step is finished, a checkpoint is written, and the command ends with the signal's exit code.

signal ──▶ Stop ──StopHook──▶ TPUEstimator stops after this step and saves ──▶ Stopped
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import tensorflow as tf

SessionRunHook: Any = tf.compat.v1.train.SessionRunHook
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):
    """The run was asked to stop, and has: what it has done is in its last checkpoint."""


class Stop(threading.Event):
    """An event that a signal sets.

    Attributes:
      number: The signal's; None as long as there was none.
    """

    number: int | None = None


class StopHook(SessionRunHook):  # type: ignore[misc]
    """Ends a session after the step in which `stop` was set; Estimator's own hooks then write a checkpoint."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._stop.is_set():
            run_context.request_stop()


@contextlib.contextmanager
def on_signals() -> Iterator[Stop]:
    """Gives an event that the first SIGTERM or Ctrl-C sets; after it, SIGTERM kills and Ctrl-C interrupts at once."""
    stop, before = Stop(), {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def request(number: int, frame: FrameType | None) -> None:
        stop.number = number
        stop.set()
        restore()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    for number in SIGNALS:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        restore()
