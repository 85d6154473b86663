"""One training at a time in a model_dir.

here         the kernel's lock on MODEL_DIR/.lock: the second training is refused
in a bucket  there are no locks that end with a process: MODEL_DIR/.lock names the last that began, all others end
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterator
from typing import TextIO

import tensorflow as tf

from estimator_app.runtime import files

LOCK_NAME = ".lock"
_WRITTEN = re.compile(r"(process [0-9]+ of [\w.-]+) \([0-9a-f]{32}\)")
_BYTES = 300  # always as long: TensorFlow remembers a file's length for 5 s, and calls one that has changed damaged


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[None]:
    """Keeps other trainings out of `model_dir`; the kernel gives the lock up when the process ends, however it ends.

    Raises:
      ValueError: Another process holds it.
      OSError: The folder cannot be written.
    """
    if "://" in model_dir:
        yield
        return
    with _opened(model_dir) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is training in {model_dir!r}; wait for it, or give another --model_dir"
            ) from None
        yield


def claim_lock(model_dir: str) -> Callable[[], None]:
    """Returns a check that no other training has begun in a bucket's `model_dir` since; elsewhere one of nothing.

    The last one wins, not the first: after its machine was preempted or killed, a run goes on at once.

    Raises:
      OSError: The folder cannot be written.
      ValueError: From the check: another has begun.
    """
    if not files.is_in_bucket(model_dir):
        return lambda: None
    path, this = f"{model_dir}/{LOCK_NAME}", f"process {os.getpid()} of {socket.gethostname()}"
    written = f"{this} ({uuid.uuid4().hex})".ljust(_BYTES)
    files.write(path, written)

    def check() -> None:
        with contextlib.suppress(tf.errors.NotFoundError):
            found = files.read_text(path)
            if found != written:
                named = _WRITTEN.fullmatch(found.rstrip())
                other = named[1] if named else "another process"
                raise ValueError(f"{other} has begun to train in {model_dir!r}, so this one, {this}, ends")

    return check


def _opened(model_dir: str) -> TextIO:
    try:
        return open(f"{model_dir}/{LOCK_NAME}", "a")
    except OSError as error:
        raise OSError(f"cannot write to {model_dir!r}: {error.strerror}; give another --model_dir") from error
