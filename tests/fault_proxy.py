"""A proxy between Google's client and the server that counts requests, and does to them what networks do."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import itertools
import re
import socket
import struct
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

# What may happen to a request: refused with a status; answered but the answer's body "cut" in the middle; the
# connection "reset" in the middle of the request's body; carried out but the answer "lost"; or a "stall" of 2 s.
Fault = str


class Request(NamedTuple):
    """What was asked.

    Attributes:
      kind: "list", "read", "look", "upload", "begin" and "chunk" of a larger upload, "delete", "copy" or "other".
      name: The object's, or what a listing's names begin with.
      authorized: Whether it came with a token.
      paid_by: The project that is billed.
    """

    kind: str
    name: str
    authorized: bool
    paid_by: str


def no_faults(request: Request) -> Fault:
    return ""


def every(distance: int, faults: Iterable[Fault]) -> Callable[[Request], Fault]:
    """Returns what does each of these in turn, over and over, to one request of so many."""
    numbers, turns, lock = itertools.count(1), itertools.cycle(faults), threading.Lock()

    def fault(_: Request) -> Fault:
        with lock:
            return next(turns) if next(numbers) % distance == 0 else ""

    return fault


class FaultProxy(http.server.ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1.

    Attributes:
      url: Where.
      requests: All so far.
      faults: How often each fault was done.
      fault: What shall happen to a request.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.upstream = urllib.parse.urlsplit(upstream).netloc
        self.requests: list[Request] = []
        self.faults: Counter[Fault] = Counter()
        self.fault: Callable[[Request], Fault] = no_faults

    def counts(self, suffix: str = "") -> Counter[str]:
        """Returns the number of requests of each kind, for names with this ending."""
        return Counter(request.kind for request in self.requests if request.name.endswith(suffix))


@contextlib.contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    with FaultProxy(upstream) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True).start()
        yield proxy
        proxy.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultProxy

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length // 2)
        request = _request(self.command, self.path, self.headers, body)
        self.server.requests.append(request)
        fault = self.server.fault(request)
        self.server.faults[fault] += 1
        if fault == "reset":
            self._reset()
            return
        body += self.rfile.read(length - len(body))
        if fault == "stall":
            time.sleep(2)
        if re.match(r"\d{3}", fault):
            status, _, message = fault.partition(" ")
            self._send(int(status), {"Content-Type": "text/plain"}, message.encode())
            return
        status, headers, answer = self._forward(body)
        if fault == "lost":
            self._reset()
            return
        self._send(status, headers, answer, len(answer) // 2 if fault == "cut" else len(answer))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _answer  # noqa: N815

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(self.server.upstream)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "host")}
        upstream.request(self.command, self.path, body, headers)
        response = upstream.getresponse()
        answer = response.read()
        upstream.close()
        given = dict(response.getheaders())
        # The server's URLs, of an upload that was begun or of an object's content, shall lead through us too.
        theirs, ours = self.server.upstream, self.server.url.removeprefix("http://")
        if "json" in given.get("Content-Type", ""):
            answer = answer.replace(theirs.encode(), ours.encode())
        return response.status, {name: value.replace(theirs, ours) for name, value in given.items()}, answer

    def _send(self, status: int, headers: dict[str, str], body: bytes, shown: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:shown])
        if shown is not None and shown < len(body):
            self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, *_: object) -> None:
        pass


def _request(method: str, path: str, headers: http.client.HTTPMessage, body: bytes) -> Request:
    url = urllib.parse.urlsplit(path)
    query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
    found = re.fullmatch(r"(?:/upload|/download)?/storage/v1/b/[^/]+/o(?:/([^/]*)(/.*)?)?", url.path)
    if not found:
        kind, name = "other", url.path
    elif "uploadType" in query or "upload_id" in query:
        kind = "chunk" if method == "PUT" else {"resumable": "begin"}.get(query["uploadType"], "upload")
        named = re.search(rb'"name": *"([^"]*)"', body)  # in the JSON that comes first
        name = query.get("name") or (named[1].decode() if named else "")
    elif method == "GET" and found[1] is None:
        kind, name = "list", query.get("prefix", "")
    else:
        kind = {"GET": "read" if query.get("alt") == "media" else "look", "DELETE": "delete"}.get(method, "copy")
        name = urllib.parse.unquote(found[1] or "")
    paid_by = headers.get("x-goog-user-project", query.get("userProject", ""))
    return Request(kind, name, "Authorization" in headers, paid_by)
