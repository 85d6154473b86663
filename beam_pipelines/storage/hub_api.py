"""Requests to the API of the Hugging Face Hub, each bounded in seconds, bytes, redirects and tries.

The token goes to HF_ENDPOINT alone: a redirect to another host is not followed, and of the link to the next page of a
listing, only the query is used.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

from beam_pipelines.storage import Unavailable, object_stores
from tpu_input.command_line.distribution import __version__

# Seconds until more requests are allowed, in the header RateLimit; they are counted for 5 minutes each, see
# https://huggingface.co/docs/hub/rate-limits.
_RESET = re.compile(r"\bt=(\d{1,3})\b")
_MOST_SECONDS = 300
_NEXT = re.compile(r'<[!-=?-~]*\?([!-=?-~]+)>\s*;\s*rel="?next\b')  # in the header Link
_MOST_BYTES = 32 << 20  # a page of a listing has 1,000 files
_MOST_REDIRECTS = 5  # a dataset that was renamed has one
_REDIRECTS = {301, 302, 303, 307, 308}
_TRY_AGAIN = {408, 429, 500, 502, 503, 504}


class Dataset(NamedTuple):
    """A revision of a dataset.

    Attributes:
      uri: "hf://datasets/OWNER/NAME@REVISION", as it is given.
      name: "OWNER/NAME".
      revision: Branch, tag or commit.
    """

    uri: str
    name: str
    revision: str


def endpoint() -> str:
    """Returns the URL of the Hub, without a slash at its end."""
    url = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./~-]*)?", url, re.ASCII):
        raise ValueError("HF_ENDPOINT is not the URL of a host; set it to one such as https://huggingface.co")
    return url


def headers() -> dict[str, str]:
    """Returns the headers of a request to the Hub, with the user's token where huggingface_hub looks for it, too."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    path = os.path.expanduser(os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token"))
    token = os.environ.get("HF_TOKEN", "")
    if not token:
        with contextlib.suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
            token = file.read(10_000)
    token = token.strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise ValueError("HF_TOKEN has characters that no token has; set it to one such as hf_...")
    return {"User-Agent": f"jpeg2tpu/{__version__}"} | ({"Authorization": f"Bearer {token}"} if token else {})


def commit(dataset: Dataset) -> str:
    """Returns the commit that a revision names now."""
    revision = urllib.parse.quote(dataset.revision, safe="")
    answer, _ = _ask(dataset, f"/api/datasets/{dataset.name}/revision/{revision}?expand=sha")
    name = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"[0-9a-f]{40,64}", name):
        raise Unavailable(f"{dataset.uri!r} cannot be read: the Hub names no commit; check HF_ENDPOINT")
    return name


def entries(dataset: Dataset, commit: str, folder: str, is_recursive: bool) -> Iterator[tuple[str, int, str]]:
    """Yields (path, bytes, hash) of files, and of folders, whose path ends with a slash; nothing if there is no folder.

    Args:
      dataset: Where.
      commit: Its commit.
      folder: Path in it; "" for all.
      is_recursive: Whether also what lies in the folders of it.
    """
    address = f"/api/datasets/{dataset.name}/tree/{commit}" + f"/{urllib.parse.quote(folder, safe='')}" * bool(folder)
    query = f"recursive={str(is_recursive).lower()}"
    while query:
        try:
            page, following = _ask(dataset, f"{address}?{query}")
        except FileNotFoundError:
            return
        is_listing = isinstance(page, list) and (not following or (page and following != query))
        files = [_entry(item, f"{folder}/" if folder else "") for item in page] if is_listing else [None]
        for file in files:
            if not file:
                raise Unavailable(f"{dataset.uri!r} cannot be listed: the Hub answers no list; check HF_ENDPOINT")
            yield file
        query = following


def _entry(item: Any, prefix: str) -> tuple[str, int, str] | None:
    """Returns what entries() yields; None for what no repository of Git has."""
    try:
        path, is_folder = item["path"], item["type"] == "directory"
        content = item.get("lfs") or item
        num_bytes, digest = (0, "") if is_folder else (content["size"], content["oid"])
        is_valid = path.startswith(prefix) and not {"", ".", ".."} & {*path.split("/")}
        is_valid = is_valid and type(num_bytes) is int and 0 <= num_bytes < 1 << 63 and type(digest) is str
    except (AttributeError, KeyError, TypeError):
        return None
    return (f"{path}/" if is_folder else path, num_bytes, digest) if is_valid else None


