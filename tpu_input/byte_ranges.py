"""Bytes of files for Python, from any thread or process: of a bucket by Google's own client, a request each time.

TensorFlow's filesystem, which everything else here is read with, takes a whole block of a bucket's file (buckets.py)
where a record is wanted. It stays for other URIs, and where google-cloud-storage is not installed.

path, start, num_bytes ──▶ read_bytes() ──▶ those bytes, fewer where the file ends
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any, cast

from tpu_input.buckets import reason

# Connections kept open; requests keeps 10, and opens a new one, with a new handshake, for each thread above that.
_CONNECTIONS = 64


def read_bytes(path: str, start: int = 0, num_bytes: int | None = None) -> bytes:
    """Returns `num_bytes` of a file from byte `start` on; None is all of them.

    Raises:
      OSError: It cannot be read, or TensorFlow's own error for what TensorFlow reads.
    """
    if "://" not in path:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(-1 if num_bytes is None else num_bytes)
    if path.startswith("gs://") and (client := _client(os.getpid())):
        return _download(client, path, start, num_bytes)
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(start)
        return cast(bytes, file.read(-1 if num_bytes is None else num_bytes))


def _download(client: Any, path: str, start: int, num_bytes: int | None) -> bytes:
    from google.api_core.exceptions import GoogleAPICallError, RequestRangeNotSatisfiable, RetryError
    from google.auth.exceptions import GoogleAuthError
    from requests import RequestException

    bucket, _, name = path.removeprefix("gs://").partition("/")
    last = None if num_bytes is None else start + num_bytes - 1
    # The store knows the checksum of a whole object alone; records have their own.
    checksum = "crc32c" if num_bytes is None else None
    try:
        return cast(bytes, client.bucket(bucket).blob(name).download_as_bytes(start=start, end=last, checksum=checksum))
    except RequestRangeNotSatisfiable:
        return b""
    except GoogleAPICallError as error:
        raise OSError(f"{path}: {reason(str(error.code), str(error))}") from error
    except (RetryError, GoogleAuthError, RequestException) as error:
        raise OSError(f"{path}: the bucket cannot be reached: {error}") from error


@functools.lru_cache(maxsize=1)
def _client(process: int) -> Any:
    """Returns this process's client, which its threads share; None where it is not installed.

    A process that was forked, as PyTorch's loaders are, may not go on with its parent's connections. Without
    credentials, public buckets can be read.
    """
    try:
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import storage
        from requests.adapters import HTTPAdapter
    except ImportError:
        return None
    try:
        with warnings.catch_warnings():
            # Of users whom gcloud has logged in without a project, which objects do not need.
            warnings.filterwarnings("ignore", "Your application has authenticated using end user credentials")
            client = storage.Client(project=None)
    except DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):  # there are some, of no use
            raise
        client = storage.Client.create_anonymous_client()
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS))
    return client
