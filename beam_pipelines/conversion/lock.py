"""One conversion at a time into an output: the kernel's lock in a folder, a lease in a bucket."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from typing import IO

from beam_pipelines import storage
from beam_pipelines.conversion.output import WORK_NAME, check_working_folders
from beam_pipelines.conversion.working_folder import LOCK_NAME


@contextlib.contextmanager
def locked(output: str) -> Iterator[Callable[[], None]]:
    """Keeps other conversions out of `output`; the lock is given up however the process ends.

    Yields:
      A function that raises OSError if the lock was lost nevertheless.

    Raises:
      ValueError: Another process holds it, or the dataset's own folders are links.
      OSError: It cannot be written.
    """
    check_working_folders(output)
    path = f"{output}/{WORK_NAME}/{LOCK_NAME}"
    with contextlib.ExitStack() as stack:
        if output.startswith("gs://"):
            from beam_pipelines.storage.gcs_lock import leased

            yield stack.enter_context(leased(path))
            return
        if not storage.is_uri(output):  # else no lock that all of Beam's stores could keep
            yield stack.enter_context(_flocked(path))
            return
        yield lambda: None


@contextlib.contextmanager
def _flocked(path: str) -> Iterator[Callable[[], None]]:
    with contextlib.ExitStack() as stack:
        while True:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = stack.enter_context(_opened(path))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                output = path.removesuffix(f"/{WORK_NAME}/{LOCK_NAME}")
                raise ValueError(
                    f"another conversion is writing {output!r}; wait for it, or choose another output"
                ) from None
            # One that has just ended may have removed the file between the two calls.
            if _is_open_at(file, path):
                break

        def still_locked() -> None:
            if not _is_open_at(file, path):
                raise OSError(f"the lock {path!r} is gone, so somebody has removed {os.path.dirname(path)!r}")

        yield still_locked


def _opened(path: str) -> IO[bytes]:
    """Returns the file at `path`, which is made where there is none, opened for writing.

    Raises:
      ValueError: It is something else, such as a pipe.
      OSError: It cannot be opened.
    """
    # Of a link, the file that it leads to would be made; a pipe would be waited for.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:  # which a pipe that nobody reads says
            raise
        raise ValueError(f"{path!r} is no file; remove it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path!r} is no file; remove it")
    return open(descriptor, "wb")


def _is_open_at(file: IO[bytes], path: str) -> bool:
    """Returns whether an open file is the one at `path` now."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False
