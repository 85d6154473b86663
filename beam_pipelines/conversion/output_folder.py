"""Files of a dataset: their names, the files that an output folder may hold, the manifest, and the lock.

The lock allows one conversion at a time into an output. It is a kernel lock (flock) in a local folder, and a GCS object
with a heartbeat in a bucket (storage/gcs_lock.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import itertools
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from beam_pipelines import storage
from beam_pipelines.options import WORK_NAME
from beam_pipelines.shard_formats.all_formats import EXPORTS, format_of
from tpu_input.command_line.error_lines import about
from tpu_input.dataset_format.index import index_path
from tpu_input.dataset_format.lengths import lengths_name
from tpu_input.dataset_format.manifest import TFDS_NAMES
from tpu_input.dataset_format.records import (
    MANIFEST_NAME,
    MAX_INDEX_BYTES,
    MAX_MANIFEST_BYTES,
    Manifest,
    in_edition,
    manifest_name,
    parse_shard_name,
)

REJECTED_NAME = "rejected.jsonl"  # with the dataset's edition, if it has one: see rejected_name()
REPORT_NAME = "report.html"  # written on demand, so it may be missing
LIKELY_WRONG_NAME = "likely_wrong_labels.csv"  # the same, next to the report
# All files that are written on demand and describe the whole dataset, so that they are removed with it.
ON_DEMAND_NAMES = (REPORT_NAME, LIKELY_WRONG_NAME, *TFDS_NAMES)
_BESIDE = re.compile(r"(manifest-[0-9]{1,6}\.json|lengths(-[0-9a-f]{8})?\.parquet|rejected(-[0-9a-f]{8})?\.jsonl)")


@contextlib.contextmanager
def create(dataset: str, path: str, new: bool = False, version: int = 0, sync_name: bool = True) -> Iterator[IO[bytes]]:
    """Opens a file of a dataset for an atomic write: it is a working file until it is complete.

    With `new`, a file of that name is not replaced, and with `version`, no other version of it; without `sync_name`,
    its name may be lost in a power failure: see storage.create().

    Raises:
      ValueError: See check_folders().
    """
    check_folders(dataset)
    work = f"{dataset}/{WORK_NAME}"
    with storage.create(f"{dataset}/{path}", work, new, version, sync_name) as file:
        yield file


def rejected_name(edition: str) -> str:
    """Returns the name of the list of rejected inputs of a dataset with this edition, "" for none."""
    return in_edition(REJECTED_NAME, edition)


def edition_beside(standing: Manifest | None, fingerprint: str) -> str:
    """Returns the edition of the dataset that a conversion will make where this one is: see shard_name().

    It is "" if there is no dataset yet, and else begins the fingerprint, so that no file of the new dataset has the
    name of one of the dataset that it replaces.
    """
    if not standing:
        return ""
    return standing.edition if standing.fingerprint.startswith(fingerprint) else fingerprint[:8]


def shard_files(shard: str) -> tuple[str, ...]:
    """Returns the paths, within the dataset, of a shard and, unless it is of an export, of its index."""
    shard_format = format_of(shard)
    return (shard_format.path(shard),) if shard_format.name in EXPORTS else (shard, index_path(shard))


def dataset_files(shards: Iterable[str]) -> set[str]:
    """Returns the paths, within the dataset, of all files of a dataset or an export with these shards."""
    shards = list(shards)
    if shards and (shard_format := format_of(shards[0])).name in EXPORTS:
        splits = {name.split for shard in shards if (name := parse_shard_name(shard))}
        return {*map(shard_format.path, shards), *shard_format.side_names(splits), MANIFEST_NAME}
    editions = {name.edition for shard in shards if (name := parse_shard_name(shard))} or {""}
    beside = {name(edition) for edition in editions for name in (lengths_name, rejected_name)}
    beside |= {manifest_name(number) for number in range(1, len(editions))}  # of a dataset that was extended
    return {*itertools.chain(*map(shard_files, shards)), MANIFEST_NAME, *beside}


def every_shard(manifest: Manifest) -> list[str]:
    """Returns the names of the shards of a dataset and of its earlier versions, whose manifests are read."""
    names = dict.fromkeys(shard.name for shard in manifest.shards)
    for number in range(1, manifest.version):
        path = f"{manifest.path}/{manifest_name(number)}"
        with contextlib.suppress(FileNotFoundError, ValueError):  # verify reports that it is missing
            earlier = Manifest.from_json(storage.read_bytes(path, most=MAX_MANIFEST_BYTES), manifest.path)
            names |= dict.fromkeys(shard.name for shard in earlier.shards)
    return list(names)


def files_of(manifest: Manifest) -> set[str]:
    """Returns the paths, within the dataset, of all files of a dataset and its earlier versions."""
    names = dataset_files(every_shard(manifest))
    # A version that only left out whole shards has no shard of its own edition.
    editions = [fingerprint[:8] for fingerprint in (*manifest.earlier[1:], manifest.fingerprint)]
    for edition in editions if manifest.earlier else ():
        names |= {lengths_name(edition), rejected_name(edition)}
    return names | {manifest_name(number) for number in range(1, manifest.version)}


def optional_files(shards: Iterable[str]) -> set[str]:
    """Returns the paths of the files that a dataset may have in addition: of the report, for DALI and for TFDS."""
    return {*ON_DEMAND_NAMES, *(f"{index_path(shard).removesuffix('.parquet')}.idx" for shard in shards)}


def is_dataset_file(path: str) -> bool:
    """Returns whether a path, within the dataset, can be the path of a file of this package's dataset or export."""
    if path in (MANIFEST_NAME, *ON_DEMAND_NAMES) or _BESIDE.fullmatch(path):
        return True
    folder, name = posixpath.split(path)
    stem, ending = posixpath.splitext(name)
    if folder == "index" and ending in (".parquet", ".idx"):
        return parse_shard_name(f"{stem}.tfrecord") is not None
    if parse_shard_name(name):
        return path == format_of(name).path(name)
    return any(path in shard_format.side_names({folder}) for shard_format in EXPORTS.values())


