"""Lock of a model_dir: only one process trains in it at a time.

local folder  file lock (flock) on MODEL_DIR/.lock: a second training is refused
in a bucket   no lock that is released when its process dies: MODEL_DIR/.lock names the training that began last, and
              all earlier ones stop
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
_BYTES = 300  # fixed size: TensorFlow caches a file's size for 5 s and reports a file of another size as damaged


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[None]:
    """Context manager that holds an exclusive file lock on a local `model_dir`; does nothing for a URI.

    The kernel releases the lock when the process ends, even if it is killed.

    Raises:
      ValueError: Another process holds the lock.
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
                f"another process is training in {model_dir!r} and holds the lock; wait for it to end, or use "
                "another --model_dir"
            ) from None
        yield


def claim_lock(model_dir: str) -> Callable[[], None]:
    """Claims a `model_dir` in a bucket; returns a function that raises if another training has claimed it since.

    The last claim wins, not the first, so that a run whose machine was preempted or killed can be resumed immediately.
    For other folders, the returned function does nothing.

    Raises:
      OSError: The folder cannot be written.
      ValueError: Raised by the returned function: another training has begun.
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
                raise ValueError(f"{other} has started training in {model_dir!r}, so this one ({this}) ends")

    return check


def _opened(model_dir: str) -> TextIO:
    try:
        return open(f"{model_dir}/{LOCK_NAME}", "a")
    except OSError as error:
        raise OSError(f"cannot write to {model_dir!r}: {error.strerror}; use another --model_dir") from error
