"""A dataset's files, and its manifest."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable, Iterator
from typing import IO

from beam_pipelines import storage
from tpu_input.dataset_format.index import index_path
from tpu_input.dataset_format.records import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, parse_shard_name

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
