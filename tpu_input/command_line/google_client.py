"""Google Cloud Storage client, one per process, for both packages that use it; TensorFlow-free.

client() ──▶ google.cloud.storage.Client, which all threads of the process share
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

# Reasons of status 403 that end by themselves, when the rate or the quota has room again; 429 has the same ones:
# https://cloud.google.com/storage/docs/json_api/v1/status-codes
_RATE_REASONS = frozenset({"quotaExceeded", "rateLimitExceeded", "userRateLimitExceeded"})
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
            storage_client = storage.Client(project=None)
    except DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):  # they are given, but not usable
            raise
        storage_client = storage.Client.create_anonymous_client()
    for scheme in ("https://", "http://"):
        storage_client._http.mount(scheme, HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS))
    return storage_client


def retries() -> Any:
    """Returns Google's retries of requests, extended to a rate limit as status 403 and to a damaged download."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_predicate(
        lambda error: (
            DEFAULT_RETRY._predicate(error) or is_rate_limit(error) or type(error).__name__ == "DataCorruption"
        )
    )


def is_rate_limit(error: BaseException) -> bool:
    """Returns whether an error of Google's client is a status 403 whose reason is a rate or a quota."""
    response = getattr(error, "response", None)
    if getattr(response, "status_code", None) != 403 and getattr(error, "code", None) != 403:
        return False
    try:
        errors = getattr(error, "errors", None) or response.json()["error"]["errors"]  # type: ignore[union-attr]
        return any(entry.get("reason") in _RATE_REASONS for entry in errors)
    except (AttributeError, KeyError, TypeError, ValueError):  # not an answer of the JSON API
        return any(reason in str(error) for reason in _RATE_REASONS)
