"""Storage backend for what is read, not written: s3://, az:// and http(s)://, by obstore; see storage/__init__.py.

obstore is Rust's object_store for Python. Each request is bounded in seconds, redirects and retries; a range comes with
the size and the ETag of its object, or not at all; an answer without a length, or with all bytes where a range was
requested, is an error. So what is read is checked against what was planned without a further request.

A web server has files but lists none.

A row has a number as its version: a hash of ETag and size. A read compares it with the ETag of its own answer.

A process that is forked after another has used obstore would wait forever for threads that it does not have. Workers of
a conversion are forked from a process that has read nothing (runners/worker_process.py); elsewhere it is an error.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple, cast

import obstore
from obstore import exceptions
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.store import AzureStore, HTTPStore, S3Store

from beam_pipelines import storage
from beam_pipelines.storage import Changed, Unavailable


class Patience(NamedTuple):
    """Limits of a request in seconds: to connect, for one try including its whole answer, and for all retries."""

    connect: float
    answer: float
    retries: float


PATIENT = Patience(5, 30, 300)
QUICK = Patience(3, 5, 4)  # for a store that has not answered yet: its name may be mistyped
_BODY_TRIES = 3  # obstore tries a request again, but not an answer that stalls in its middle
_answered: set[str] = set()  # buckets that have answered this process
_used_by = 0  # the process that has used obstore; 0 for none yet


def check(path: str) -> None:
    bucket, name = _parts(path)
    if not storage.lists_files(path):
        return  # each file is looked for
    try:
        with explained(path):
            next(iter(obstore.list(_bucket(bucket), name or None, chunk_size=1)), None)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"the bucket {bucket!r} does not exist; correct the name") from error
    has_answered(bucket)


def exists(path: str) -> bool:
    bucket, name = _parts(path)
    if name and look(path)[0] >= 0:
        return True
    if not storage.lists_files(path):
        return False
    with explained(path):
        return any(True for _ in obstore.list(_bucket(bucket), name or None, chunk_size=1))


def list_files(root: str, follow: bool, folder: str = "") -> Iterator[tuple[str, int, int, str]]:
    bucket, name, prefix = _listed_parts(root, folder)
    with explained(root):
        for entry in itertools.chain.from_iterable(obstore.list(_bucket(bucket), prefix or None)):
            if not _is_folder(bucket, entry):
                yield below(entry["path"], name), entry["size"], version_of(entry), ""


def list_level(root: str, folder: str) -> Iterator[tuple[str, int, int]]:
    bucket, name, prefix = _listed_parts(root, folder)
    with explained(root):
        level = obstore.list_with_delimiter(_bucket(bucket), prefix or None)
        for entry in level["objects"]:
            if entry["path"] != prefix:  # the folder's own empty object
                yield below(entry["path"], name), entry["size"], version_of(entry)
        for path in level["common_prefixes"]:
            yield f"{below(path, name)}/", 0, 0


def _listed_parts(root: str, folder: str) -> tuple[str, str, str]:
    """Returns the URI of the bucket, the name of `root` in it, and what to list: the name of a folder below root."""
    if not storage.lists_files(root):
        raise NotADirectoryError(f"{root!r} is on a web server, which lists no files")
    bucket, name = _parts(root)
    return bucket, name, join(name, folder)


def join(*names: str) -> str:
    """Returns the name of what lies in a folder; the names of folders may end with a slash, or be ""."""
    return "/".join(filter(None, (name.rstrip("/") for name in names)))


def below(path: str, root: str) -> str:
    """Returns a path relative to root, which may be ""."""
    return path[len(root) + 1 :] if root else path


def _is_folder(bucket: str, entry: Any) -> bool:
    """Returns whether what is listed is the empty object of a folder, whose name ends with a slash.

    Consoles of stores make such objects. obstore lists them without the slash, but does not find them by that name.
    """
    if entry["size"]:
        return False
    try:
        obstore.head(_bucket(bucket), entry["path"])
    except FileNotFoundError:
        return True
    return False


def look(path: str) -> tuple[int, int]:
    try:
        bucket, _ = _parts(path)
        entry = _head(path)
    except (FileNotFoundError, ValueError):  # a line of a list may have an invalid name
        return -1, 0
    has_answered(bucket)
    return entry["size"], version_of(entry)


def written_at(path: str, version: int, or_copied: bool) -> float:
    return float(_head(path)["last_modified"].timestamp())


def ranged(path: str) -> tuple[int, Callable[[int, int], bytes]]:
    entry = _head(path)
    num_bytes, version = entry["size"], version_of(entry)

    def fetch(start: int, end: int) -> bytes:
        # Not every server knows ranges; all know whole files.
        return read_bytes(path, start, None if (start, end) == (0, num_bytes) else end, version)

    return num_bytes, fetch


def read_bytes(path: str, start: int, end: int | None, version: int) -> bytes:
    if start == end:
        return b""
    bucket, name = _parts(path)

    def check_version(entry: Any) -> None:
        if version and version_of(entry) != version:
            raise Changed(f"{path!r} was overwritten: its ETag or size is another one")

    try:
        with explained(path):
            return fetch(path, _bucket(bucket), name, start, end, check_version)
    except FileNotFoundError as error:
        if not version:
            raise
        raise Changed(f"{path!r} was deleted") from error


def fetch(path: str, store: Any, name: str, start: int, end: int | None, check_object: Callable[[Any], None]) -> bytes:
    """Returns bytes of an object.

    Args:
      path: URI of it, for messages.
      store: Store of obstore.
      name: Name of the object in the store.
      start: First byte.
      end: Byte after the last one; None for the end of the object.
      check_object: Function of what the answer says about the object, which raises an error if it is another one.
    """
    options: dict[str, Any] = {} if end is None and not start else {"range": (start, end) if end else {"offset": start}}
    for tries_left in reversed(range(_BODY_TRIES)):
        try:
            answer = obstore.get(store, name, options=cast(Any, options))
            check_object(answer.meta)
            first, last = answer.range
            pieces, num_bytes = [], 0
            for piece in answer.stream():
                pieces.append(bytes(piece))
                num_bytes += len(piece)
                if num_bytes > last - first:
                    raise OSError(f"{path!r}: the server sends more bytes than were asked for")
            if num_bytes < last - first:
                raise OSError(f"{path!r}: the server sends fewer bytes than were asked for")
            return b"".join(pieces)
        except exceptions.GenericError as error:
            if "body error" not in str(error) or not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _head(path: str) -> Any:
    bucket, name = _parts(path)
    with explained(path):
        return obstore.head(_bucket(bucket), name)


def version_of(entry: Any) -> int:
    """Returns a number that is another one for other bytes: of the ETag and size, or of date and size without one."""
    tag = (entry["e_tag"] or str(entry["last_modified"])).strip('"')  # Azure lists it without the quotes
    text = f"{tag} {entry['size']}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") or 1


def _bucket(bucket: str) -> Any:
    """Returns obstore's store of a bucket, which all threads share."""
    check_not_forked(bucket)
    return _cached_store(bucket, patience_with(bucket))


