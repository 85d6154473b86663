"""A server of HTTP on a free port of 127.0.0.1, in a thread; the servers of stores in tests derive from it."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Iterator, Mapping
from typing import TypeVar

S = TypeVar("S", bound="LoopbackServer")


class LoopbackServer(http.server.ThreadingHTTPServer):
    """Listens.

    Attributes:
      url: "http://127.0.0.1:PORT".
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, handler: type[LoopbackHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client has gone


class LoopbackHandler(http.server.BaseHTTPRequestHandler):
    """Has methods that send an answer; HEAD is answered as GET, without a body."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.respond()

    def do_HEAD(self) -> None:
        self.respond()

    def respond(self) -> None:
        """Answers the request."""
        raise NotImplementedError

    def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Sends an answer; its length is that of the body, unless it is given. Headers that are "" are left out."""
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, data: bytes, headers: Mapping[str, str], has_ranges: bool = True) -> None:
        """Sends a file, or the range of it that is requested."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match or not has_ranges:
            return self.send(200, data, headers)
        start, end = int(match[1]), min(int(match[2] or len(data)) + 1, len(data))
        self.send(206, data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(server: S) -> Iterator[S]:
    """Answers requests in a thread until the block ends."""
    with server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()
