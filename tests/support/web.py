"""A web server on a free port of 127.0.0.1: files of local folders, with ETags and ranges, and without listings."""

from __future__ import annotations

import http.server
import importlib.util
import re
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest


class Web(http.server.ThreadingHTTPServer):
    """Listens.

    Attributes:
      url: "http://127.0.0.1:PORT".
      root: Folders by the first part of the path of a URL.
      has_ranges: Whether it answers with a range where one is requested.
      requests: "METHOD /path" of all so far.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.root: dict[str, Path] = {}
        self.has_ranges = True
        self.requests: list[str] = []

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client has gone


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Web

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        first, _, rest = urllib.parse.unquote(self.path).lstrip("/").partition("/")
        path = self.server.root.get(first, Path("/nowhere")) / rest
        if not path.is_file():
            return self._send(404, b"<html>Not found</html>", {})
        data, status = path.read_bytes(), path.stat()
        headers = {"ETag": f'"{status.st_mtime_ns}"'}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted or not self.server.has_ranges:
            return self._send(200, data, headers)
        start, end = int(wanted[1]), min(int(wanted[2] or len(data)) + 1, len(data))
        self._send(206, data[start:end], headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    do_HEAD = do_GET  # noqa: N815

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Web]:
    """The server, for one test."""
    for package in ("obstore", "boto3"):
        if not importlib.util.find_spec(package):
            pytest.skip(f"{package} is not installed")
    with Web() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()