def check_not_forked(bucket: str) -> None:
    """Raises Unavailable if this process was forked after a store was used, where obstore would wait forever."""
    global _used_by
    _used_by = _used_by or os.getpid()
    if os.getpid() != _used_by:
        raise Unavailable(f"{bucket!r} cannot be read in a forked process; start it by spawn or forkserver instead")


def patience_with(bucket: str) -> Patience:
    """Returns the limits of a request to a bucket."""
    return PATIENT if bucket in _answered else QUICK


def has_answered(bucket: str) -> None:
    """Notes that a bucket is there, so that requests to it are patient."""
    _answered.add(bucket)


@functools.lru_cache(maxsize=256)
def _cached_store(bucket: str, patience: Patience) -> Any:
    scheme, _, name = bucket.partition("://")
    if scheme in ("http", "https"):
        return HTTPStore.from_url(bucket, **limits_of(patience, bucket))
    aws_endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT") if scheme == "az" else aws_endpoint
    arguments = limits_of(patience, endpoint) | ({"endpoint": endpoint} if endpoint else {})
    return AzureStore(name, **arguments) if scheme == "az" else S3Store(name, **arguments, **_credentials())


def limits_of(patience: Patience, address: str | None) -> Any:
    """Returns the arguments of a store with these limits; one address may be without TLS, unlike where redirects lead.

    Args:
      patience: The limits.
      address: URL of the store; None or "" where its client knows it.
    """
    client_options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=patience.connect),
        "timeout": timedelta(seconds=patience.answer),
    }
    if address:
        client_options["allow_http"] = address.startswith("http://")
    retries = {"max_retries": 1000, "retry_timeout": timedelta(seconds=patience.retries)}
    return {"client_options": client_options, "retry_config": retries}


