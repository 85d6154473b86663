"""Storage backend for Google Cloud Storage, based on Google's client; see storage/__init__.py.

Beam's FileSystems would work too, but they create a new client, and thus a new connection, for each object, and send
two requests for each object that is read (apache_beam/io/gcp/gcsio.py, 2.77). Here a process has one client that its
threads share, and a small object is read with one request. A large object is read in large pieces, with one request
each.

Failed requests are retried if the error may be temporary; all requests are idempotent. Uploads are atomic: an object
appears under its name when its upload is complete. A large one is sent in pieces while it is written; a writer that is
killed, or raises an error, before the end leaves no object behind.
"""

from __future__ import annotations

import base64
import contextlib
import io
import mimetypes
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, cast

import google_crc32c
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage.fileio import BlobWriter

from beam_pipelines.storage import Changed, Unavailable
from beam_pipelines.storage.pieces import PIECE_BYTES
from tpu_input.command_line.google_client import client, is_rate_limit, retries

# Google's default retries start after a delay of one second, which is long if the store is available again at once.
RETRY = retries().with_delay(initial=0.25, maximum=30.0, multiplier=2.0).with_timeout(300.0)
QUICK = RETRY.with_timeout(10.0)  # for checks whose result a user waits for
_QUICK_TIMEOUT = (3.05, 10.0)  # connect and read timeout, in seconds
_IN_FLIGHT = 32  # concurrent deletions


def blob(path: str, generation: int = 0) -> Any:
    """Returns the client's handle of an object, or of one of its generations; sends no request."""
    bucket, name = _parts(path)
    return client().bucket(bucket).blob(name, generation=generation or None)


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Context manager: converts errors of Google's client to the errors of beam_pipelines.storage, in one line each."""
    try:
        yield
    except exceptions.NotFound as error:
        raise FileNotFoundError(f"{path!r} does not exist: {_error_text(error)}") from error
    except (exceptions.Unauthorized, GoogleAuthError) as error:
        raise Unavailable(
            f"{path!r} needs credentials: {_error_text(error)}; run: gcloud auth application-default login, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to the path of a key file"
        ) from error
    except exceptions.Forbidden as error:
        if is_rate_limit(error):
            raise Unavailable(f"{path!r}: {_error_text(error)}; raise the quota, or try again later") from error
        raise Unavailable(
            f"no permission for {path!r}: {_error_text(error)}; reading needs the role Storage Object Viewer, and "
            "writing Storage Object User"
        ) from error
    except exceptions.BadRequest as error:
        advice = "; set GOOGLE_CLOUD_QUOTA_PROJECT to the project that pays" if "requester pays" in str(error) else ""
        raise Unavailable(f"{path!r}: {_error_text(error)}{advice}") from error
    except (exceptions.RetryError, exceptions.ServerError, exceptions.TooManyRequests) as error:
        raise Unavailable(
            f"{path!r} cannot be reached: {_error_text(getattr(error, 'cause', None) or error)}; check the bucket's "
            "name and this machine's network"
        ) from error
    except Exception as error:
        if not type(error).__module__.startswith(("google.", "requests.", "urllib3.")):
            raise
        raise Unavailable(f"{path!r}: {_error_text(error)}") from error


def check(path: str) -> None:
    bucket, name = _parts(path)
    try:
        with explained(path):
            listing = client().list_blobs(bucket, prefix=name, max_results=1, retry=QUICK, timeout=_QUICK_TIMEOUT)
            next(iter(listing), None)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"the bucket 'gs://{bucket}' does not exist; correct the name, or run: gcloud storage buckets create "
            f"gs://{bucket}"
        ) from error


def exists(path: str) -> bool:
    with explained(path):
        return bool(_parts(path)[1] and blob(path).exists(retry=RETRY)) or any(
            True for _ in _listing(path, max_results=1)
        )


