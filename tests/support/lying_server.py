"""A web server on loopback whose answers are what servers of the internet answer: images, faults and lies.

GET /KIND/NAME gives what FAULTS and the other kinds below say; with /ok/NAME.jpg, a small JPEG that depends on NAME.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gzip
import http.server
import io
import itertools
import socket
import struct
import threading
import time
import urllib.parse
import zlib
from collections.abc import Callable, Iterator

from PIL import Image

_HTML = b"<html><body>This image has moved.</body></html>"
_ENDLESS_SECONDS = 60.0  # of a lie that goes on, so that a client which believes it is seen to wait


@functools.lru_cache(maxsize=256)
def _jpeg(number: int) -> bytes:
    flat = Image.new("RGB", (24 + number % 7, 24 + number % 5), (number % 251, number * 7 % 251, number * 13 % 251))
    file = io.BytesIO()
    file = io.BytesIO()
    flat.save(file, "JPEG")
    return file.getvalue()


def jpeg(name: str) -> bytes:
    """Returns the image at /ok/NAME.jpg."""
    return _jpeg(zlib.crc32(name.encode()) % 256)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the first word of the path."""

    protocol_version = "HTTP/1.1"
    server: LyingServer

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        kind, _, name = self.path.lstrip("/").partition("?")[0].partition("/")
        with self.server.counting(self.path, self.headers.get("Host", "")):
            answer = getattr(self, f"send_{kind.replace('-', '_')}", None)
            with contextlib.suppress(OSError):  # the client has closed the connection
                if answer:
                    answer(name.removesuffix(".jpg"))
                elif kind.isdecimal():
                    self.send(int(kind), _HTML, "text/html")
                else:
                    self.send(404, _HTML, "text/html")

    def log_message(self, format: str, *values: object) -> None:
        pass

    def send(self, status: int, body: bytes, kind: str = "image/jpeg", **headers: str) -> None:
        self.send_response(status)
        lengths = {} if "Content_Length" in headers else {"Content_Length": str(len(body))}
        for name, value in {"Content_Type": kind, **lengths, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def lie_on(self, head: bytes, piece: bytes, seconds: float = 0.0) -> None:
        """Sends bytes, and then a piece again and again, for longer than a client should wait."""
        self.close_connection = True
        self.wfile.write(head)
        end = time.monotonic() + _ENDLESS_SECONDS
        while time.monotonic() < end:
            self.wfile.write(piece)
            self.wfile.flush()
            if seconds and self.server.is_closed.wait(seconds):
                return

    def send_ok(self, name: str) -> None:
        self.send(200, self.server.image(name))

    def send_secret(self, name: str) -> None:
        is_asked = "Signature=s3cr3t" in self.path or self.headers.get("Authorization", "").startswith("Basic")
        self.send(200 if is_asked else 403, jpeg(name))

    def send_held(self, name: str) -> None:
        """An image, after the gate is open."""
        self.server.gate.wait(60)
        self.send(200, jpeg(name))

    def send_html(self, name: str) -> None:
        self.send(200, _HTML)

    def send_empty(self, name: str) -> None:
        self.send(200, b"")

    def send_short(self, name: str) -> None:
        """A body that ends before its length."""
        self.close_connection = True
        self.send(200, jpeg(name), Content_Length="99999", Connection="close")

    def send_huge(self, name: str) -> None:
        """A length that no image has."""
        self.close_connection = True
        self.send(200, jpeg(name), Content_Length="99999999999")

    def send_endless(self, name: str) -> None:
        self.lie_on(b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n\r\n", jpeg(name) * 100)

    def send_endless_chunks(self, name: str) -> None:
        self.lie_on(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n")

    def send_endless_head(self, name: str) -> None:
        self.lie_on(b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n")

    def send_drip(self, name: str) -> None:
        """A byte of the body now and then."""
        self.lie_on(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"x", 0.05)

    def send_drip_head(self, name: str) -> None:
        """A byte of the headers now and then."""
        self.lie_on(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x", 0.05)

    def send_drip_chunk(self, name: str) -> None:
        """A byte of the length of a chunk now and then."""
        self.lie_on(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0", 0.05)

    def send_silent(self, name: str) -> None:
        self.lie_on(b"", b"", 60.0)

    def send_bomb(self, name: str) -> None:
        self.send(200, _bomb(), Content_Encoding="gzip")

    def send_gzip(self, name: str) -> None:
        self.send(200, gzip.compress(jpeg(name)), Content_Encoding="gzip")

    def send_br(self, name: str) -> None:
        self.send(200, jpeg(name), Content_Encoding="br")

    def send_bad_gzip(self, name: str) -> None:
        self.send(200, b"no gzip at all", Content_Encoding="gzip")

    def send_loop(self, name: str) -> None:
        self.send(302, b"", Location=self.path)

    def send_moved(self, name: str) -> None:
        self.send(301, b"", Location=f"/ok/{name}.jpg")

    def send_elsewhere(self, name: str) -> None:
        """A redirect to what the query says."""
        self.send(302, b"", Location=self.path.partition("?")[2])

    def send_garbage(self, name: str) -> None:
        self.close_connection = True
        self.wfile.write(b"\x00\x01 this is no HTTP\r\n\r\n")

    def send_reset(self, name: str) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def send_robots(self, name: str) -> None:
        """A header that is NAME."""
        self.send(200, jpeg(name), X_Robots_Tag=urllib.parse.unquote(name))

    def send_flaky(self, name: str) -> None:
        """503 the first time, then an image."""
        if self.server.count(self.path) > 1:
            self.send(200, jpeg(name))
        else:
            self.send(503, _HTML, "text/html", Retry_After="0")

    def send_later(self, name: str) -> None:
        """Always too many requests, with the time of NAME."""
        self.send(429, _HTML, "text/html", Retry_After=name)


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(bytes(200 << 20))


# Kinds of paths that are no image, with what each is rejected as if retries are few and the limits small.
FAULTS = {
    "404": "http_404",
    "500": "http_500",
    "html": "not_an_image",
    "empty": "empty",
    "short": "bad_response",
    "huge": "too_large",
    "loop": "too_many_redirects",
    "drip": "timeout",
    "reset": "unreachable",
    "bomb": "too_large",
}
LIES = FAULTS | {
    "endless": "too_large",
    "endless-chunks": "too_large",
    "endless-head": "bad_response",
    "drip-head": "timeout",
    "drip-chunk": "timeout",
    "silent": "timeout",
    "garbage": "bad_response",
    "br": "bad_response",
    "bad-gzip": "bad_response",
    "robots/noai": "robots",
    "later/9999": "http_429",
    "elsewhere/x?file:///etc/passwd": "bad_url",
    "302": "http_302",
    "410": "http_410",
}


class LyingServer(http.server.ThreadingHTTPServer):
    """The server; use it in a with-block.

    Attributes:
      image: Function from NAME to the image at /ok/NAME.jpg.
      most_together: Largest number of requests that were answered at the same time, of all hosts ("") and of each.
      num_answered: Number of requests so far.
      gate: What answers to /held/ wait for.
    """

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int = 0, host: str = "127.0.0.1", image: Callable[[str], bytes] = jpeg) -> None:
        super().__init__((host, port), Handler)
        self.image = image
        _bomb()  # before anyone waits for it
        self.is_closed = threading.Event()
        self.most_together, self._num_now = collections.Counter[str](), collections.Counter[str]()
        self.num_answered = 0
        self.gate = threading.Event()
        self._num_requests = collections.Counter[str]()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}"

    def __enter__(self) -> LyingServer:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_closed.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that are killed

    @contextlib.contextmanager
    def counting(self, path: str, host: str) -> Iterator[None]:
        name = host.partition(":")[0]
        with self._lock:
            self._num_requests[path] += 1
            self.num_answered += 1
            self._num_now.update(["", name])
            self.most_together |= self._num_now
        try:
            yield
        finally:
            with self._lock:
                self._num_now.subtract(["", name])

    def count(self, path: str) -> int:
        """Returns how often a path was asked for."""
        return self._num_requests[path]


def urls(server: str, count: int) -> Iterator[tuple[str, str]]:
    """Yields (URL, the reason for which it is rejected or ""), of which one in 20 is faulty, in all ways of FAULTS."""
    faults: Callable[[], tuple[str, str]] = itertools.cycle(FAULTS.items()).__next__
    for number in range(count):
        kind, reason = faults() if number % 20 == 7 else ("ok", "")
        yield f"{server}/{kind}/{number}.jpg", reason
