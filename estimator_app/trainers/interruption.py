"""Handling of interruptions: a TPU that is preempted or unreachable, SIGTERM and Ctrl-C.

    attempt() ──TPU lost──▶ wait 10 s, 20 s … 5 min, each randomly up to half shorter ──▶ attempt() … for an hour
    signal ──▶ Stop ──▶ the trainer stops after the current step and saves ──▶ Stopped

Retries resume from the last checkpoint. After a signal, the current step is finished, a checkpoint is written, and the
command ends with the signal's exit code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

from estimator_app.runtime.files import Unavailable
from estimator_app.runtime.tensorflow_startup import one_line
from estimator_app.runtime.tpu import Unreachable

T = TypeVar("T")


class Moved(Exception):
    """Raised when the TPU is back at another address; TensorFlow in this process would wait for the old one forever."""


def lost_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions of a machine that was preempted or restarted, or does not respond, or of a bucket."""
    if not (tensorflow := sys.modules.get("tensorflow")):
        return Unreachable, Unavailable
    errors = tensorflow.errors
    return Unreachable, Unavailable, errors.UnavailableError, errors.AbortedError, errors.DeadlineExceededError


@dataclasses.dataclass(frozen=True)
class Backoff:
    """Exponential backoff with jitter: the waits between retries.

    Attributes:
      first: Seconds to wait before the first retry; doubled for each later one.
      most: Longest wait between two attempts, in seconds.
      total: Total seconds of waiting without progress, after which there are no more retries.
    """

    first: float = 10.0
    most: float = 300.0
    total: float = 3600.0

    def delays(self, draw: Callable[[], float] = random.random) -> Iterator[float]:
        """Yields waits in seconds, half of each random ("Equal Jitter": Brooker, AWS Architecture Blog, 2015).

        Args:
          draw: Returns a random number in [0, 1), so that hosts that lost the same TPU do not all retry at once.
        """
        delay, waited = self.first, 0.0
        while waited < self.total:
            wait = min(delay / 2 * (1 + draw()), self.total - waited)
            yield wait
            waited += wait
            delay = min(2 * delay, self.most)


def retry_while_unavailable(
    attempt: Callable[[], T],
    progress: Callable[[], int],
    wait: Callable[[float], object],
    report: Callable[[str], None],
    backoff: Backoff | None = None,
) -> T:
    """Returns what `attempt` returns; when the TPU is lost, waits and retries.

    Args:
      attempt: Function that needs the TPU.
      progress: Returns the step of the last checkpoint; when it has increased, the backoff starts from the beginning.
      wait: Waits for the given number of seconds.
      report: Called with one line per retry.
      backoff: Waits between retries; None for the defaults of Backoff.

    Raises:
      ValueError: No attempt has made progress during backoff.total seconds of waiting.
    """
    backoff = backoff or Backoff()
    delays, last_step = backoff.delays(), progress()
    while True:
        try:
            return attempt()
        except lost_errors() as error:
            reason = one_line(error)
        if progress() > last_step:
            delays, last_step = backoff.delays(), progress()
        delay = next(delays, None)
        if delay is None:
            raise ValueError(
                f"TPU unavailable for {backoff.total:.0f} s ({reason}); rerun the same command to resume "
                f"from step {last_step}"
            )
        report(f"TPU unavailable ({reason}); retrying from step {last_step} in {delay:.0f} s")
        wait(delay)


SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):
    """Raised when a run has stopped on request; its progress is in the last checkpoint."""


class Stop(threading.Event):
    """An event that a signal sets.

    Attributes:
      number: Number of the signal; None before one was received.
    """

    number: int | None = None


@contextlib.contextmanager
def on_signals() -> Iterator[Stop]:
    """Yields an event that the first SIGTERM or Ctrl-C sets; after it, SIGTERM kills and Ctrl-C interrupts at once."""
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
