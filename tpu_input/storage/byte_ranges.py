"""Reading of byte ranges of files, and writing of files, thread-safe: of gs:// by Google's client, one request a call.

TensorFlow's filesystem, which the rest of the package reads with, requests a complete block of a file in a bucket
(gcs_filesystem.py) even if only one record is needed. It is used for other URIs, and where google-cloud-storage is not
installed.

path, start, num_bytes ──▶ read_bytes() ──▶ those bytes, fewer where the file ends
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, cast

from tpu_input.command_line.distribution import needing_extras
from tpu_input.command_line.google_client import client, retries
from tpu_input.storage.gcs_filesystem import reason


class Unavailable(OSError):
    """Error of a bucket that cannot be reached, or answers with an error of its own: a later attempt may succeed."""


def check_file(path: str, most: int | None = None) -> None:
    """Checks that a local path, if it exists, is a regular file: reading from a pipe could block forever.

    Args:
      path: Path; a URI is not checked.
      most: Largest allowed size in bytes, for a file that is read completely: a sparse file takes no disk space, but
        memory when it is read. None allows any size.

    Raises:
      ValueError: It is not a regular file, or it is larger.
    """
    if "://" in path:
        return
    with contextlib.suppress(OSError):  # reported when the file is read
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path!r} is not a regular file; remove it, and copy the dataset again")
        if most is not None and status.st_size > most:
            raise ValueError(
                f"{path!r} has {status.st_size:,} bytes, more than a file of its kind can have; copy it again"
            )


def check_files(folder: str, names: Iterable[str]) -> None:
    """Checks, as check_file() does, the files of these names in a local folder, by one listing of the folder.

    The status of each of 100,000 files takes a second, and over a network a minute or more.

    Raises:
      ValueError: One is not a regular file.
    """
    if "://" in folder:
        return
    with contextlib.suppress(OSError):  # reported when the files are read
        with os.scandir(folder) as entries:
            others = {entry.name for entry in entries if not _is_file(entry)}
        for name in others.intersection(names):
            check_file(f"{folder}/{name}")


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


def read_bytes(path: str, start: int = 0, num_bytes: int | None = None) -> bytes:
    """Returns `num_bytes` bytes of a file from byte `start` on, fewer at its end; None returns all.

    Raises:
      ValueError: It is not a regular file, or a URI that TensorFlow cannot read.
      FileNotFoundError: There is no such file.
      OSError: It cannot be read. For a file that TensorFlow reads, TensorFlow's own error is raised instead.
    """
    if "://" not in path:
        return _read_local(path, start, num_bytes)
    if path.startswith("gs://"):
        with contextlib.suppress(ImportError):
            return _download(path, start, num_bytes)
    elsewhere = f"{path!r} cannot be read: copy it to a local folder or to gs://, from which datasets are read"
    try:
        with needing_extras(f"reading {path!r}"):
            import tensorflow as tf
    except ImportError as error:
        if path.startswith("gs://"):
            raise
        raise ValueError(elsewhere) from error
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            file.seek(start)
            return cast(bytes, file.read(-1 if num_bytes is None else num_bytes))
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(error.message) from error
    except tf.errors.UnimplementedError as error:  # the URI's scheme; TensorFlow I/O adds some
        raise ValueError(elsewhere) from error


def _read_local(path: str, start: int, num_bytes: int | None) -> bytes:
    """Reads as read_bytes(), the bytes mostly with one system call: in half of the CPU time that open() takes."""
    check_file(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # or else a pipe put there meanwhile would block
    try:
        if num_bytes is not None and len(data := os.pread(descriptor, num_bytes, start)) == num_bytes:
            return data
        with open(descriptor, "rb", closefd=False) as file:  # reads to the end, or raises the error that stopped it
            file.seek(start)
            return file.read(-1 if num_bytes is None else num_bytes)
    finally:
        os.close(descriptor)


def read_existing(path: str, most: int) -> bytes | None:
    """Returns the content of a file of at most `most` bytes; None if there is no such file.

    Raises:
      ValueError: It is not a regular file, or is larger.
      OSError: It cannot be read.
    """
    check_file(path, most)
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file atomically: locally by renaming a temporary file; uploads of objects are always atomic.

    Raises:
      OSError: It cannot be written. For a file that TensorFlow writes, TensorFlow's own error is raised instead.
    """
    if "://" not in path:
        temporary = f"{path}.{uuid.uuid4().hex}"
        try:
            with open(temporary, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)
        return
    if path.startswith("gs://"):
        with contextlib.suppress(ImportError), client_errors(path):
            blob_of(path).upload_from_string(content)
            return
    with needing_extras(f"writing {path!r}"):
        import tensorflow as tf

    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(content)


def is_no_bucket(path: str) -> bool:
    """Returns whether a path is in a bucket that does not exist; False also if that cannot be determined."""
    if not path.startswith("gs://"):
        return False
    with contextlib.suppress(ImportError, OSError), client_errors(path):
        return not client().bucket(path.split("/")[2]).exists()
    return False


def _download(path: str, start: int, num_bytes: int | None) -> bytes:
    from google.api_core.exceptions import RequestRangeNotSatisfiable

    last = None if num_bytes is None else start + num_bytes - 1
    # GCS has a checksum of the complete object only; TFRecords have their own checksums per record.
    checksum = "crc32c" if num_bytes is None else None
    with client_errors(path), contextlib.suppress(RequestRangeNotSatisfiable):
        download = blob_of(path).download_as_bytes
        return cast(bytes, download(start=start, end=last, checksum=checksum, retry=retries()))
    return b""


def blob_of(path: str) -> Any:
    """Returns the client's handle of an object; sends no request."""
    bucket, _, name = path.removeprefix("gs://").partition("/")
    return client().bucket(bucket).blob(name)


@contextlib.contextmanager
def client_errors(path: str) -> Iterator[None]:
    """Raises OSError, with the path and what helps, for the errors of Google's client.

    It is a FileNotFoundError where there is no such object or bucket, Unavailable where a later attempt may succeed.
    """
    from google.api_core.exceptions import GoogleAPICallError, NotFound, RetryError, ServerError, TooManyRequests
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError
    from requests import RequestException

    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(f"{path}: {reason(str(error.code), str(error))}") from error
    except (ServerError, TooManyRequests) as error:
        raise Unavailable(f"{path}: {reason(str(error.code), str(error))}") from error
    except GoogleAPICallError as error:
        raise OSError(f"{path}: {reason(str(error.code), str(error))}") from error
    except (DefaultCredentialsError, RefreshError) as error:
        raise OSError(f"{path}: {reason('401', str(error))}") from error
    except (RetryError, GoogleAuthError, RequestException) as error:
        raise Unavailable(f"{path}: the bucket cannot be reached: {error}") from error
