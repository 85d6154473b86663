"""A real browser for tests: Chromium without a window, told what to do over a pipe (DevTools protocol).

https://chromedevtools.github.io/devtools-protocol/; with --remote-debugging-pipe the browser reads messages from file
descriptor 3 and writes to 4, each ended by a zero byte, so that neither a port nor a client library is needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",  # which a root user's Chromium needs
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-pipe",
)
SECONDS = 60  # for one answer; a first start on a cold disk takes some


def find_chromium() -> str | None:
    """Returns the browser's program, if one is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page. `requests` are all URLs that it has asked for."""

    def __init__(self, write_to: int, read_from: int) -> None:
        self._write_to, self._read_from, self._buffer = write_to, read_from, b""
        self._session: dict[str, str] = {}
        self._number = 0
        self._events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        self.send("Page.enable")
        self.send("Network.enable")
        self.send("Runtime.enable")

    @property
    def requests(self) -> list[str]:
        return [event["params"]["request"]["url"] for event in self._find_events("Network.requestWillBeSent")]

    @property
    def complaints(self) -> list[str]:
        """What was written to the console and thrown."""
        return [
            json.dumps(event)
            for name in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown")
            for event in self._find_events(name)
        ]

    def open(self, address: Path | str) -> None:
        """Shows a local file or a URL and waits until it has loaded."""
        loaded = len(self._find_events("Page.loadEventFired"))
        self.send("Page.navigate", url=address if isinstance(address, str) else address.as_uri())
        while len(self._find_events("Page.loadEventFired")) == loaded:
            self._read()

    def evaluate(self, expression: str) -> Any:
        """Returns what an expression is in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """Gives the page another width in pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """Lets the page be seen by somebody who prefers "dark" or "light"."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "result" in answer, answer
                return dict(answer["result"])

    def _find_events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self._events if event.get("method") == name]

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_from], [], [], max(end - time.monotonic(), 0))
            data = os.read(self._read_from, 1 << 16) if ready else b""
            assert data, "the browser says nothing"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        self._events.append(json.loads(message))
        return self._events[-1]


@contextlib.contextmanager
def browse(program: str, user_data: Path) -> Iterator[Page]:
    """Starts a browser with an empty profile; ends it."""
    (to_browser, write_to), (read_from, from_browser) = os.pipe(), os.pipe()

    def connect() -> None:
        # By way of high numbers, as 3 or 4 may be one of the ends.
        high = [os.dup2(end, number) for end, number in ((to_browser, 103), (from_browser, 104))]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    command = [program, *FLAGS, f"--user-data-dir={user_data}"]
    process = subprocess.Popen(
        command, preexec_fn=connect, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        page = Page(write_to, read_from)
        yield page
        with contextlib.suppress(AssertionError, OSError):
            page.send("Browser.close")
    finally:
        os.close(write_to)
        os.close(read_from)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
