"""Storage backend for datasets of Hugging Face: hf://datasets/OWNER/NAME[@REVISION]/PATH; see storage/__init__.py.

    branch or tag ──hub_api.py──▶ commit ──hub_api.py──▶ files, with size and Git's hash of the content ──▶ versions
    commit, path ──obstore: the Hub's /resolve/, which leads to a CDN──▶ bytes

A process asks once which commit a branch or a tag names, and lists and reads this commit; check() asks again. A
complete file is compared with the hash that was listed for it. A range comes from a commit in which the file has that
hash, and from a file of that size.

obstore sends the token to HF_ENDPOINT, and drops it where a redirect leads to another host.

Why not huggingface_hub, and what was tried with it: docs/stores.md.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from obstore.store import HTTPStore

from beam_pipelines.storage import Changed, hub_api, object_stores
from beam_pipelines.storage.object_stores import below, join

# As huggingface_hub has it: a slash in a revision is written %2F, but for those that the Hub itself makes.
_URI = re.compile(
    r"(hf://datasets/(\w[\w.-]*/\w[\w.-]*)(?:@(refs/convert/[\w.-]+|refs/pr/\d+|[^/@]+))?)(?:/((?s:.*)))?", re.ASCII
)
_lock = threading.Lock()  # one thread lists a folder, or asks for a commit, and the others have the result
_commits: dict[str, str] = {}  # by the URI of the dataset


def check(path: str) -> None:
    dataset, _ = _parts(path)
    _commits.pop(dataset.uri, None)
    _commit(dataset)


def exists(path: str) -> bool:
    dataset, name = _parts(path)
    return look(path)[0] >= 0 or bool(_level(dataset, name))


def list_files(root: str, follow: bool, folder: str = "") -> Iterator[tuple[str, int, int, str]]:
    dataset, name = _parts(root)
    for path, num_bytes, digest in hub_api.entries(dataset, _commit(dataset), join(name, folder), is_recursive=True):
        if not path.endswith("/"):
            yield below(path, name), num_bytes, _version(digest, num_bytes), ""


def list_level(root: str, folder: str) -> Iterator[tuple[str, int, int]]:
    dataset, name = _parts(root)
    for path, (num_bytes, version) in _level(dataset, join(name, folder)).items():
        yield below(path, name), num_bytes, version


def look(path: str) -> tuple[int, int]:
    try:
        dataset, name = _parts(path)
    except ValueError:  # a line of a list may have an invalid name
        return -1, 0
    try:
        return _level(dataset, name.rpartition("/")[0]).get(name, (-1, 0))
    except FileNotFoundError:
        return -1, 0


def written_at(path: str, version: int, or_copied: bool) -> float:
    return math.inf


def ranged(path: str) -> tuple[int, Callable[[int, int], bytes]]:
    num_bytes, version = look(path)
    if num_bytes < 0:
        raise FileNotFoundError(f"{path!r} does not exist")
    return num_bytes, lambda start, end: read_bytes(path, start, end if start or end < num_bytes else None, version)


def read_bytes(path: str, start: int, end: int | None, version: int) -> bytes:
    if start == end:
        return b""
    dataset, name = _parts(path)
    is_compared = bool(version) and not start and end is None
    num_bytes, present = look(path) if version and not is_compared else (-1, version)
    if present != version:
        raise Changed(f"{path!r} was overwritten: it has another hash in the commit {_commit(dataset)}")

    def check_size(answer: Any) -> None:
        if num_bytes not in (-1, answer["size"]):
            raise Changed(f"{path!r} was overwritten: it has {answer['size']} bytes, and {num_bytes} when listed")

    try:
        with object_stores.explained(path):
            data = object_stores.fetch(path, _store(dataset), name, start, end, check_size)
    except FileNotFoundError as error:
        if not version:
            raise
        raise Changed(f"{path!r} was deleted") from error
    if is_compared and version not in _versions(data):
        raise Changed(f"{path!r} was overwritten, or arrives damaged: its content has another hash than when listed")
    return data


def _versions(data: bytes) -> Iterator[int]:
    """Yields the versions that a file with this content may have: in Git LFS, and in Git."""
    yield _version(hashlib.sha256(data).hexdigest(), len(data))
    digest = hashlib.sha1(f"blob {len(data)}\0".encode(), usedforsecurity=False)
    digest.update(data)
    yield _version(digest.hexdigest(), len(data))


def _version(digest: str, num_bytes: int) -> int:
    return object_stores.version_of({"e_tag": digest, "size": num_bytes})


def _commit(dataset: hub_api.Dataset) -> str:
    """Returns the commit that a revision named when this process asked for it."""
    object_stores.check_not_forked(dataset.uri)
    with _lock:
        if dataset.uri not in _commits:
            _commits[dataset.uri] = hub_api.commit(dataset)
        return _commits[dataset.uri]


def _level(dataset: hub_api.Dataset, folder: str) -> dict[str, tuple[int, int]]:
    """Returns size and version of what lies in a folder, by path in the dataset; the paths of folders end with a slash.

    A folder is listed once, as the lines of a list ask for each of its files.
    """
    commit = _commit(dataset)
    with _lock:
        return _listed(dataset, commit, folder)


@functools.lru_cache(maxsize=4096)
def _listed(dataset: hub_api.Dataset, commit: str, folder: str) -> dict[str, tuple[int, int]]:
    entries = hub_api.entries(dataset, commit, folder, is_recursive=False)
    return {path: (num_bytes, _version(digest, num_bytes) if digest else 0) for path, num_bytes, digest in entries}


def _store(dataset: hub_api.Dataset) -> Any:
    """Returns obstore's store of the files of a dataset, which all threads share."""
    url = f"{hub_api.endpoint()}/datasets/{dataset.name}/resolve/{_commit(dataset)}"
    return _cached_store(url, tuple(hub_api.headers().items()), object_stores.patience_with(dataset.uri))


@functools.lru_cache(maxsize=256)
def _cached_store(url: str, headers: tuple[tuple[str, str], ...], patience: object_stores.Patience) -> Any:
    limits = object_stores.limits_of(patience, url)
    limits["client_options"] |= {"default_headers": dict(headers)}
    return HTTPStore.from_url(url, **limits)


def _parts(path: str) -> tuple[hub_api.Dataset, str]:
    """Returns the dataset of a URI, and the path of a file or folder in it; raises ValueError if it names none."""
    match = _URI.fullmatch(path)
    if not match:
        kind = path.removeprefix("hf://").partition("/")[0]
        problem = f"is one of {kind}" if kind in ("models", "spaces", "buckets") else "does not name a dataset"
        raise ValueError(
            f"{path!r} {problem}; of Hugging Face, datasets are read: hf://datasets/OWNER/NAME/PATH or, with a branch, "
            "a tag or a commit, hf://datasets/OWNER/NAME@REVISION/PATH"
        )
    uri, name, revision, file = match.groups()
    return hub_api.Dataset(uri, name, urllib.parse.unquote(revision or "main")), file or ""