def _credentials() -> Any:
    """Returns what boto3 finds: variables, profiles, roles of the machine; without any, public buckets can be read."""
    try:
        provider = Boto3CredentialProvider()
    except ValueError:
        return {"skip_signature": True}
    return {"credential_provider": provider, **provider.config}


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Context manager: converts errors of obstore to the errors of beam_pipelines.storage, in one line each."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path!r} does not exist") from error
    except exceptions.InvalidPathError as error:
        raise ValueError(
            f"{path!r}: {_error_text(error)}; names of objects with empty parts, . or .. cannot be read: rename them"
        ) from error
    except exceptions.NotSupportedError as error:
        raise Unavailable(f"{path!r}: the server answers no ranges of bytes; copy the file here") from error
    except Exception as error:
        if not type(error).__module__.startswith(("obstore", "botocore", "boto3")):
            raise
        text = str(error)
        if "NoSuchBucket" in text or "ContainerNotFound" in text:
            raise FileNotFoundError(f"{path!r} does not exist: {_error_text(error)}") from error
        is_refused = isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError))
        if is_refused or re.search(r"\b40[13] (Unauthorized|Forbidden)", text):
            advice = ADVICE[path.partition("://")[0]]
            raise Unavailable(f"no permission for {path!r}: {_error_text(error)}; {advice}") from error
        if "Account must be specified" in text:
            raise ValueError(f"{path!r} needs the name of the account; set AZURE_STORAGE_ACCOUNT_NAME") from error
        if "configured region" in text and path.startswith("s3://"):
            raise Unavailable(f"{path!r} is in another region; set AWS_REGION to the region of the bucket") from error
        if "following redirect" in text:
            raise Unavailable(f"{path!r} leads from one address to another endlessly") from error
        if "416 Range Not Satisfiable" in text:
            raise Changed(f"{path!r} was overwritten: it is shorter now") from error
        raise Unavailable(
            f"{path!r} cannot be reached: {_error_text(error)}; check its name and the network"
        ) from error


# What helps where a permission is missing, by scheme.
ADVICE = {
    "s3": "give credentials that may list and read it, by AWS_PROFILE, AWS_ACCESS_KEY_ID or a role",
    "az": "give credentials that may list and read it, by AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or a role",
    "hf": "set HF_TOKEN to a token that may read it, or run: hf auth login; a gated dataset has conditions, which you "
    "accept on its page",
    "http": "web servers are read without credentials: download the file",
    "https": "web servers are read without credentials: download the file",
}


_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_URL = re.compile(r"https?://\S+")


def _error_text(error: BaseException) -> str:
    """Returns the message of an error in one line, without URLs, as their queries may sign a request."""
    text = str(error).partition("\n\nDebug source")[0]
    if message := _MESSAGE.search(text):
        return message[1].strip().partition("\n")[0].rstrip(".")  # Azure adds the number and time of the request
    text = text.rpartition(" - ")[2].partition("<")[0]
    return " ".join(_URL.sub("its URL", text).split()).rstrip(" .:")[:300] or type(error).__name__


def _parts(path: str) -> tuple[str, str]:
    """Returns the URI of the bucket, and the name of an object in it; raises ValueError if it has no bucket."""
    scheme, _, rest = path.partition("://")
    bucket, _, name = rest.partition("/")
    if not bucket:
        raise ValueError(f"{path!r} does not name a bucket or host; a URI must be {scheme}://BUCKET/PATH")
    # obstore quotes what is not allowed in a URL.
    return f"{scheme}://{bucket}", name if storage.lists_files(path) else urllib.parse.unquote(name)
