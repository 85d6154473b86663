"""A web server on a free port of 127.0.0.1: files of local folders, with ETags and ranges, and without listings."""

from __future__ import annotations

import importlib.util
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.loopback import LoopbackHandler, LoopbackServer, serving


class Web(LoopbackServer):
    """Listens.

    Attributes:
      root: Folders by the first part of the path of a URL.
      has_ranges: Whether it answers with a range where one is requested.
      requests: "METHOD /path" of all so far.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.root: dict[str, Path] = {}
        self.has_ranges = True
        self.requests: list[str] = []


class _Handler(LoopbackHandler):
    server: Web

    def respond(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        first, _, rest = urllib.parse.unquote(self.path).lstrip("/").partition("/")
        path = self.server.root.get(first, Path("/nowhere")) / rest
        if not path.is_file():
            return self.send(404, b"<html>Not found</html>")
        self.send_file(path.read_bytes(), {"ETag": f'"{path.stat().st_mtime_ns}"'}, self.server.has_ranges)


@pytest.fixture
def web() -> Iterator[Web]:
    """The server, for one test."""
    for package in ("obstore", "boto3"):
        if not importlib.util.find_spec(package):
            pytest.skip(f"{package} is not installed")
    with serving(Web()) as server:
        yield server
