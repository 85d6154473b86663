"""Interruptions of a training: a TPU that is preempted or unreachable, SIGTERM and Ctrl-C.

    attempt() ──TPU lost──▶ wait 10 s, 20 s … 5 min, each less up to half of it ──▶ attempt() … for an hour
    signal ──▶ Stop ──StopHook──▶ the trainer stops after this step and saves ──▶ Stopped

Training goes on from the last checkpoint. After a signal, the step is finished, a checkpoint is written, and the
command ends with the signal's exit code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

import tensorflow as tf

from estimator_app.runtime.tensorflow_startup import one_line
from estimator_app.runtime.tpu import Unreachable

T = TypeVar("T")


class Moved(Exception):
    """A TPU that is back, but at another address: this process' TensorFlow would wait for the old one without end."""


# What a session raises when the machine behind it is gone: preempted, restarted, silent.
LOST = (Unreachable, tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)


@dataclasses.dataclass(frozen=True)
class Backoff:
    """How long to wait between attempts.

    Attributes:
      first: Seconds before the second attempt; each later wait is twice as long.
      most: Seconds at the most between two attempts.
      total: Seconds of waiting without a step of progress, after which there is none.
    """

    first: float = 10.0
    most: float = 300.0
    total: float = 3600.0

    def delays(self, draw: Callable[[], float] = random.random) -> Iterator[float]:
        """Yields seconds, half of them drawn ("Equal Jitter": Brooker, AWS Architecture Blog, 2015).

        Args:
          draw: Returns a number in [0, 1); many hosts that lost the same TPU must not come back at once.
        """
        delay, waited = self.first, 0.0
        while waited < self.total:
            drawn = min(delay / 2 * (1 + draw()), self.total - waited)
            yield drawn
            waited += drawn
            delay = min(2 * delay, self.most)


def retry_while_unavailable(
    attempt: Callable[[], T],
    progress: Callable[[], int],
    wait: Callable[[float], object],
    report: Callable[[str], None],
    backoff: Backoff | None = None,
) -> T:
    """Returns what `attempt` returns; when the TPU is lost, waits and attempts again.

    Args:
      attempt: What needs the TPU.
      progress: Returns the step of the last checkpoint; one that has grown begins the waiting anew.
      wait: Takes seconds.
      report: Takes a line.
      backoff: How long to wait.

    Raises:
      ValueError: No attempt has come a step further for backoff.total seconds.
    """
    backoff = backoff or Backoff()
    delays, seen = backoff.delays(), progress()
    while True:
        try:
            return attempt()
        except LOST as error:
            reason = one_line(error)
        if progress() > seen:
            delays, seen = backoff.delays(), progress()
        delay = next(delays, None)
        if delay is None:
            raise ValueError(f"no TPU for {backoff.total:.0f} s ({reason}); the same command goes on from step {seen}")
        report(f"the TPU is away ({reason}); trying again from step {seen} in {delay:.0f} s")
        wait(delay)


@contextlib.contextmanager
def no_recovery_in_place() -> Iterator[None]:
    """Makes a lost TPU, or a bucket that fails, an error of TPUEstimator.train(), for as long as this lasts.

    TensorFlow would make a new session of the same graph, over and over and without end: it loads the last checkpoint,
    but its data begin where the first session's did, and its address is that of a TPU that may be another by now.
    """
    # There is no public switch; TensorFlow 2.15, which has the last of both, will not change.
    from tensorflow.python.training import monitored_session
    from tensorflow_estimator.python.estimator.tpu import error_handling

    before = monitored_session._PREEMPTION_ERRORS, error_handling._IGNORED_ERRORS
    monitored_session._PREEMPTION_ERRORS = error_handling._IGNORED_ERRORS = ()
    try:
        yield
    finally:
        monitored_session._PREEMPTION_ERRORS, error_handling._IGNORED_ERRORS = before


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
