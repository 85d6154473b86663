"""Locks of a model_dir: only one process trains in it at a time, and only one evaluates.

local folder  file lock (flock) on MODEL_DIR/.lock: a second training is refused
in a bucket   no lock that is released when its process dies: MODEL_DIR/.lock names the training that began last, and
              all earlier ones stop

MODEL_DIR/.eval.lock is the same for evaluation. A training that evaluates holds both locks; with --eval=watch, a
training holds the first and a watcher the second.
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

from estimator_app.runtime import files

LOCK_NAME = ".lock"
EVAL_LOCK_NAME = ".eval.lock"
_DOES = {LOCK_NAME: "training", EVAL_LOCK_NAME: "evaluating"}
_CLAIM = re.compile(r"(process [0-9]+ of [\w.-]+) \([0-9a-f]{32}\)")
_BYTES = 300  # fixed size: TensorFlow caches a file's size for 5 s and reports a file of another size as damaged


@contextlib.contextmanager
def locked(model_dir: str, name: str = LOCK_NAME) -> Iterator[None]:
    """Context manager that holds an exclusive file lock on a local `model_dir`; does nothing for a URI.

    The kernel releases the lock when the process ends, even if it is killed.

    Args:
      model_dir: Folder or URI of the run.
      name: LOCK_NAME or EVAL_LOCK_NAME.

    Raises:
      ValueError: Another process holds the lock.
      OSError: The folder cannot be written.
    """
    if "://" in model_dir:
        yield
        return
    with _opened(model_dir, name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is {_DOES[name]} in {model_dir!r} and holds the lock; wait for it to end, or use "
                "another --model_dir"
            ) from None
        yield


def claim_lock(model_dir: str, name: str = LOCK_NAME) -> Callable[[], None]:
    """Claims a `model_dir` in a bucket; returns a function that raises if another process has claimed it since.

    The last claim wins, not the first, so that a run whose machine was preempted or killed can be resumed immediately.
    For other folders, the returned function does nothing.

    Args:
      model_dir: Folder or URI of the run.
      name: LOCK_NAME or EVAL_LOCK_NAME.

    Raises:
      OSError: The folder cannot be written.
      ValueError: Raised by the returned function: another process has claimed it.
    """
    if not files.is_in_bucket(model_dir):
        return lambda: None
    path, this = f"{model_dir}/{name}", f"process {os.getpid()} of {socket.gethostname()}"
    claim = f"{this} ({uuid.uuid4().hex})".ljust(_BYTES)
    files.write(path, claim)

    def check() -> None:
        with contextlib.suppress(FileNotFoundError):
            content = files.read_text(path)
            if content != claim:
                match = _CLAIM.fullmatch(content.rstrip())
                other = match[1] if match else "another process"
                raise ValueError(f"{other} has started {_DOES[name]} in {model_dir!r}, so this one ({this}) ends")

    return check


def _opened(model_dir: str, name: str) -> TextIO:
    try:
        return open(f"{model_dir}/{name}", "a")
    except OSError as error:
        raise OSError(f"cannot write to {model_dir!r}: {error.strerror}; use another --model_dir") from error
