"""File access, local and by URI. All files of inputs and datasets, except the lock, are opened through this package.

path ──▶ local.py; for a URI, the backend of its scheme in STORES: gcs.py reads and writes; object_stores.py and
hub.py read

Datasets are written to local folders and gs:// alone, which have a lock, and writes that a late writer cannot undo.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import IO, NamedTuple, Protocol, TypeVar, cast

from beam_pipelines.storage import local
from beam_pipelines.storage.pieces import Headers, in_pieces
from tpu_input.command_line.paths import Unclear, absolute as absolute
from tpu_input.dataset_format.records import IMAGE_KEY, image_of

_SLICE = re.compile(r"(.*)#(bytes|deflate|record)=(\d{1,19})-(\d{1,19})(?:(?<=\d):(.+))?", re.DOTALL)
_MARKS = ("#bytes=", "#deflate=", "#record=")
_IN_FLIGHT = 32  # small files that are read or written concurrently, as an object store needs 30 ms for each


# Delays in seconds before each retry of a failed read. A disk or file server with a temporary error answers within this
# time, or needs manual repair. Google's client has its own retries (gcs.py).
DELAYS = (0.25, 1.0, 4.0)
_Result = TypeVar("_Result")


class Unavailable(OSError):
    """A read or write failed because of the storage, not because of the file: a retry may succeed."""


class Changed(ValueError):
    """A file has changed since it was listed."""


def is_failure(error: BaseException) -> bool:
    """Returns whether the storage or the system failed; libraries raise OSErrors without a number for damaged files."""
    return isinstance(error, Unavailable) or (isinstance(error, OSError) and error.errno is not None)


class Files(Protocol):
    """Interface of a storage backend; the functions with the same names in this module document the methods."""

    def exists(self, path: str) -> bool: ...
    def list_files(self, root: str, follow: bool, folder: str = "") -> Iterator[tuple[str, int, int, str]]: ...
    def list_level(self, root: str, folder: str) -> Iterator[tuple[str, int, int]]: ...
    def look(self, path: str) -> tuple[int, int]: ...
    def read_bytes(self, path: str, start: int, end: int | None, version: int) -> bytes: ...
    def written_at(self, path: str, version: int, or_copied: bool) -> float: ...


class Objects(Files, Protocol):
    """Interface of a storage backend for URIs."""

    def check(self, path: str) -> None: ...
    def ranged(self, path: str) -> tuple[int, Callable[[int, int], bytes]]:
        """Returns the size of a file, and a function of (start, end) that returns these bytes of it."""


class WritableFiles(Files, Protocol):
    """Interface of a storage backend to which datasets are written."""

    def create(
        self, path: str, temporary_in: str, new: bool, version: int, sync_name: bool
    ) -> AbstractContextManager[IO[bytes]]: ...
    def move(self, source: str, target: str) -> None: ...
    def publish(self, files: list[tuple[str, str]]) -> None: ...
    def delete(self, paths: list[str]) -> None: ...


class Store(NamedTuple):
    """What reads the URIs of a scheme.

    Attributes:
      module: Module of the backend in this package.
      packages: What it imports.
      install: What installs them.
      is_writable: Whether datasets are written there: the backend is a WritableFiles, and has a lock.
      is_inflating: Whether an object may be read inflated, with another size than the listed one.
      is_listing: Whether it lists the files of a folder.
    """

    module: str
    packages: str
    install: str
    is_writable: bool = False
    is_inflating: bool = False
    is_listing: bool = True


# Everything that depends on the scheme of a URI is here.
STORES: dict[str, Store] = {
    # Google's client decompresses an object with Content-Encoding: gzip.
    "gs": Store("gcs", "google-cloud-storage", "pip install google-cloud-storage", is_writable=True, is_inflating=True),
    "s3": Store("object_stores", "obstore and boto3", "pip install 'jpeg2tpu[stores]'"),
    "az": Store("object_stores", "obstore and boto3", "pip install 'jpeg2tpu[stores]'"),
    "hf": Store("hub", "obstore and boto3", "pip install 'jpeg2tpu[stores]'"),
    "http": Store("object_stores", "obstore and boto3", "pip install 'jpeg2tpu[stores]'", is_listing=False),
    "https": Store("object_stores", "obstore and boto3", "pip install 'jpeg2tpu[stores]'", is_listing=False),
}


def readable(listing: bool = False) -> str:
    """Returns what can be read, for messages; or of that, what also lists files."""
    schemes = [scheme for scheme, store in STORES.items() if store.is_listing or not listing]
    *others, last = ("local files", *(f"{scheme}://" for scheme in schemes))
    return f"{', '.join(others)} and {last}"


def _store(path: str) -> Store | None:
    return STORES.get(path.partition("://")[0])


def _files(path: str) -> Files:
    return _objects(path) if is_uri(path) else local


def _objects(path: str) -> Objects:
    """Returns the storage backend for a URI; imported on first use, as it is slow to import."""
    store = _store(path)
    if store is None:
        raise ValueError(f"{path!r} cannot be read, only {readable()}; mount other storage as a local folder")
    try:
        module = importlib.import_module(f"beam_pipelines.storage.{store.module}")
    except ImportError as error:
        raise ValueError(f"{path!r} needs {store.packages} ({error}); run: {store.install}") from error
    return cast(Objects, module)


def _writable_files(path: str) -> WritableFiles:
    check_writable(path)
    return cast(WritableFiles, _files(path))


def check_writable(path: str) -> None:
    """Checks that datasets are written to such a place; sends no request.

    Raises:
      ValueError: Its store has no lock, or is none that is known.
    """
    store = _store(path)
    if is_uri(path) and not (store and store.is_writable):
        writable = " and ".join(f"{scheme}://" for scheme, store in STORES.items() if store.is_writable)
        raise ValueError(
            f"{path!r} cannot be written to, only local folders and {writable}, which have a lock against a second "
            "writer; write there, and copy the result"
        )


def is_supported(path: str) -> bool:
    """Returns whether `path` is local, or a URI of a store that can be read."""
    return not is_uri(path) or _store(path) is not None


def lists_files(path: str) -> bool:
    """Returns whether the files of a folder can be listed where `path` is; a web server has single files."""
    store = _store(path)
    return store is None or store.is_listing


def check_has_no_secret(path: str) -> None:
    """Checks that a path can be stored and shown, as all paths of inputs are.

    Raises:
      Unclear: It is the URL of a web server with a query, which may be a signature, or with a user name.
    """
    place, mark, _ = path.partition("?")
    host = place.partition("://")[2].partition("/")[0]
    if not lists_files(path) and (mark or "@" in host):
        url = place.replace(f"{host.rpartition('@')[0]}@", "") if "@" in host else place
        raise Unclear(
            f"the URL {url!r} comes with {'a query' if mark else 'a user name'}, which may be a secret and would be "
            "stored in the manifest; download the file, and name the copy"
        )


def may_inflate(path: str) -> bool:
    """Returns whether what is read of a file may have another size than what look() says."""
    store = _store(path)
    return store is not None and store.is_inflating


def is_uri(path: str) -> bool:
    """Returns whether `path` is a URI rather than a local path."""
    return "://" in path


def real(path: str) -> str:
    """Returns a local path with symbolic links resolved; a URI unchanged."""
    return path if is_uri(path) else os.path.realpath(path)


def check(path: str) -> None:
    """Checks, within seconds, that the storage of `path` can be reached; the path itself need not exist.

    Raises:
      ValueError: The bucket does not exist, or there is no network, credentials or permission to list it.
    """
    if not is_uri(path):  # operations on local paths fail without delay, so no check in advance is needed
        return
    try:
        _objects(path).check(path)
    except OSError as error:
        raise ValueError(str(error)) from error


def exists(path: str) -> bool:
    """Returns whether there is a file or a folder at `path`."""
    return _files(path).exists(path)


def is_link(path: str) -> bool:
    """Returns whether `path` is a symbolic link; False for URIs."""
    return not is_uri(path) and local.is_link(path)


def list_files(root: str, follow: bool = True) -> Iterator[tuple[str, int]]:
    """Yields (path relative to root, bytes) of every file below `root`; nothing if there is no such folder.

    A broken link is yielded with -1 bytes. Links to folders below `root` are followed; without `follow`, they are
    yielded as files with -1 bytes.

    Raises:
      OSError: A folder cannot be listed.
    """
    return ((path, num_bytes) for path, num_bytes, *_ in _files(root).list_files(root, follow))


def list_versions(root: str, folder: str = "") -> Iterator[tuple[str, int, int]]:
    """Yields (path relative to root, bytes, version) of every file, as list_files() does; on versions see look().

    With `folder`, as from list_level(), only those below it.
    """
    return ((path, num_bytes, version) for path, num_bytes, version, _ in _files(root).list_files(root, True, folder))


def list_level(root: str, folder: str = "") -> Iterator[tuple[str, int, int]]:
    """Yields what lies in a folder, but not in the folders of it: files as list_versions() does, and folders.

    Args:
      root: Where listing began; links that lead back to it, or to a folder between, are left out.
      folder: Path relative to root, which ends with a slash; "" for root. So do the paths of folders in the result.
    """
    return _files(root).list_level(root, folder)


def list_checksums(root: str) -> Iterator[tuple[str, int, str]]:
    """Yields (path relative to root, bytes, checksum) of every file, as list_files() without `follow` does.

    The checksum is the CRC-32C that a bucket keeps of each object, in base64; "" for local files, which have none.
    """
    return ((path, num_bytes, checksum) for path, num_bytes, _, checksum in _files(root).list_files(root, False))


def file_bytes(path: str) -> int:
    """Returns the size of a file, or of the part of a file that slice_uri() names; -1 if it does not exist.

    Raises:
      Unavailable: The storage failed, also after retries.
    """
    return look(path)[0]


def look(path: str) -> tuple[int, int]:
    """Returns (size as from file_bytes(), version to be checked by read_bytes()).

    The version of a GCS object is its generation, which changes with every write. In other stores, it is a hash of ETag
    and size, and in a dataset of Hugging Face a hash of Git's hash of the content and size. The version of a part of a
    local file is the file's modification time in nanoseconds. A complete local file, whose size alone is compared, has
    no version: 0.
    """
    part = _part(path)
    file = part[1] if part else path
    num_bytes, version = _patiently(file, lambda: _files(file).look(file))
    if not part:
        return num_bytes, version
    start, end = int(part[3]), int(part[4])
    if not start <= end <= num_bytes:
        return -1, version
    num_bytes = int(part[5] or 0) if part[2] == "deflate" else end - start
    return num_bytes, version if is_uri(file) else local.changed_at(file)


def written_at(path: str, version: int = 0, or_copied: bool = False) -> float:
    """Returns when a file was written, in seconds since 1970.

    Args:
      path: The file.
      version: Version of an object from look(), if it is known.
      or_copied: Of a local file, take the time at which it, or the link to it, came to its place. Tools that copy do
        not set it back as they do with the modification time.

    It is infinite in a dataset of Hugging Face, as Git notes no such time: the file may have been written just now.

    Raises:
      Unavailable: The storage failed, also after retries.
    """
    return _patiently(path, lambda: _files(path).written_at(path, version, or_copied))


def _patiently(path: str, function: Callable[[], _Result]) -> _Result:
    """Returns function(), with a retry after each of DELAYS if the storage, not the file, caused the error.

    Raises:
      Unavailable: All tries failed because of the storage.
    """
    for delay in (*DELAYS, None):
        try:
            return function()
        except (Unavailable, FileNotFoundError, MemoryError, ValueError):
            raise
        except Exception as error:  # other filesystems raise errors of any type
            code = error.errno if isinstance(error, OSError) else None
            if not is_uri(path) and (code is None or code in local.FILE_ERRNOS):
                raise
            if delay is None:
                reason = os.strerror(code) if code else str(error)
                raise Unavailable(
                    f"{path!r} cannot be read now, after {len(DELAYS) + 1} tries: {reason}; fix the storage, or move "
                    "the file away if the error persists"
                ) from error
            time.sleep(delay)
    raise AssertionError("the last try returns or raises")


def slice_uri(path: str, start: int, num_bytes: int) -> str:
    """Returns the URI of a part of a file, for read_bytes()."""
    return f"{path}#bytes={start}-{start + num_bytes}"


def deflate_uri(path: str, start: int, packed_bytes: int, num_bytes: int) -> str:
    """Returns the URI of a deflated part of a file, for read_bytes(), which returns the `num_bytes` bytes of it."""
    return f"{path}#deflate={start}-{start + packed_bytes}:{num_bytes}"


def record_uri(path: str, start: int, num_bytes: int, feature: str = IMAGE_KEY) -> str:
    """Returns the URI of the image in a TFRecord, for read_bytes(), given the bytes of the record.

    Args:
      path: File with the record.
      start: Its first byte.
      num_bytes: Size of the record with its frame.
      feature: Feature with the image.
    """
    return f"{path}#record={start}-{start + num_bytes}" + (f":{feature}" if feature != IMAGE_KEY else "")


def byte_range(path: str) -> tuple[str, int, int] | None:
    """Returns (file, start, end) of a path from slice_uri(), deflate_uri() or record_uri(); None for others."""
    return (part[1], int(part[3]), int(part[4])) if (part := _part(path)) else None


def is_record(path: str) -> bool:
    """Returns whether a path is from record_uri(), so that what is read of it is smaller than the range of bytes."""
    part = _part(path)
    return part is not None and part[2] == "record"


def containing_file(path: str) -> str:
    """Returns the file that `path`, as from slice_uri(), deflate_uri() or record_uri(), names a part of; or `path`."""
    return part[1] if (part := _part(path)) else path


def _part(path: str) -> re.Match[str] | None:
    """Returns (file, kind, start, end, more) as groups of a match if `path` is from slice_uri() and the like.

    None for other paths, and for an existing local file with such a name.
    """
    # The search alone takes 1/20 of the time.
    part = _SLICE.fullmatch(path) if any(mark in path for mark in _MARKS) else None
    if part and part[2] == "deflate" and not (part[5] or "").isdecimal():
        return None
    return None if part and not is_uri(path) and local.exists(path) else part


def open_file(path: str) -> IO[bytes]:
    """Returns a file opened for reading.

    Raises:
      OSError: It cannot be opened, or is not a regular file: opening a pipe, for example, would block.
    """
    return in_pieces(*_objects(path).ranged(path)) if is_uri(path) else local.open_file(path)


def open_headers(path: str) -> IO[bytes]:
    """Returns a file opened for reading a few bytes here and there, and little else.

    It has no buffer on a local disk. Of an object, what follows the bytes is read with them, but at most 4 KiB if they
    are 1 MiB or more behind those that were read last.

    Raises:
      OSError: As open_file().
    """
    return cast(IO[bytes], Headers(*_objects(path).ranged(path))) if is_uri(path) else local.open_headers(path)


def read_bytes(path: str, version: int = 0, most: int | None = None) -> bytes:
    """Returns the content of a file, or of the part of a file that slice_uri(), deflate_uri() or record_uri() names.

    Args:
      path: The file.
      version: Version from look() that the file must still have; 0 for any.
      most: Maximum size of a local file in bytes. It limits memory: a sparse file needs little disk, but is read into
        memory at its full size.

    Raises:
      ValueError: The file is larger than `most`, or what deflate_uri() or record_uri() names is damaged.
      Changed: The file has another version.
      FileNotFoundError: There is no such file.
      OSError: It cannot be read; Unavailable if the storage, not the file, is the cause, also after retries.
    """
    part = _part(path)
    file, start, end = (part[1], int(part[3]), int(part[4])) if part else (path, 0, None)
    if version and not is_uri(file) and local.changed_at(file) != version:
        raise Changed(f"{file!r} was modified")
    if most is not None and not is_uri(file) and (num_bytes := local.look(file)[0]) > most:
        raise ValueError(
            f"{file!r} has {num_bytes:,} bytes, too many for a file of its kind; remove it, or copy it again"
        )
    data = _patiently(file, lambda: _files(file).read_bytes(file, start, end, version))
    if not part or part[2] == "bytes":
        return data
    return image_of(data, part[5] or IMAGE_KEY) if part[2] == "record" else _inflated(data, int(part[5]))


def _inflated(data: bytes, num_bytes: int) -> bytes:
    """Returns what was deflated; raises ValueError unless it has this size."""
    try:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        inflated = inflater.decompress(data, num_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"its deflated bytes are damaged: {error}") from error
    if len(inflated) != num_bytes or not inflater.eof:
        raise ValueError(f"its deflated bytes do not become {num_bytes:,} bytes, as the archive states")
    return inflated


def read_files(paths: Iterable[str], most: int | None = None) -> Iterator[bytes]:
    """Yields the contents of small files, of up to `most` bytes each, in order; reads several concurrently."""
    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        yield from pool.map(functools.partial(read_bytes, most=most), paths)


def write_files(files: Iterable[tuple[str, bytes]]) -> None:
    """Writes small files, given as (path, content); writes several concurrently."""

    def write(file: tuple[str, bytes]) -> None:
        with create(file[0]) as opened:
            opened.write(file[1])

    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        list(pool.map(write, files))


def create(
    path: str, temporary_in: str = "", new: bool = False, version: int = 0, sync_name: bool = True
) -> AbstractContextManager[IO[bytes]]:
    """Opens a file for an atomic write: it appears under its name when it is complete, or not at all.

    Args:
      path: The file.
      temporary_in: Folder on the same disk for the temporary file, which a killed process leaves there; default: the
        folder of `path`. Uploads to object stores are atomic without one.
      new: Whether to raise FileExistsError if another file with that name exists by then.
      version: Version from replaceable() that the replaced file must still have by then, else FileExistsError is
        raised; 0 for any.
      sync_name: Whether a local file has its name after a power failure, too. Its content is flushed to disk in any
        case, before it gets the name; the next file with this option in the same folder makes all names there durable.
    """
    return _writable_files(path).create(path, temporary_in, new, version, sync_name)


def replaceable(path: str) -> int:
    """Returns the version of a file that create() replaces: the object's version, or the time of modification in ns.

    It is 0 if there is no file.
    """
    return _objects(path).look(path)[1] if is_uri(path) else local.replaceable(path)


def move(source: str, target: str) -> None:
    """Moves a file; an existing file at `target` is replaced."""
    _writable_files(target).move(source, target)


def publish(files: list[tuple[str, str]]) -> None:
    """Moves files, given as (source, target), to names that must not exist; several concurrently.

    Raises:
      FileExistsError: There is another file at a target.
    """
    if files:
        _writable_files(files[0][0]).publish(files)


def delete(paths: list[str]) -> None:
    """Deletes files and links, but not folders or the targets of links; a missing file is not an error."""
    if paths:
        _writable_files(paths[0]).delete(paths)


def delete_empty(folders: list[str]) -> None:
    """Deletes the empty ones of some local folders, in the given order; ignores URIs, which have no empty folders."""
    for folder in folders:
        if not is_uri(folder):
            local.delete_empty(folder)