def list_files(root: str, follow: bool, folder: str = "") -> Iterator[tuple[str, int, int, str]]:
    skipped = len(_prefix(root))
    with explained(root):
        for entry in _listing(root, folder):
            # The web console and TensorFlow create an empty object with a trailing slash for each folder.
            if not entry.name.endswith("/"):
                yield entry.name[skipped:], entry.size, entry.generation or 0, entry.crc32c or ""


def list_level(root: str, folder: str) -> Iterator[tuple[str, int, int]]:
    skipped = len(_prefix(root))
    with explained(root):
        listing = _listing(root, folder, delimiter="/")
        for entry in listing:
            if not entry.name.endswith("/"):
                yield entry.name[skipped:], entry.size, entry.generation or 0
        for name in sorted(listing.prefixes):
            yield name[skipped:], 0, 0


# Buckets that have answered a request. One that has not is more likely misspelled or unreachable than temporarily
# unavailable, so the first request has a short timeout.
_answered: set[str] = set()


def look(path: str) -> tuple[int, int]:
    bucket = path.removeprefix("gs://").partition("/")[0]
    has_answered = bucket in _answered
    try:
        with explained(path):
            handle = blob(path)
            handle.reload(retry=RETRY) if has_answered else handle.reload(retry=QUICK, timeout=_QUICK_TIMEOUT)
    except (FileNotFoundError, ValueError):  # a line of a list may have an invalid bucket name
        _answered.add(bucket)
        return -1, 0
    _answered.add(bucket)
    return int(handle.size), int(handle.generation)


def written_at(path: str, version: int, or_copied: bool) -> float:
    return (version or look(path)[1]) / 1e6  # the generation: the time of its writing in microseconds


def ranged(path: str) -> tuple[int, Callable[[int, int], bytes]]:
    def fetch(start: int, end: int) -> bytes:
        with explained(path):
            return _download(handle, start, end)

    handle = blob(path)
    with explained(path):
        handle.reload(retry=RETRY)
    return int(handle.size), fetch


def read_bytes(path: str, start: int, end: int | None, version: int) -> bytes:
    with explained(path):
        try:
            return b"" if start == end else _download(blob(path, version), start, end)
        except exceptions.NotFound as error:
            if not version:
                raise
            raise Changed(f"{path!r} was overwritten or deleted: generation {version} does not exist") from error


def _download(handle: Any, start: int, end: int | None) -> bytes:
    # The store has checksums of complete objects only.
    last, checksum = (None, "crc32c") if end is None else (end - 1, None)
    # A second retry around the call, as the client does not retry if the connection breaks during an error response.
    download = RETRY(handle.download_as_bytes)
    return cast(bytes, download(start=start or None, end=last, checksum=checksum, retry=RETRY))


@contextlib.contextmanager
def create(path: str, temporary_in: str, new: bool, version: int, sync_name: bool) -> Iterator[IO[bytes]]:
    upload = _Upload(path, {"if_generation_match": 0 if new else version} if new or version else {})
    yield cast(IO[bytes], upload)
    upload.complete()


class _Writer(BlobWriter):  # type: ignore[misc]
    """Google's upload in pieces, which the garbage collector does not complete: it calls close() of any open file."""

    is_complete = False

    def close(self) -> None:
        if self.is_complete:
            super().close()


