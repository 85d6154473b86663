"""Google's client for buckets, one a process, for both packages that use it; TensorFlow-free.

client() ──▶ google.cloud.storage.Client, which the process's threads share
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

# Kept open; requests keeps 10, and opens a new one, with a new handshake, for each thread above that.
_CONNECTIONS = 128


def client() -> Any:
    """Returns this process's client.

    Threads may share it (github.com/googleapis/google-cloud-python/issues/5685), with enough connections
    (github.com/googleapis/python-storage/issues/253). A process that was forked, as PyTorch's loaders are, may not go
    on with its parent's connections. Without credentials, public buckets can be read.

    Raises:
      ImportError: google-cloud-storage is not installed.
      google.auth.exceptions.DefaultCredentialsError: GOOGLE_APPLICATION_CREDENTIALS names none that are of use.
    """
    return _client_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _client_of(process: int) -> Any:
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    try:
        with warnings.catch_warnings():
            # Of users whom gcloud has logged in without a project, which objects do not need.
            warnings.filterwarnings("ignore", "Your application has authenticated using end user credentials")
            made = storage.Client(project=None)
    except DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):  # there are some, of no use
            raise
        made = storage.Client.create_anonymous_client()
    for scheme in ("https://", "http://"):
        made._http.mount(scheme, HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS))
    return made
