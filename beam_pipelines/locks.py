"""One conversion at a time into an output: the kernel's lock in a folder, a lease in a bucket."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator

from beam_pipelines import storage
from beam_pipelines.dataset import WORK_NAME
from beam_pipelines.work import LOCK_NAME


@contextlib.contextmanager
def locked(output: str) -> Iterator[Callable[[], None]]:
    """Keeps other conversions out of `output`; the lock is given up however the process ends.

    Yields:
      A function that raises OSError if the lock was lost nevertheless.

    Raises:
      ValueError: Another process holds it, or it cannot be written.
    """
    path = f"{output}/{WORK_NAME}/{LOCK_NAME}"
    with contextlib.ExitStack() as stack:
        if output.startswith("gs://"):
            from beam_pipelines.leases import leased

            yield stack.enter_context(leased(path))
            return
        if not storage.is_uri(output):  # else no lock that all of Beam's stores could keep
            stack.enter_context(_flocked(path))
        yield lambda: None


@contextlib.contextmanager
def _flocked(path: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        while True:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = stack.enter_context(open(path, "a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                output = path.removesuffix(f"/{WORK_NAME}/{LOCK_NAME}")
                raise ValueError(
                    f"another conversion is writing {output!r}; wait for it, or choose another output"
                ) from None
            # One that has just ended may have removed the file between the two calls.
            if os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
        yield
