"""Filters what an engine's workers print if Beam runs them as threads of this process (LOOPBACK).

    worker's thread ──traceback──▶ stderr, log     a step's error: dropped, as the command ends with its message, or
                                                   says that the engine has run the step again
                    ──gRPC error──▶ excepthook     the engine has closed the connection, as it does when a job ends
                    ──everything else──▶           shown as it is

Beam prints and logs the traceback of an error of a step before it tells the engine, whose error of the job quotes it
(apache_beam/runners/worker/sdk_worker.py, SdkHarness._execute). A user would read 200 lines above the one that counts.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from typing import Any, TextIO

from beam_pipelines.runners.execution import error_of_step
from tpu_input.command_line import print_line

# What gRPC's errors have in them when the other side has closed the connection, or has forgotten the worker (Prism).
_HUNG_UP = re.compile(r"StatusCode\.(CANCELLED|UNAVAILABLE)\b|not registered in worker pool")
_TRACEBACK = "Traceback (most recent call last):\n  File "
_has_ended = threading.Event()
_messages: dict[str, None] = {}  # of the errors that were dropped, in order


def show_errors_once() -> None:
    """Drops, until the process ends, what workers print about errors that the command itself reports.

    Nothing else is dropped before command_ends(): execution.pipeline() raises each of these errors with its message.
    """
    _has_ended.clear()
    _messages.clear()
    if not isinstance(sys.stderr, _Stderr):
        sys.stderr = _Stderr(sys.stderr)
    threading.excepthook = _unless_hung_up
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_news)


def show_retried() -> None:
    """Prints a line for each error of a step that was dropped; for a job that succeeded, as these steps ran again."""
    for message in _messages:
        print_line(f"a step failed and was run again: {message}", sys.stderr)


def command_ends() -> None:
    """Drops all tracebacks of workers from now on: the command has said how it ended, and they end with it."""
    _has_ended.set()


class _Stderr:
    """A stream that writes all but the tracebacks of steps' errors; everything else is the stream's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._thread = threading.local()

    def write(self, text: str) -> int:
        # print() writes a traceback in one piece, then the end of its last line.
        is_end = text == "\n" and getattr(self._thread, "has_dropped", False)
        self._thread.has_dropped = text.startswith(_TRACEBACK) and _is_reported(text)
        return len(text) if is_end or self._thread.has_dropped else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_news(record: logging.LogRecord) -> bool:
    """Returns whether to log a message: not the messages of a failed job or step, which Beam raises too."""
    if record.module == "portable_runner" or record.name == "PrismRunner":
        return False
    return not (_TRACEBACK in (text := record.getMessage()) and _is_reported(text))


def _is_reported(traceback: str) -> bool:
    """Returns whether the command reports the error of a worker's traceback, or has reported how it ended."""
    if _has_ended.is_set():
        return True
    if error := error_of_step(traceback):
        _messages[str(error)] = None
        return True
    return "\ngrpc." in traceback and _HUNG_UP.search(traceback) is not None


def _unless_hung_up(args: threading.ExceptHookArgs) -> None:
    """Reports the exception that ended a thread, unless the engine has closed the connection.

    If it does that in the middle of a job, the main thread, which waits for the job, reports it.
    """
    is_of_grpc = args.exc_type.__module__.partition(".")[0] == "grpc"
    if not _has_ended.is_set() and not (is_of_grpc and _HUNG_UP.search(str(args.exc_value))):
        threading.__excepthook__(args)
