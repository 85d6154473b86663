"""A server on loopback that answers every request wrongly, in one way, and counts them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from support.loopback import LoopbackHandler, LoopbackServer, serving

END = threading.Event()


class LyingStore(LoopbackServer):
    """Listens.

    Attributes:
      requests: "METHOD /path" of all so far.
    """

    def __init__(self, answer: Callable[[Handler], None]) -> None:
        super().__init__(Handler)
        self.answer, self.requests = answer, list[str]()


class Handler(LoopbackHandler):
    """Answers a request as its server says."""

    server: LyingStore

    def respond(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        self.server.answer(self)

    def lie(self, status: int, body: bytes = b"", **headers: Any) -> None:
        """Sends an answer, with headers such as Content_Length=."""
        self.send(status, body, {"ETag": '"1"'} | {name.replace("_", "-"): value for name, value in headers.items()})


@contextlib.contextmanager
def lying_store(answer: Callable[[Handler], None]) -> Iterator[LyingStore]:
    with serving(LyingStore(answer)) as server:
        END.clear()
        yield server
        END.set()


def longer(request: Handler) -> None:
    """Sends more than the range that was asked for, and says so."""
    if request.command == "HEAD":
        return request.lie(200, Content_Length="5000")
    request.lie(206, bytes(5000), Content_Range="bytes 0-9/5000")


def shorter(request: Handler) -> None:
    """Ends the connection in the middle of the body."""
    request.lie(206 if "Range" in request.headers else 200, bytes(10), Content_Length="5000")
    request.close_connection = True


def page(request: Handler) -> None:
    """Sends a page instead of the file, as a portal does that asks for a login."""
    request.lie(200, b"<html>Please log in</html>")


def loop(request: Handler) -> None:
    """Leads from one address to the next, without end."""
    request.lie(302, Location=f"{request.path}x")


def drip(request: Handler) -> None:
    """Sends a byte now and then."""
    if request.command == "HEAD":
        return request.lie(200, Content_Length="5000")
    request.lie(200, b"x", Content_Length="5000")
    while not END.wait(0.1):
        request.wfile.write(b"x")
        request.wfile.flush()


def silent(request: Handler) -> None:
    """Does not answer."""
    END.wait()


def busy(request: Handler) -> None:
    """Is always busy."""
    request.lie(503)


def without_length(request: Handler) -> None:
    """Does not say how long its answer is."""
    request.lie(200, bytes(5000), Content_Length="", Connection="close")
    request.close_connection = True


LIES = (longer, shorter, page, loop, drip, silent, busy, without_length)
