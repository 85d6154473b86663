"""A proxy in front of the emulator that knows what is asked, and does to it what networks and stores do.

google-cloud-storage, gcsio ──HTTP──────────────────────────────▶ FaultProxy ──HTTP──▶ emulator
TensorFlow ──CONNECT, TLS──▶ the same, with a certificate (gs.py)  └── requests: what was asked; fault: what fails
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import itertools
import re
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

# What may happen to a request: refused with a status and a message, "403 me@x has no access"; answered but the answer's
# body "cut" in the middle; the connection "reset" in the middle of the request's body; carried out but the answer
# "lost"; or a "stall" of 2 s.
Fault = str

# Of one connection, or made anew for the next; "host" because the emulator answers to its own name alone.
_NOT_PASSED_ON = {
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
}


class Request(NamedTuple):
    """What was asked.

    Attributes:
      method: "GET", "POST", …
      target: Path and query, decoded.
      headers: By name in lower case.
      kind: "list", "read", "look", "upload", "begin" and "chunk" of a larger upload, "delete", "copy" or "other".
      name: The object's, or what a listing's names begin with.
    """

    method: str
    target: str
    headers: dict[str, str]
    kind: str
    name: str

    @property
    def authorized(self) -> bool:
        """Whether it came with a token."""
        return "authorization" in self.headers

    @property
    def paid_by(self) -> str:
        """The project that is billed."""
        return self.headers.get("x-goog-user-project", "")


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
      tls: For those who come by CONNECT.
      requests: All so far.
      faults: How often each fault was done.
      fault: What shall happen to a request; "" is nothing.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, upstream: str, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.upstream, self.tls = upstream, tls
        self.requests: list[Request] = []
        self.faults: Counter[Fault] = Counter()
        self.uploaded: set[str] = set()
        self.pieces: dict[tuple[str, str], tuple[int, dict[str, str], bytes]] = {}  # answers, by target and range
        self.calm()

    def calm(self) -> None:
        """Lets nothing happen to requests from now on."""
        self.fault: Callable[[Request], Fault] = lambda request: ""

    def counts(self, suffix: str = "") -> Counter[str]:
        """Returns the number of requests of each kind, for names with this ending."""
        return Counter(request.kind for request in self.requests if request.name.endswith(suffix))

    def reads(self, suffix: str) -> list[Request]:
        """Returns the requests for the bytes of objects whose names have this ending."""
        return [request for request in self.requests if request.kind == "read" and request.name.endswith(suffix)]

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client has gone, or a fault has cut the connection


@contextlib.contextmanager
def fault_proxy(upstream: str, tls: ssl.SSLContext | None = None) -> Iterator[FaultProxy]:
    with FaultProxy(upstream, tls) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True).start()
        yield proxy
        proxy.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is two packets: 40 ms each time
    server: FaultProxy
    ours = ""  # scheme and host by which the client knows us

    def do_CONNECT(self) -> None:
        self.send_response_only(200, "Connection established")
        self.end_headers()
        self.rfile.close()
        assert self.server.tls is not None
        self.connection = self.request = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.setup()
        self.ours = "https://www.googleapis.com"
        self.close_connection = False

    def _answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = 0 if chunked else int(headers.get("content-length", 0))
        body = self._chunks() if chunked else self.rfile.read(length // 2)
        target, kind_and_name = urllib.parse.unquote(self.path), _kind_and_name(self.command, self.path, body)
        request = Request(self.command, target, headers, *kind_and_name)
        self.server.requests.append(request)
        fault = self.server.fault(request) or ""
        self.server.faults[fault] += 1
        if fault == "reset":
            return self._reset()
        body += self.rfile.read(length - length // 2)
        if fault == "stall":
            time.sleep(2)
        if re.match(r"\d{3}", fault):
            code, _, message = fault.partition(" ")
            return self._send(int(code), {"Content-Type": "text/plain"}, message.encode())
        status, reply_headers, answer = self._how_far(request) or self._again(request) or self._forward(headers, body)
        self.server.uploaded.add(request.target)
        if request.kind == "chunk":
            self.server.pieces[request.target, headers.get("content-range", "")] = status, reply_headers, answer
        if fault == "lost":
            return self._reset()
        self._send(status, reply_headers, answer, cut=fault == "cut")

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _answer  # noqa: N815

    def _chunks(self) -> bytes:
        """Returns a body in chunks: TensorFlow's uploads, which also say how long they are."""
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _how_far(self, request: Request) -> tuple[int, dict[str, str], bytes] | None:
        """Returns how far TensorFlow's upload is, as Google does: fake-gcs-server takes the question for its end."""
        if not self.ours or not request.headers.get("content-range", "").startswith("bytes */"):
            return None
        return 200 if request.target in self.server.uploaded else 308, {}, b""

    def _again(self, request: Request) -> tuple[int, dict[str, str], bytes] | None:
        """Returns the answer to a piece that was sent before: Google ignores bytes that it has, the emulator adds them.

        See https://cloud.google.com/storage/docs/resumable-uploads.
        """
        return self.server.pieces.get((request.target, request.headers.get("content-range", "")))

    def _forward(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(self.server.upstream.removeprefix("http://"), timeout=60)
        upstream_headers = {name: value for name, value in headers.items() if name not in _NOT_PASSED_ON}
        upstream.request(self.command, self.path, body, upstream_headers | {"content-length": str(len(body))})
        response = upstream.getresponse()
        answer = response.read()
        upstream.close()
        reply_headers = {name: value for name, value in response.getheaders() if name.lower() not in _NOT_PASSED_ON}
        # The server's URLs, of an upload that was begun or of an object's content, shall lead through us too.
        theirs, ours = self.server.upstream, self.ours or self.server.url
        if "json" in reply_headers.get("Content-Type", ""):
            answer = answer.replace(theirs.encode(), ours.encode())
        return response.status, {name: value.replace(theirs, ours) for name, value in reply_headers.items()}, answer

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut and body:
            self._reset()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.connection.close()  # of TLS; the server knows only the one below

    def log_message(self, *_: object) -> None:
        pass


def _kind_and_name(method: str, path: str, body: bytes) -> tuple[str, str]:
    """Returns the kind of a request, and the object's name."""
    url = urllib.parse.urlsplit(path)
    query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
    match = re.fullmatch(r"(?:/upload|/download)?/storage/v1/b/[^/]+/o(?:/([^/]*)(/.*)?)?", url.path)
    if not match:
        read = method == "GET" and not url.path.startswith("/storage/")  # /BUCKET/NAME, as TensorFlow asks
        return "read" if read else "other", urllib.parse.unquote(url.path)
    if "uploadType" in query or "upload_id" in query:
        kind = "chunk" if method == "PUT" else {"resumable": "begin"}.get(query["uploadType"], "upload")
        name_match = re.search(rb'"name": *"([^"]*)"', body)  # in the JSON that comes first
        return kind, query.get("name") or (name_match[1].decode() if name_match else "")
    if method == "GET" and match[1] is None:
        return "list", query.get("prefix", "")
    kind = {"GET": "read" if query.get("alt") == "media" else "look", "DELETE": "delete"}.get(method, "copy")
    return kind, urllib.parse.unquote(match[1] or "")
