"""Files, local or behind a URI; the only place that opens any.

path ──▶ local_files, or buckets for gs://, or beam_files for whatever else Beam's FileSystems know
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import IO, Protocol, TypeVar

from beam_pipelines.storage import local
from beam_pipelines.storage.errors import Changed as Changed
from beam_pipelines.storage.errors import Unavailable as Unavailable

_SLICE = re.compile(r"(.*)#bytes=(\d{1,19})-(\d{1,19})", re.DOTALL)
_IN_FLIGHT = 32  # small files that are read or written at the same time, as an object store takes 30 ms for each


# Seconds before a read that failed is tried again: a disk or a file server that hangs up answers within these, or it
# needs somebody. Google's client has a schedule of its own (gcs.py).
DELAYS = (0.25, 1.0, 4.0)
_Result = TypeVar("_Result")


class Files(Protocol):
    """What each kind of storage can do; the functions of this module say what that is."""

    def check(self, path: str) -> None: ...
    def exists(self, path: str) -> bool: ...
    def is_link(self, path: str) -> bool: ...
    def list_files(self, root: str, follow: bool) -> Iterator[tuple[str, int, int]]: ...
    def look(self, path: str) -> tuple[int, int]: ...
    def open_file(self, path: str) -> IO[bytes]: ...
    def read_bytes(self, path: str, start: int, end: int | None, version: int) -> bytes: ...
    def create(self, path: str, temporary_in: str, new: bool) -> AbstractContextManager[IO[bytes]]: ...
    def move(self, source: str, target: str) -> None: ...
    def delete(self, paths: list[str]) -> None: ...


def _files(path: str) -> Files:
    """Returns what knows files such as `path`; imported when it is needed, as all but the local one take their time."""
    if not is_uri(path):
        return local
    if not path.startswith("gs://"):
        from beam_pipelines.storage import beam

        return beam
    try:
        from beam_pipelines.storage import gcs
    except ImportError as error:
        raise ValueError(
            f"{path!r} needs google-cloud-storage ({error}); run: pip install google-cloud-storage"
        ) from error
    return gcs


def is_uri(path: str) -> bool:
    """Returns whether `path` names something else than a local file."""
    return "://" in path


def absolute(path: str) -> str:
    """Returns `path` as other processes can use it: a URI unchanged, a local path absolute."""
    scheme, separator, rest = path.partition("://")
    return scheme + separator + rest.rstrip("/") if separator else os.path.abspath(path)


def real(path: str) -> str:
    """Returns where `path` leads to when links are followed: a URI unchanged."""
    return path if is_uri(path) else os.path.realpath(path)


def check(path: str) -> None:
    """Refuses what no operation can reach, within seconds; what is merely not there yet is fine.

    Raises:
      ValueError: There is no such bucket, or no way, credentials or permission to list it.
    """
    try:
        _files(path).check(path)
    except OSError as error:
        raise ValueError(str(error)) from error


def exists(path: str) -> bool:
    """Returns whether there is a file or a folder."""
    return _files(path).exists(path)


def is_link(path: str) -> bool:
    """Returns whether `path` is a symbolic link; no URI is."""
    return _files(path).is_link(path)


def list_files(root: str, follow: bool = True) -> Iterator[tuple[str, int]]:
    """Yields (path relative to root, bytes) of every file below `root`, none if there is no such folder.

    A link that leads nowhere has -1 bytes. Linked folders below `root` are followed, or without `follow` yielded as
    files of -1 bytes.

    Raises:
      OSError: A folder cannot be listed.
    """
    return ((path, num_bytes) for path, num_bytes, _ in _files(root).list_files(root, follow))


def list_versions(root: str) -> Iterator[tuple[str, int, int]]:
    """Yields what list_files() does, with the version of each file: see look()."""
    return _files(root).list_files(root, True)


def file_bytes(path: str) -> int:
    """Returns the size of a file, or of the part of a file that slice_uri() names; -1 if there is no such thing.

    Raises:
      Unavailable: The storage does not say, also when asked again.
    """
    return look(path)[0]


def look(path: str) -> tuple[int, int]:
    """Returns what file_bytes() does, and the version that read_bytes() may insist on.

    The version of an object of a bucket is its generation, another one for every content. That of a part of a local
    file is the time of the file's last change, in nanoseconds. There is none, 0, for a whole file, which its size must
    do for, and elsewhere.
    """
    part = _part(path)
    file = part[1] if part else path
    num_bytes, version = _patiently(file, lambda: _files(file).look(file))
    if not part:
        return num_bytes, version
    start, end = int(part[2]), int(part[3])
    if not start <= end <= num_bytes:
        return -1, version
    return end - start, version if is_uri(file) else local.changed_at(file)


def _patiently(path: str, function: Callable[[], _Result]) -> _Result:
    """Returns function(), called again after each of DELAYS while the storage, not the file, is to blame.

    Raises:
      Unavailable: It was to blame each time.
    """
    for delay in (*DELAYS, None):
        try:
            return function()
        except (Unavailable, FileNotFoundError, MemoryError, ValueError):
            raise
        except Exception as error:  # of other filesystems, whatever they raise
            code = error.errno if isinstance(error, OSError) else None
            if not is_uri(path) and (code is None or code in local.OF_THE_FILE):
                raise
            if delay is None:
                said = os.strerror(code) if code else str(error)
                raise Unavailable(
                    f"{path!r} cannot be read now, after {len(DELAYS) + 1} tries: {said}; "
                    "mend the storage, or move the file away if it stays so"
                ) from error
            time.sleep(delay)
    raise AssertionError("the last try returns or raises")


def slice_uri(path: str, start: int, num_bytes: int) -> str:
    """Returns the URI of a part of a file, which read_bytes() reads."""
    return f"{path}#bytes={start}-{start + num_bytes}"


def whole(path: str) -> str:
    """Returns the file that slice_uri() has named a part of, else `path`."""
    return part[1] if (part := _part(path)) else path


def _part(path: str) -> re.Match[str] | None:
    """Returns what slice_uri() has put into `path`; a local file may be called so as a whole."""
    part = _SLICE.fullmatch(path)
    return None if part and not is_uri(path) and local.exists(path) else part


def open_file(path: str) -> IO[bytes]:
    """Returns a file opened for reading.

    Raises:
      OSError: It cannot be opened, or is no file but a pipe, say, which would be waited for.
    """
    return _files(path).open_file(path)


def read_bytes(path: str, version: int = 0, most: int | None = None) -> bytes:
    """Returns what a file, or the part of a file that slice_uri() names, holds.

    Args:
      path: The file.
      version: What look() has said, if it must still be the same.
      most: Bytes that a local file may have; one with holes takes no disk, and all of them in memory.

    Raises:
      ValueError: It has more.
      Changed: It is not.
      FileNotFoundError: There is no such file.
      OSError: It cannot be read; Unavailable where that is not the file's fault, also when it is tried again.
    """
    part = _part(path)
    whole, start, end = (part[1], int(part[2]), int(part[3])) if part else (path, 0, None)
    if version and not is_uri(whole) and local.changed_at(whole) != version:
        raise Changed(f"{whole!r} was written again")
    if most is not None and not is_uri(whole) and (num_bytes := local.look(whole)[0]) > most:
        raise ValueError(f"{whole!r} has {num_bytes:,} bytes, which none of its kind has; remove it, or copy it again")
    return _patiently(whole, lambda: _files(whole).read_bytes(whole, start, end, version))


def read_each(paths: Iterable[str], most: int | None = None) -> Iterator[bytes]:
    """Yields what each of some small files, of up to `most` bytes, holds, in order, several read at the same time."""
    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        yield from pool.map(functools.partial(read_bytes, most=most), paths)


def write_each(files: Iterable[tuple[str, bytes]]) -> None:
    """Writes some small files, given by name and content, several at the same time."""

    def write(file: tuple[str, bytes]) -> None:
        with create(file[0]) as opened:
            opened.write(file[1])

    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        list(pool.map(write, files))


def create(path: str, temporary_in: str = "", new: bool = False) -> AbstractContextManager[IO[bytes]]:
    """Opens a file for writing that appears under its name whole or not at all.

    Args:
      path: The file.
      temporary_in: Folder on the same disk where an interrupted process leaves what it has written so far; default:
        that of the file. Nothing of an object is to be seen before it is whole.
      new: Whether to raise FileExistsError where, by now, another file has that name; for objects alone, since a
        folder is locked by the kernel.
    """
    return _files(path).create(path, temporary_in, new)


def move(source: str, target: str) -> None:
    """Puts a file in the place of another, or where there is none."""
    _files(target).move(source, target)


def delete(paths: list[str]) -> None:
    """Deletes files, never folders, and of a link the link alone; what is gone already is no error."""
    if paths:
        _files(paths[0]).delete(paths)


def delete_empty(folders: list[str]) -> None:
    """Deletes those of some local folders that are empty, in this order; a URI's exist only while they hold files."""
    for folder in folders:
        if not is_uri(folder):
            local.delete_empty(folder)