@contextlib.contextmanager
def _usual_errors() -> Iterator[None]:
    """Context manager: turns the error that an upload in pieces raises for any status into the status's own."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "InvalidResponse":  # its module depends on the version of the client
            raise
        raise cast(Any, exceptions).from_http_response(cast(Any, error).response) from error


class _Upload(io.RawIOBase):
    """File that becomes an object by complete(), and leaves nothing behind without it.

    It is sent with one request if it has at most PIECE_BYTES, else in pieces while it is written.
    """

    def __init__(self, path: str, conditions: dict[str, int]) -> None:
        self._path, self._target = path, blob(path)
        content_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
        self._arguments = {"content_type": content_type, "checksum": "crc32c", "retry": RETRY, **conditions}
        self._buffer, self._crc, self._num_bytes = io.BytesIO(), 0, 0
        self._writer: _Writer | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._num_bytes

    def write(self, data: Any) -> int:
        self._crc = google_crc32c.extend(self._crc, bytes(data))
        self._num_bytes += len(data)
        if self._num_bytes <= PIECE_BYTES:
            return self._buffer.write(data)
        with self._errors():
            if not self._writer:
                self._writer = _Writer(self._target, PIECE_BYTES, **self._arguments)
                self._writer.write(self._buffer.getvalue())
                self._buffer = io.BytesIO()
            return cast(int, self._writer.write(data))

    def complete(self) -> None:
        """Sends what is not sent yet, upon which the object is there."""
        with self._errors():
            if self._writer:
                self._writer.is_complete = True
                self._writer.close()
            else:
                self._target.upload_from_file(self._buffer, rewind=True, size=self._num_bytes, **self._arguments)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        with explained(self._path):
            try:
                with _usual_errors():
                    yield
            except exceptions.PreconditionFailed as error:
                checksum = base64.b64encode(self._crc.to_bytes(4, "big")).decode()
                _check_content(self._path, self._target, self._num_bytes, checksum, error)


def _check_content(path: str, target: Any, num_bytes: int, checksum: str, error: Exception) -> None:
    """Raises FileExistsError unless the object has this content: an earlier try may have made it, its response lost."""
    target.reload(retry=RETRY)
    if (target.size, target.crc32c) != (num_bytes, checksum):
        raise FileExistsError(f"{path!r} was written by another process in the meantime") from error


def move(source: str, target: str) -> None:
    with explained(source):
        moved = blob(source)
        moved.bucket.copy_blob(moved, blob(target).bucket, _parts(target)[1], retry=RETRY)
        moved.delete(retry=RETRY)


def publish(files: list[tuple[str, str]]) -> None:
    def publish_one(file: tuple[str, str]) -> None:
        source, target = map(blob, file)
        try:
            source.bucket.copy_blob(source, target.bucket, target.name, if_generation_match=0, retry=RETRY)
        except exceptions.PreconditionFailed as error:
            source.reload(retry=RETRY)
            _check_content(file[1], target, source.size, source.crc32c, error)
        with contextlib.suppress(exceptions.NotFound):
            source.delete(retry=RETRY)

    with explained(files[0][0]), ThreadPoolExecutor(_IN_FLIGHT) as pool:
        list(pool.map(publish_one, files))


def delete(paths: list[str]) -> None:
    def delete_one(path: str) -> None:
        with contextlib.suppress(exceptions.NotFound):
            blob(path).delete(retry=RETRY)

    with explained(paths[0]), ThreadPoolExecutor(_IN_FLIGHT) as pool:
        list(pool.map(delete_one, paths))


def _listing(root: str, folder: str = "", **arguments: Any) -> Any:
    """Returns the client's iterator of the objects below a folder of root; `folder` ends with a slash, or is ""."""
    fields = "items(name,size,generation,crc32c),prefixes,nextPageToken"
    prefix = _prefix(root) + folder
    return client().list_blobs(_parts(root)[0], prefix=prefix, fields=fields, retry=RETRY, **arguments)


def _prefix(root: str) -> str:
    """Returns what the names of all objects below a folder begin with."""
    name = _parts(root)[1]
    return f"{name}/" if name else ""


def _parts(path: str) -> tuple[str, str]:
    """Returns the names of bucket and object in a gs:// URI; raises ValueError if it has no bucket."""
    bucket, _, name = path.removeprefix("gs://").partition("/")
    if not bucket:
        raise ValueError(f"{path!r} does not name a bucket; a URI must be gs://BUCKET/PATH")
    return bucket, name


def _error_text(error: BaseException) -> str:
    """Returns an error's message in one line, without the requested URL and the expected status codes."""
    message = _ADDED.sub("", " ".join(str(getattr(error, "message", "") or error).split()))
    return message.strip(" .") or f"status {getattr(error, 'code', 'unknown')}"


_ADDED = re.compile(r"^[A-Z]+ https?://\S+:|:? ?\('Request failed with status code'.*$")
