"""One line for an exception: what failed, on which path, and what to do. Every command prints errors with one_line().

    error ──first_error()──▶ what failed first, not what its clean-up met then ──one_line()──▶ text

It imports nothing of TensorFlow; estimator_app's one_line() removes TensorFlow's prefixes and leaves the rest to this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from tpu_input.command_line.distribution import which_extra

ADVICE = {  # by the number of an error of the operating system
    errno.EACCES: "check its permissions, or choose another path",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or use a file system without it",
    errno.EINVAL: "the file system does not support this operation; use another one",
    errno.EIO: "check the disk",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENFILE: "close other programs, or raise the system's limit of open files (fs.file-max)",
    errno.ENOENT: "correct the path, or mount what it is on",
    errno.ENOLCK: "the file system has no locks; enable them (NFS: mount with local_lock=flock), or use another one",
    errno.ENOSPC: "free some space or, if there is space, inodes",
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EOPNOTSUPP: "the file system does not support this operation; use another one",
    errno.EPERM: "check its permissions, or choose another path",
    errno.EROFS: "mount it writable, or choose another path",
    errno.ESTALE: "mount the file server's folder again",
    errno.EXDEV: "use one file system for the whole folder",
}
_NO_THREADS = (
    "cannot start another thread or process; raise the limit (ulimit -u, or the container's limit of pids), or use "
    "fewer processes"
)
_NO_MEMORY = "not enough memory; free some, raise the limit (ulimit -v, or the container's), or use fewer processes"
_THREAD_LIMIT = re.compile(
    r"can't start new thread|can't allocate lock|unable to (create|start) (new )?thread|pthread_create|"
    r"thread constructor failed",
    re.IGNORECASE,
)
_MEMORY_LIMIT = re.compile(
    r"cannot allocate (write-able )?memory|failed to map segment|std::bad_alloc|malloc of size \d+ failed|"
    r"out of memory",
    re.IGNORECASE,
)
# What Python and Arrow raise for a file that an error has closed already, while that error is handled.
_CLOSED = re.compile(r"(operation on|write to|read of|of a) closed file", re.IGNORECASE)


def first_error(error: BaseException) -> BaseException:
    """Returns the error that ended a command: that which was handled when `error` was raised by the clean-up.

    An interruption precedes all that is raised while it is handled.
    """
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) and before not in chain:
        chain.append(before)
    for earlier in reversed(chain):
        if isinstance(earlier, KeyboardInterrupt):
            return earlier
    return next((earlier for earlier in chain if not _CLOSED.search(str(earlier))), error)


@contextlib.contextmanager
def about(path: str) -> Iterator[None]:
    """Context manager: names `path` in errors of the operating system that name no file, as of write() and fsync()."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = path
        raise


def limit_reached(error: BaseException) -> str:
    """Returns a line if the error is a limit of threads, processes or memory; "" for others."""
    code, text = getattr(error, "errno", None), str(error)
    if code == errno.EAGAIN or (isinstance(error, RuntimeError) and _THREAD_LIMIT.search(text)):
        return _NO_THREADS
    is_memory_error = isinstance(error, MemoryError) or code == errno.ENOMEM
    if is_memory_error or (isinstance(error, (ImportError, OSError, RuntimeError)) and _MEMORY_LIMIT.search(text)):
        return _NO_MEMORY
    return ""


def one_line(error: BaseException, place: str = "") -> str:
    """Returns the message of an exception in one line: what failed, on which path, and what to do.

    Args:
      error: The exception.
      place: Path that the command works on, which is named if the error names none.
    """
    if line := limit_reached(error):
        return line
    if isinstance(error, ImportError) and (advice := which_extra(error)):
        return advice
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
        return _system_error_line(error.errno, error.strerror, " -> ".join(map(repr, names)), place)
    text = " ".join(str(error).split()) or repr(error)
    if quoted := _QUOTED.fullmatch(text):
        return _system_error_line(int(quoted[1]), quoted[2], quoted[3] or "", place)
    return text


# The text of an OSError whose type was lost on its way through an engine.
_QUOTED = re.compile(r"\[Errno (\d+)\] ([^:']+)(?:: (['\"].*['\"]))?")


def _system_error_line(code: int, reason: str, names: str, place: str) -> str:
    where = names or (f"while working on {place!r}" if place else "")
    advice = ADVICE.get(code, "")
    return (f"{where}: " if where else "") + reason + (f"; {advice}" if advice else "")
