"""Settings of TensorFlow's filesystem for gs://, and readable messages for its errors; TensorFlow-free.

"… HTTP response code 403 with body '{…}' when reading gs://b/train-…" ──in_words()──▶ which object, why, and what helps
"""

from __future__ import annotations

import os
import re

# Block size: what TensorFlow reads of a file in a bucket at once, and caches of each open one. Its default takes 64 GB
# for 1,024 shards that are open at the same time. Records are read in larger requests, which bypass this cache, but to
# seek a record TensorFlow reads the byte before it, and so a block (RandomAccessInputStream::SkipNBytes). Of the two
# variables, TensorFlow prefers the second, which users may have set.
_BLOCK_BYTES, _DEFAULT_BLOCK_BYTES = 64 << 10, 64 << 20
_BYTES_NAME, _MEGABYTES_NAME = "GCS_READAHEAD_BUFFER_SIZE_BYTES", "GCS_READ_CACHE_BLOCK_SIZE_MB"

_STATUS = re.compile(r"HTTP response code (\d+)")
_UNREACHED = re.compile(r"libcurl code \d+ meaning '(.+?)', error details")
_URI = re.compile(r"gs://[^\s'\"]+")
_REASONS = {
    "401": "no valid credentials; log in with: gcloud auth application-default login",
    "403": "no permission; reading needs the role Storage Object Viewer on the bucket, writing Storage Object User",
    "404": "there is no such object or bucket",
}
_REQUESTER_PAYS = (
    "the bucket is requester pays; set the project to bill: GCS_ADDITIONAL_REQUEST_HEADER=x-goog-user-project:PROJECT, "
    "for RecordSource GOOGLE_CLOUD_QUOTA_PROJECT=PROJECT"
)


def set_up() -> None:
    """Sets the block size of TensorFlow's filesystem, unless the user has set it.

    TensorFlow reads the setting when it is imported, so this must be called before.
    """
    if _MEGABYTES_NAME not in os.environ:
        os.environ.setdefault(_BYTES_NAME, str(_BLOCK_BYTES))


def block_bytes() -> int:
    """Returns how much TensorFlow caches of each open file in a bucket, in bytes."""
    if _MEGABYTES_NAME in os.environ:
        return int(os.environ[_MEGABYTES_NAME]) << 20
    return int(os.environ.get(_BYTES_NAME, _DEFAULT_BLOCK_BYTES))


def blocks_advice(path: str, open_files: int) -> str:
    """Returns what to set if files that are open in a bucket take more than a gigabyte of blocks; "" if they do not.

    Args:
      path: Of the dataset.
      open_files: Number of files that are open at the same time.
    """
    num_bytes = open_files * block_bytes()
    if not path.startswith("gs://") or num_bytes <= 1 << 30:
        return ""
    return (
        f"{path}: TensorFlow caches a block of {block_bytes() / 1e6:.0f} MB of each of {open_files} open files, up to "
        f"{num_bytes / 1e9:.1f} GB; set the environment variable {_BYTES_NAME}={_BLOCK_BYTES} "
        "before importing TensorFlow"
    )


def in_words(message: str) -> str:
    """Returns TensorFlow's message about a failed request as one readable line; any other message unchanged."""
    if "Error executing an HTTP request" not in message:
        return message
    uris = _URI.findall(message)
    return f"{uris[-1]}: {_reason(message)}" if uris else _reason(message)


def _reason(message: str) -> str:
    status, unreached = _STATUS.search(message), _UNREACHED.search(message)
    if unreached:
        emulated = "; TensorFlow does not use STORAGE_EMULATOR_HOST" if "STORAGE_EMULATOR_HOST" in os.environ else ""
        return f"the bucket cannot be reached: {unreached[1]}{emulated}"
    return reason(status[1] if status else "nothing", message)


def reason(status: str, message: str) -> str:
    """Returns why a bucket refused a request, and what helps, by the HTTP status and message of the response."""
    if "UserProjectMissing" in message or "requester pays" in message:
        return _REQUESTER_PAYS
    again = " repeatedly; try again later" if status == "429" or status.startswith("5") else ""
    return _REASONS.get(status, f"the storage answers {status}{again}")
