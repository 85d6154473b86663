"""Objects of gs:// as files in folders, by Google's client and without TensorFlow.

gs://bucket/run/model.ckpt-20 ──▶ exists(), names(), copy(), remove() …; contents: byte_ranges.py

Folders are only prefixes of names. As TensorFlow and the web console do, make_folder() writes an empty object whose
name ends with a slash, so that an empty folder can be found.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

from tpu_input.command_line.google_client import client, retries
from tpu_input.storage.byte_ranges import blob_of, client_errors, read_bytes as read_bytes, write_bytes as write_bytes
from tpu_input.storage.patterns import folder_of


def exists(path: str) -> bool:
    """Returns whether there is an object of this name, or a folder."""
    with client_errors(path):
        return bool(_parts(path)[1] and blob_of(path).exists(retry=retries())) or is_folder(path)


def is_folder(path: str) -> bool:
    """Returns whether there is an object in a folder, or the folder's own empty one; False without a bucket."""
    try:
        with client_errors(path):
            return any(True for _ in _list(path, max_results=1))
    except FileNotFoundError:
        return False


def num_bytes(path: str) -> int:
    """Returns the size of an object; raises FileNotFoundError if there is none."""
    with client_errors(path):
        blob = blob_of(path)
        blob.reload(retry=retries())
        return int(blob.size)


def names(path: str) -> list[str]:
    """Returns the names of the objects in a folder, and of its folders, which end with a slash."""
    skipped = len(_prefix(path))
    with client_errors(path):
        listing = _list(path, delimiter="/")
        entries = {blob.name[skipped:] for blob in listing} | {name[skipped:] for name in listing.prefixes}
    return sorted(entries - {""})


def matches(pattern: str) -> list[str]:
    """Returns the URIs of the objects that match a pattern with *, ? or [], which match no slash."""
    parts = pattern.split("/")

    def is_match(path: str) -> bool:
        names = path.split("/")
        return len(names) == len(parts) and all(map(fnmatch.fnmatchcase, names, parts))

    return list(filter(is_match, paths_below(folder_of(pattern))))


def paths_below(path: str) -> Iterator[str]:
    """Yields the URIs of all objects below a folder, except the objects that stand for folders."""
    bucket = _parts(path)[0]
    with client_errors(path):
        for blob in _list(path):
            if not blob.name.endswith("/"):
                yield f"gs://{bucket}/{blob.name}"


def make_folder(path: str) -> None:
    """Writes the empty object of a folder, unless there is something in it."""
    if not is_folder(path):
        with client_errors(path):
            blob_of(f"{path}/").upload_from_string(b"")


def copy(source: str, target: str) -> None:
    """Copies a file; one of the two or both are objects. An object becomes visible when it is complete."""
    with client_errors(target if target.startswith("gs://") else source):
        if not source.startswith("gs://"):
            blob_of(target).upload_from_filename(source, checksum="crc32c", retry=retries())
        elif not target.startswith("gs://"):
            blob_of(source).download_to_filename(target, checksum="crc32c", retry=retries())
        else:
            blob, (bucket, name) = blob_of(source), _parts(target)
            blob.bucket.copy_blob(blob, client().bucket(bucket), name, retry=retries())


def remove(path: str) -> None:
    """Removes an object; raises FileNotFoundError if there is none."""
    with client_errors(path):
        blob_of(path).delete(retry=retries())


def remove_folder(path: str) -> None:
    """Removes all objects below a folder."""
    with client_errors(path):
        for blob in list(_list(path)):
            blob.delete(retry=retries())


def _list(path: str, **arguments: Any) -> Any:
    """Returns the client's iterator of the objects below a folder."""
    bucket = _parts(path)[0]
    return client().list_blobs(bucket, prefix=_prefix(path), retry=retries(), **arguments)


def _prefix(path: str) -> str:
    """Returns what the names of all objects below a folder begin with."""
    name = _parts(path)[1]
    return f"{name}/" if name else ""


def _parts(path: str) -> tuple[str, str]:
    """Returns the names of bucket and object."""
    bucket, _, name = path.removeprefix("gs://").partition("/")
    return bucket, name.rstrip("/")
