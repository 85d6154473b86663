"""Storage backend for local files; see storage/__init__.py."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import uuid
from collections.abc import Iterator
from typing import IO, cast

from tpu_input.command_line.error_lines import about

# Errors caused by the path or the file, for which a retry does not help; other errors are caused by the storage.
FILE_ERRNOS = frozenset(
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


def exists(path: str) -> bool:
    return os.path.lexists(path)


def is_link(path: str) -> bool:
    return os.path.islink(path)


def list_files(root: str, follow: bool, folder: str = "") -> Iterator[tuple[str, int, int, str]]:
    start = _joined(root, folder)
    if not exists(start):
        return
    waiting = [(start, _above(root, folder))]  # folders, each with the real paths of the folders above it
    while waiting:
        inside, above = waiting.pop()
        way = (*above, os.path.realpath(inside))
        below, folders = inside[len(root) + 1 :], []
        prefix = f"{below}/" if below else ""
        with os.scandir(inside) as entries:
            for entry in entries:
                if not _is_folder(entry):
                    yield prefix + entry.name, _size(entry), 0, ""
                elif not entry.is_symlink():
                    folders.append((entry.path, way))
                # A link to a folder that contains it is left out, as it would be followed endlessly.
                elif not _leads_back(entry.path, way):
                    if follow:
                        folders.append((entry.path, way))
                    else:
                        yield prefix + entry.name, -1, 0, ""
        waiting += reversed(folders)


def list_level(root: str, folder: str) -> Iterator[tuple[str, int, int]]:
    start = _joined(root, folder)
    if not exists(start):
        return
    way = (*_above(root, folder), os.path.realpath(start))
    with os.scandir(start) as entries:
        for entry in entries:
            if not _is_folder(entry):
                yield folder + entry.name, _size(entry), 0
            elif not _leads_back(entry.path, way):
                yield f"{folder}{entry.name}/", 0, 0


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a folder, or a link to one; False if that cannot be found out."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _size(entry: os.DirEntry[str]) -> int:
    """Returns the size of a file as look() does, in one system call by its name in the folder."""
    try:
        return entry.stat().st_size
    except OSError as error:
        if error.errno not in FILE_ERRNOS:
            raise
        return -1


def _joined(root: str, folder: str) -> str:
    return f"{root}/{folder[:-1]}" if folder else root


def _above(root: str, folder: str) -> tuple[str, ...]:
    """Returns the real paths of the folders from root to the one above `folder`."""
    names = folder.split("/")[:-1]
    return tuple(os.path.realpath("/".join([root, *names[:number]])) for number in range(len(names)))


def _leads_back(folder: str, way: tuple[str, ...]) -> bool:
    """Returns whether `folder` leads to one of the folders in `way`, or to a folder that contains one."""
    real = os.path.join(os.path.realpath(folder), "")
    return any(f"{ancestor}/".startswith(real) for ancestor in way)


def look(path: str) -> tuple[int, int]:
    try:
        return os.stat(path).st_size, 0
    except ValueError:  # a line of a list may have a null byte
        return -1, 0
    except OSError as error:
        if error.errno not in FILE_ERRNOS:
            raise
        return -1, 0


def written_at(path: str, version: int, or_copied: bool) -> float:
    status = os.stat(path)
    return max(status.st_ctime, os.lstat(path).st_ctime) if or_copied else status.st_mtime


def changed_at(path: str) -> int:
    return os.stat(path).st_mtime_ns


def open_file(path: str) -> IO[bytes]:
    _check_regular(path)
    return open(path, "rb")


def open_headers(path: str) -> IO[bytes]:
    _check_regular(path)
    return cast(IO[bytes], open(path, "rb", buffering=0))


def _check_regular(path: str) -> None:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(f"{path!r} is not a regular file")


def read_bytes(path: str, start: int, end: int | None, version: int) -> bytes:
    # Five system calls where open_file() and read() make ten, which is a tenth of the time of checking a small image.
    # It is looked at before it is opened: opening a device may do something, and a pipe would wait for a writer, for
    # which there is O_NONBLOCK if the file is replaced in between; that has no effect on regular files.
    _check_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path!r} is not a regular file")
        if end is None and not status.st_size:  # empty, or of a size that is not known, as in /proc
            with open(descriptor, "rb", closefd=False) as file:
                return file.read()
        # Never more than the size of the file, because a buffer of the requested size is allocated.
        num_bytes = max((status.st_size if end is None else min(end, status.st_size)) - start, 0)
        data = os.pread(descriptor, num_bytes, start)
        while len(data) < num_bytes and (more := os.pread(descriptor, num_bytes - len(data), start + len(data))):
            data += more  # Linux reads at most 2 GB at once
        return data
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def create(path: str, temporary_in: str, new: bool, version: int, sync_name: bool) -> Iterator[IO[bytes]]:
    """Opens a temporary file, which is flushed to disk (fsync) and renamed to `path` at the end of the body."""
    temporary = f"{temporary_in or os.path.dirname(path)}/{os.path.basename(path)}.part-{uuid.uuid4().hex}"
    os.makedirs(os.path.dirname(temporary), exist_ok=True)
    try:
        with about(path), open(temporary, "wb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError, ValueError):  # another error, of the same cause, would hide this one
                    file.close()
                raise
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if new:
            _rename_new(temporary, path)
        elif version:
            _replace_version(temporary, path, version)
        else:
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # it exists only if it was not renamed
            os.remove(temporary)
        if temporary_in:
            delete_empty(temporary_in)
    if sync_name:
        _sync_folder(os.path.dirname(path))


def _rename_new(source: str, target: str) -> None:
    """Renames a file; raises FileExistsError if there is one at `target`."""
    try:
        os.link(source, target)  # unlike os.rename(), it never replaces a file
    except FileExistsError:
        raise
    except OSError:  # a filesystem without hard links, on which two processes may pass this check at the same moment
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.replace(source, target)
        return
    os.remove(source)


def _replace_version(source: str, target: str, version: int) -> None:
    """Renames a file; raises FileExistsError if the one at `target` has not the version that replaceable() returned.

    Of several processes, one at a time compares and renames: the folder is locked.
    """
    folder = os.open(os.path.dirname(target), os.O_RDONLY)
    try:
        with about(target):
            fcntl.flock(folder, fcntl.LOCK_EX)
        if replaceable(target) != version:
            raise FileExistsError(f"{target!r} was written by another process in the meantime")
        os.replace(source, target)
    finally:
        os.close(folder)


def replaceable(path: str) -> int:
    return changed_at(path) if exists(path) else 0


def move(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(source, target)


def publish(files: list[tuple[str, str]]) -> None:
    folders = {os.path.dirname(target) for _, target in files}
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    for source, target in files:
        _rename_new(source, target)
    for folder in folders:
        _sync_folder(folder)


def delete(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.remove(path)


def delete_empty(folder: str) -> None:
    if not is_link(folder):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # fails if the folder is not empty


def _sync_folder(folder: str) -> None:
    """Flushes a folder to disk (fsync), so that a rename in it survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with about(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
