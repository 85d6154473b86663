"""Storage backend for the other URIs that Beam's FileSystems support (s3://, hdfs://, …); see storage/__init__.py."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import IO, cast

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

_AS_IT_IS = CompressionTypes.UNCOMPRESSED


def check(path: str) -> None:
    """Raises ValueError for a URI scheme that Beam does not support."""
    FileSystems.get_scheme(path)
    FileSystems.exists(path)


def exists(path: str) -> bool:
    return bool(FileSystems.exists(path)) or any(True for _ in list_files(path, follow=True))


def is_link(path: str) -> bool:
    return False


def list_files(root: str, follow: bool) -> Iterator[tuple[str, int, int]]:
    literally = re.sub(r"[[*?]", r"[\g<0>]", root)
    for metadata in FileSystems.match([f"{literally}/**"])[0].metadata_list:
        yield metadata.path[len(root) + 1 :], metadata.size_in_bytes, 0


def look(path: str) -> tuple[int, int]:
    try:
        return int(FileSystems.get_filesystem(path).metadata(path).size_in_bytes), 0
    except ValueError:  # a line of a list may have a URI scheme that Beam does not support
        return -1, 0
    except OSError:  # BeamIOError is an OSError, and also raised for missing files
        if FileSystems.exists(path):
            raise
        return -1, 0


def open_file(path: str) -> IO[bytes]:
    return cast(IO[bytes], FileSystems.open(path, compression_type=_AS_IT_IS))


def read_bytes(path: str, start: int, end: int | None, version: int) -> bytes:
    with open_file(path) as file:
        if start:
            file.seek(start)
        return file.read(-1 if end is None else end - start)


@contextlib.contextmanager
def create(path: str, temporary_in: str, new: bool) -> Iterator[IO[bytes]]:
    with FileSystems.create(path, compression_type=_AS_IT_IS) as file:
        yield file


def move(source: str, target: str) -> None:
    FileSystems.rename([source], [target])


def delete(paths: list[str]) -> None:
    with contextlib.suppress(BeamIOError):
        FileSystems.delete(paths)
