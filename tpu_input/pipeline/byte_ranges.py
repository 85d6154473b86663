"""Bytes of files for Python, from any thread or process: of a bucket by Google's own client, a request each time.

TensorFlow's filesystem, which everything else here is read with, takes a whole block of a bucket's file
(gcs_filesystem.py) where a record is wanted. It stays for other URIs, and where google-cloud-storage is not installed.

path, start, num_bytes ──▶ read_bytes() ──▶ those bytes, fewer where the file ends
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import cast

from tpu_input.command_line.google_client import client
from tpu_input.pipeline.gcs_filesystem import reason


def check_file(path: str, most: int | None = None) -> None:
    """Checks that what a local path leads to is a file, if anything: a pipe would be waited for without end.

    Args:
      path: Path; a URI passes.
      most: Bytes that it may have, as it is read as a whole; a file with holes takes no disk, but memory.

    Raises:
      ValueError: It is something else, or has more bytes.
    """
    if "://" in path:
        return
    with contextlib.suppress(OSError):  # which whoever reads it tells
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path!r} is no file; remove it, and copy the dataset again")
        if most is not None and status.st_size > most:
            raise ValueError(f"{path!r} has {status.st_size:,} bytes, which none of its kind has; copy it again")


def read_bytes(path: str, start: int = 0, num_bytes: int | None = None) -> bytes:
    """Returns `num_bytes` of a file from byte `start` on; None is all of them.

    Raises:
      ValueError: It is no file.
      OSError: It cannot be read, or TensorFlow's own error for what TensorFlow reads.
    """
    if "://" not in path:
        check_file(path)
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(-1 if num_bytes is None else num_bytes)
    if path.startswith("gs://"):
        with contextlib.suppress(ImportError):
            return _download(path, start, num_bytes)
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(start)
        return cast(bytes, file.read(-1 if num_bytes is None else num_bytes))


def _download(path: str, start: int, num_bytes: int | None) -> bytes:
    from google.api_core.exceptions import GoogleAPICallError, RequestRangeNotSatisfiable, RetryError
    from google.auth.exceptions import GoogleAuthError
    from requests import RequestException

    bucket, _, name = path.removeprefix("gs://").partition("/")
    last = None if num_bytes is None else start + num_bytes - 1
    # The store knows the checksum of a whole object alone; records have their own.
    checksum = "crc32c" if num_bytes is None else None
    try:
        found = client().bucket(bucket).blob(name)
        return cast(bytes, found.download_as_bytes(start=start, end=last, checksum=checksum))
    except RequestRangeNotSatisfiable:
        return b""
    except GoogleAPICallError as error:
        raise OSError(f"{path}: {reason(str(error.code), str(error))}") from error
    except (RetryError, GoogleAuthError, RequestException) as error:
        raise OSError(f"{path}: the bucket cannot be reached: {error}") from error