def list_dataset(dataset: str) -> Iterator[tuple[str, int]]:
    """Yields (path, bytes) of every file of a dataset; links to folders are not followed, but yielded with -1 bytes.

    Raises:
      OSError: A folder cannot be listed.
    """
    return storage.list_files(dataset, follow=False)


def check_folders(dataset: str) -> None:
    """Checks that the dataset's own folders are not symbolic links, which would lead writes and deletions elsewhere.

    Raises:
      ValueError: One of them is a link.
    """
    for folder in (WORK_NAME, "index"):
        if storage.is_link(path := f"{dataset}/{folder}"):
            raise ValueError(
                f"{path!r} is a symlink, but the folders of a dataset must not be symlinks; replace it with the "
                "folder itself"
            )


def check_working_folders(dataset: str) -> None:
    """Checks that no folder that a conversion or a repair writes into is a symbolic link: see check_folders().

    It lists all working files, so it is called only once, when the lock is taken.

    Raises:
      ValueError: One of them is a link.
    """
    check_folders(dataset)
    work = f"{dataset}/{WORK_NAME}"
    # list_dataset() yields links to folders with -1 bytes. Links to files are harmless: writing replaces the link.
    for path, num_bytes in () if storage.is_uri(dataset) else list_dataset(work):
        if num_bytes < 0 and storage.is_link(f"{work}/{path}"):
            raise ValueError(
                f"{work}/{path} is a symlink, but the folders of a dataset must not be symlinks; remove it"
            )


def index_content(path: str) -> bytes:
    """Returns the bytes of a shard's index, to be parsed by dataset_format/index.py.

    Raises:
      ValueError: It is larger than MAX_INDEX_BYTES.
      OSError: It cannot be read.
    """
    return storage.read_bytes(path, most=MAX_INDEX_BYTES)