def _ask(dataset: Dataset, address: str) -> tuple[Any, str]:
    """Returns the JSON that the API answers, and the query of the next page, "" if this is the last one.

    Raises:
      FileNotFoundError: There is no such dataset, revision or folder.
      Unavailable: The Hub refuses, cannot be reached, or answers something else.
    """
    patience, start = object_stores.patience_with(dataset.uri), time.monotonic()
    seconds, delay = patience.retries, 0.25
    while True:
        wait = delay
        try:
            status, fields, body = _answer(f"{endpoint()}{address}", patience)
        except (OSError, http.client.HTTPException) as error:
            failure = str(error) or type(error).__name__
        else:
            if status not in _TRY_AGAIN:
                break
            failure = f"the Hub answers {status}"
            if status == 429:
                failure += ", too many requests; with a token in HF_TOKEN, more are allowed"
                if reset := _RESET.search(fields.get("RateLimit", "")):
                    wait, seconds = float(reset[1]) + 1, 2.0 * _MOST_SECONDS
        if time.monotonic() - start + wait > seconds:
            raise Unavailable(f"{dataset.uri!r} cannot be reached: {failure}; check its name and the network")
        time.sleep(wait)
        delay = min(2 * delay, 30.0)
    _check_status(dataset, status, fields.get("X-Error-Code", ""))
    object_stores.has_answered(dataset.uri)
    following = _NEXT.search(fields.get("Link", ""))
    try:
        return json.loads(body), following[1] if following else ""
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"{dataset.uri!r} cannot be read: the Hub answers no JSON; check HF_ENDPOINT") from error


def _check_status(dataset: Dataset, status: int, code: str) -> None:
    if status == 404 and code == "RevisionNotFound":
        raise FileNotFoundError(
            f"{dataset.uri!r} does not exist: {dataset.name} has no revision {dataset.revision!r}; name a branch, a "
            "tag or a commit"
        )
    # Without a token, the Hub does not say whether a dataset is private or does not exist.
    if status in (401, 403) or code == "RepoNotFound":
        problem = "it is gated" if code == "GatedRepo" else "it does not exist, or is private"
        kind = FileNotFoundError if status == 404 else Unavailable
        raise kind(f"no permission for {dataset.uri!r}: {problem}; correct the name, or {object_stores.ADVICE['hf']}")
    if status == 404:
        raise FileNotFoundError(f"{dataset.uri!r} does not exist")
    if status in _REDIRECTS:
        raise Unavailable(f"{dataset.uri!r} cannot be read: the Hub leads to another place; check HF_ENDPOINT")
    if status != 200:
        raise Unavailable(f"{dataset.uri!r} cannot be read: the Hub answers {status}; check HF_ENDPOINT")


def _answer(url: str, patience: object_stores.Patience) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Returns status, headers and body of an answer, after redirects on the same host."""
    for _ in range(_MOST_REDIRECTS):
        status, fields, body = _answer_of(url, patience)
        target = urllib.parse.urljoin(url, fields.get("Location", ""))
        is_here = urllib.parse.urlsplit(target)[:2] == urllib.parse.urlsplit(url)[:2]
        if status not in _REDIRECTS or not is_here:
            break
        url = target
    return status, fields, body


def _answer_of(url: str, patience: object_stores.Patience) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection, target, proxy_headers = _connection(url, patience.connect)
    with contextlib.closing(connection):
        connection.connect()
        connection.sock.settimeout(patience.answer)
        # The timeout of a socket starts again with each byte, so a slow answer would never reach it.
        end = threading.Timer(patience.answer, _shut, [connection.sock])
        end.daemon, start = True, time.monotonic()
        end.start()
        try:
            connection.request("GET", target, headers=headers() | proxy_headers | {"Accept-Encoding": "identity"})
            response = connection.getresponse()
            body = response.read(_MOST_BYTES + 1)
        finally:
            end.cancel()
        if time.monotonic() - start >= patience.answer:
            raise TimeoutError(f"no complete answer within {patience.answer:g} s")
        if len(body) > _MOST_BYTES:
            raise OSError(f"the Hub answers more than {_MOST_BYTES} bytes")
        return response.status, response.headers, body


def _connection(url: str, seconds: float) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """Returns a connection that is not open yet, by the proxy that the environment names, as obstore's are.

    And the target of a request, and its headers for the proxy.
    """
    scheme, host, path, query, _ = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    proxy = "" if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme, "")
    if not proxy:
        return kind(host, timeout=seconds), f"{path}?{query}", {}
    place = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    user, _, address = place.netloc.rpartition("@")
    coded = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    proxy_headers = {"Proxy-Authorization": f"Basic {coded}"} if user else {}
    connection = kind(address, timeout=seconds)
    if scheme == "http":
        return connection, url, proxy_headers
    connection.set_tunnel(host, headers=proxy_headers)
    return connection, f"{path}?{query}", {}


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed
        # Not SSLSocket's own, which changes what another thread is reading with.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
