"""Files of this machine, as storage/__init__.py describes them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from typing import IO

# What a name or a file says of itself, whenever it is read; other errors are the storage's.
OF_THE_FILE = frozenset(
    {
        errno.EACCES,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENXIO,
        errno.EPERM,
    }
)


def check(path: str) -> None:
    """Refuses nothing: what is wrong with a local path is known in no time."""


def exists(path: str) -> bool:
    return os.path.lexists(path)


def is_link(path: str) -> bool:
    return os.path.islink(path)


def list_files(root: str, follow: bool) -> Iterator[tuple[str, int, int]]:
    if not exists(root):
        return
    above: dict[str, tuple[str, ...]] = {root: ()}  # where the folders that each lies in really are
    for folder, folders, names in os.walk(root, onerror=_raise, followlinks=follow):
        # Linked folders are followed, but not one that leads back to where it lies, by whatever other links.
        way = (*above.pop(folder), os.path.realpath(folder))
        folders[:] = [name for name in folders if not _leads_back(f"{folder}/{name}", way)]
        above |= {f"{folder}/{name}": way for name in folders}
        below = folder[len(root) + 1 :]
        for name in names:
            yield f"{below}/{name}" if below else name, *look(f"{folder}/{name}")
        for name in folders if not follow else ():
            if is_link(f"{folder}/{name}"):
                yield f"{below}/{name}" if below else name, -1, 0


def _leads_back(folder: str, way: tuple[str, ...]) -> bool:
    """Returns whether one of the folders on the way to this one lies in it, or is it."""
    real = os.path.join(os.path.realpath(folder), "")
    return any(f"{each}/".startswith(real) for each in way)


def look(path: str) -> tuple[int, int]:
    try:
        return os.path.getsize(path), 0
    except ValueError:  # a line of a list may hold a zero byte
        return -1, 0
    except OSError as error:
        if error.errno not in OF_THE_FILE:
            raise
        return -1, 0


def changed_at(path: str) -> int:
    return os.stat(path).st_mtime_ns


def open_file(path: str) -> IO[bytes]:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(f"{path!r} is no regular file")
    return open(path, "rb")


def read_bytes(path: str, start: int, end: int | None, version: int) -> bytes:
    with open_file(path) as file:
        file.seek(start)
        # No more than there is, for which room would be made.
        return file.read(-1 if end is None else max(min(end, os.fstat(file.fileno()).st_size) - start, 0))


@contextlib.contextmanager
def create(path: str, temporary_in: str, new: bool) -> Iterator[IO[bytes]]:
    """Writes under another name, flushes to the disk and renames."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{temporary_in or os.path.dirname(path)}/{os.path.basename(path)}.part-{uuid.uuid4().hex}"
    os.makedirs(os.path.dirname(temporary), exist_ok=True)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if temporary_in:
            delete_empty(temporary_in)
        _sync_folder(os.path.dirname(path))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        if temporary_in:
            delete_empty(temporary_in)
        raise


def move(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(source, target)


def delete(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.remove(path)


def delete_empty(folder: str) -> None:
    if not is_link(folder):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # refuses one that holds anything


def _sync_folder(folder: str) -> None:
    """Makes a rename last through a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise(error: OSError) -> None:
    raise error