def complete_manifest(dataset: str, allow_export: bool = False) -> Manifest:
    """Returns the manifest of a complete dataset, or with `allow_export` of a complete export.

    Raises:
      ValueError: There is no manifest, so it is not complete, or the manifest cannot be read or reached, or is of an
        export and these are not allowed.
    """
    storage.check(dataset)
    manifest = read_manifest(dataset, allow_export)
    if manifest is None:
        if not storage.is_uri(dataset) and not os.path.exists(dataset):
            raise ValueError(f"{dataset!r} does not exist; correct the path, or create a dataset there with convert")
        raise ValueError(
            f"{dataset!r} contains no {MANIFEST_NAME}, so it is not a complete dataset; create one with convert, or, "
            "if a conversion was interrupted or rejected too many inputs, rerun that convert command to resume it"
        )
    return manifest


def read_manifest(dataset: str, allow_export: bool = True) -> Manifest | None:
    """Returns the manifest of a complete dataset, or of a complete export; None if there is none.

    Raises:
      ValueError: The manifest cannot be read, or is of an export and these are not allowed.
    """
    try:
        content = storage.read_bytes(f"{dataset}/{MANIFEST_NAME}", most=MAX_MANIFEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Manifest.from_json(content, dataset, allow_export)


def write_manifest(manifest: Manifest, name: str = MANIFEST_NAME, new: bool = False, version: int = 0) -> None:
    """Writes a manifest into the folder of its dataset; on `new` and `version` see create()."""
    with create(manifest.path, name, new, version) as file:
        file.write(manifest.to_json().encode())


def manifest_digest(manifest: Manifest) -> str:
    """Returns a hash of a manifest's content, as unchanged_manifest() takes it."""
    return hashlib.sha256(manifest.to_json().encode()).hexdigest()


@functools.lru_cache(maxsize=1)
def unchanged_manifest(dataset: str, digest: str) -> Manifest:
    """Returns the manifest of a dataset to a worker that was given only its digest; the last one is cached.

    Raises:
      ValueError: It is another one by now.
    """
    manifest = complete_manifest(dataset)
    if manifest_digest(manifest) != digest:
        raise ValueError(f"{dataset!r} was replaced in the meantime; run the command again")
    return manifest


LOCK_NAME = "lock"


@contextlib.contextmanager
def locked(output: str) -> Iterator[Callable[[], None]]:
    """Holds the lock of `output` against other conversions; it is released, or expires, however the process ends.

    Yields:
      A function that raises OSError if the lock was lost in the meantime.

    Raises:
      ValueError: Another process holds the lock, or one of the dataset's own folders is a link.
      OSError: The lock cannot be written.
    """
    storage.check_writable(output)
    check_working_folders(output)
    path = f"{output}/{WORK_NAME}/{LOCK_NAME}"
    if storage.is_uri(output):  # one of a store with a lock
        from beam_pipelines.storage.gcs_lock import leased as lock
    else:
        lock = _flocked
    with lock(path) as still_locked:
        yield still_locked


@contextlib.contextmanager
def _flocked(path: str) -> Iterator[Callable[[], None]]:
    with contextlib.ExitStack() as stack:
        while True:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = stack.enter_context(_opened(path))
            try:
                with about(path):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                output = path.removesuffix(f"/{WORK_NAME}/{LOCK_NAME}")
                raise ValueError(
                    f"another conversion is writing {output!r}; wait for it, or choose another output"
                ) from None
            # A conversion that has just ended may have removed the file between open and flock; then try again.
            if _is_open_at(file, path):
                break

        def still_locked() -> None:
            if not _is_open_at(file, path):
                raise OSError(
                    f"the lock {path!r} no longer exists: another process has removed {os.path.dirname(path)!r}"
                )

        yield still_locked


def _opened(path: str) -> IO[bytes]:
    """Returns the file at `path` opened for writing, created if it does not exist.

    Raises:
      ValueError: It is not a regular file, but a pipe, for example.
      OSError: It cannot be opened.
    """
    # Without O_NOFOLLOW, the target of a link would be created; without O_NONBLOCK, opening a pipe would block.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:  # the error of a pipe without a reader
            raise
        raise ValueError(f"{path!r} is not a regular file; remove it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path!r} is not a regular file; remove it")
    return open(descriptor, "wb")


def _is_open_at(file: IO[bytes], path: str) -> bool:
    """Returns whether `path` still leads to this open file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False
