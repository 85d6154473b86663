"""A server on loopback that answers every request wrongly, in one way, and counts them."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator

END = threading.Event()


class LyingStore(http.server.ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1.

    Attributes:
      url: Where.
      requests: "METHOD /path" of all so far.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Callable[[Handler], None]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answer, self.requests = answer, list[str]()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client has gone


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers a request as its server says."""

    protocol_version = "HTTP/1.1"
    server: LyingStore

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        self.server.answer(self)

    do_HEAD = do_GET  # noqa: N815

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Sends an answer; its length is that of the body, unless it is given."""
        self.send_response_only(status)
        for name, value in {"Content_Length": str(len(body)), "ETag": '"1"', **headers}.items():
            if value:
                self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def lying_store(answer: Callable[[Handler], None]) -> Iterator[LyingStore]:
    with LyingStore(answer) as server:
        END.clear()
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        END.set()
        server.shutdown()


def longer(request: Handler) -> None:
    """Sends more than the range that was asked for, and says so."""
    if request.command == "HEAD":
        return request.send(200, Content_Length="5000")
    request.send(206, bytes(5000), Content_Range="bytes 0-9/5000")


def shorter(request: Handler) -> None:
    """Ends the connection in the middle of the body."""
    request.send(206 if "Range" in request.headers else 200, bytes(10), Content_Length="5000")
    request.close_connection = True


def page(request: Handler) -> None:
    """Sends a page instead of the file, as a portal does that asks for a login."""
    request.send(200, b"<html>Please log in</html>")


def loop(request: Handler) -> None:
    """Leads from one address to the next, without end."""
    request.send(302, Location=f"{request.path}x")


def drip(request: Handler) -> None:
    """Sends a byte now and then."""
    if request.command == "HEAD":
        return request.send(200, Content_Length="5000")
    request.send(200, b"x", Content_Length="5000")
    while not END.wait(0.1):
        request.wfile.write(b"x")
        request.wfile.flush()


def silent(request: Handler) -> None:
    """Does not answer."""
    END.wait()


def busy(request: Handler) -> None:
    """Is always busy."""
    request.send(503)


def without_length(request: Handler) -> None:
    """Does not say how long its answer is."""
    request.send(200, bytes(5000), Content_Length="", Connection="close")
    request.close_connection = True


LIES = (longer, shorter, page, loop, drip, silent, busy, without_length)
