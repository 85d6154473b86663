"""The files of a dataset: their names, what may lie in the output folder, the manifest, and the lock.

One conversion at a time writes into an output: the kernel's lock (flock) in a local folder, a GCS object with a
heartbeat in a bucket (storage/gcs_lock.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from beam_pipelines import storage
from tpu_input.dataset_format.index import index_path
from tpu_input.dataset_format.records import (
    MANIFEST_NAME,
    MAX_INDEX_BYTES,
    MAX_MANIFEST_BYTES,
    Manifest,
    parse_shard_name,
)

WORK_NAME = ".jpeg2tpu"  # what an unfinished conversion has so far
REJECTED_NAME = "rejected.jsonl"
REPORT_NAME = "report.html"  # made on demand, so a dataset may be without


@contextlib.contextmanager
def create(dataset: str, path: str, new: bool = False) -> Iterator[IO[bytes]]:
    """Opens a file of a dataset for writing, in no other's place if `new`; until it is whole it is a working file.

    Raises:
      ValueError: See check_folders().
    """
    check_folders(dataset)
    with storage.create(f"{dataset}/{path}", temporary_in=f"{dataset}/{WORK_NAME}", new=new) as file:
        yield file


def dataset_files(shards: Iterable[str]) -> set[str]:
    """Returns the paths, within the dataset, of all files that one with these shards consists of."""
    shards = list(shards)
    return {*shards, *(index_path(shard) for shard in shards), MANIFEST_NAME, REJECTED_NAME}


def optional_files(shards: Iterable[str]) -> set[str]:
    """Returns the paths of what a dataset may have besides: the report, and DALI's index files."""
    return {REPORT_NAME, *(f"{index_path(shard).removesuffix('.parquet')}.idx" for shard in shards)}


def is_dataset_file(path: str) -> bool:
    """Returns whether a path, within the dataset, is one that some dataset of ours could have a file at."""
    if path in (MANIFEST_NAME, REJECTED_NAME, REPORT_NAME):
        return True
    folder, name = posixpath.split(path)
    stem, ending = posixpath.splitext(name)
    endings = {"": (".tfrecord",), "index": (".parquet", ".idx")}.get(folder, ())
    return ending in endings and parse_shard_name(f"{stem}.tfrecord") is not None


def list_dataset(dataset: str) -> Iterator[tuple[str, int]]:
    """Yields (path, bytes) of every file of a dataset; a linked folder is told as a file of -1 bytes, not followed.

    Raises:
      OSError: A folder cannot be listed.
    """
    return storage.list_files(dataset, follow=False)


def check_folders(dataset: str) -> None:
    """Refuses a dataset whose own folders are links: what is written or deleted there would lie elsewhere.

    Raises:
      ValueError: One is.
    """
    for folder in (WORK_NAME, "index"):
        if storage.is_link(path := f"{dataset}/{folder}"):
            raise ValueError(f"{path!r} is a link, and a dataset lies in its own folder; put the folder itself there")


def check_working_folders(dataset: str) -> None:
    """Refuses a dataset of which a folder that a conversion or a repair writes into is a link: see check_folders().

    Looks at all working files, so it is called once, by who takes the lock.

    Raises:
      ValueError: One is.
    """
    check_folders(dataset)
    work = f"{dataset}/{WORK_NAME}"
    # A linked folder is told as a file of -1 bytes. A linked file is harmless: another takes its place.
    for path, num_bytes in () if storage.is_uri(dataset) else list_dataset(work):
        if num_bytes < 0 and storage.is_link(f"{work}/{path}"):
            raise ValueError(f"{work}/{path} is a link, and a dataset lies in its own folder; remove it")


def index_content(path: str) -> bytes:
    """Returns the bytes of a shard's index, for what reads it (dataset_format/index.py).

    Raises:
      ValueError: It has more bytes than any index.
      OSError: It cannot be read.
    """
    return storage.read_bytes(path, most=MAX_INDEX_BYTES)


def complete_manifest(dataset: str) -> Manifest:
    """Returns the manifest of a complete dataset.

    Raises:
      ValueError: There is no manifest, so no complete dataset, or it cannot be read or reached.
    """
    storage.check(dataset)
    manifest = read_manifest(dataset)
    if manifest is None:
        raise ValueError(f"{dataset!r} holds no {MANIFEST_NAME}, so no complete dataset; run convert first, or again")
    return manifest


def read_manifest(dataset: str) -> Manifest | None:
    """Returns the manifest of a complete dataset; None if there is none.

    Raises:
      ValueError: The manifest cannot be read.
    """
    try:
        content = storage.read_bytes(f"{dataset}/{MANIFEST_NAME}", most=MAX_MANIFEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Manifest.from_json(content, dataset)


LOCK_NAME = "lock"


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
