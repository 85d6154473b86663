"""Google Cloud Storage client, one per process, for both packages that use it; TensorFlow-free.

client() ──▶ google.cloud.storage.Client, which all threads of the process share
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

# Size of the pool of open connections. The default of requests is 10; each thread above that opens a new connection,
# with a new handshake.
_CONNECTIONS = 128


def client() -> Any:
    """Returns this process's client.

    The client is thread-safe (github.com/googleapis/google-cloud-python/issues/5685), with enough connections
    (github.com/googleapis/python-storage/issues/253). A forked process, such as a worker of PyTorch's DataLoader, must
    not use its parent's connections and gets its own client. Without credentials, public buckets can be read.

    Raises:
      ImportError: google-cloud-storage is not installed.
      google.auth.exceptions.DefaultCredentialsError: GOOGLE_APPLICATION_CREDENTIALS names no usable credentials.
    """
    return _client_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _client_of(process: int) -> Any:
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    try:
        with warnings.catch_warnings():
            # Shown to users who are logged in by gcloud without a project; access to objects needs no project.
            warnings.filterwarnings("ignore", "Your application has authenticated using end user credentials")
            made = storage.Client(project=None)
    except DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):  # they are given, but not usable
            raise
        made = storage.Client.create_anonymous_client()
    for scheme in ("https://", "http://"):
        made._http.mount(scheme, HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS))
    return made
