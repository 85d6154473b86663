"""A list that names a bucket out of reach ends within seconds: Google's own client, against sockets of this machine."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.sources.rows import Row, find_all
from beam_pipelines.storage import Unavailable, gcs
from support.cloud import forget_client
from support.inputs import make


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # taken by nobody else, and nobody listens
        yield server.getsockname()[1]


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(100)  # connects, and never answers
        yield server.getsockname()[1]


def patient(_):
    raise AssertionError("five minutes would have been waited")


@pytest.fixture
def quick(monkeypatch):
    """Schedules of a tenth of the time; the long one is not to be used."""
    assert gcs.QUICK._timeout == 10
    assert max(gcs._QUICK_TIMEOUT) == 10
    monkeypatch.setattr(gcs, "QUICK", gcs.QUICK.with_timeout(0.5))
    monkeypatch.setattr(gcs, "_QUICK_TIMEOUT", (0.3, 0.5))
    monkeypatch.setattr(gcs, "RETRY", patient)
    monkeypatch.setattr(gcs, "_answered", set())


@pytest.mark.parametrize("port", [closed_port, silent_port])
def test_a_line_that_names_a_bucket_out_of_reach_ends_the_conversion_in_one_line(
    few_digits, capsys, monkeypatch, quick, port
):
    lines = ["image,label", "0/0000.jpg,a", "1/0001.jpg,b", "gs://far/away/1.jpg,a", "gs://far/away/2.jpg,b"]
    (few_digits / "list.csv").write_text("\n".join(lines))
    with port() as number:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{number}")
        forget_client()
        code = main(["convert", f"--input={few_digits}/list.csv", f"--output={few_digits}-out"])
    forget_client()
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: 'gs://far/away/1.jpg' cannot be reached: ")
    assert "check the bucket's name and this machine's network" in err


def test_a_bucket_out_of_reach_is_waited_for_once_whatever_the_number_of_lines(monkeypatch, quick):
    rows = [Row(f"gs://far/{number}.jpg", f"gs://far/{number}.jpg", "a") for number in range(200)]
    connections = []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(300)
        server.settimeout(0.2)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.getsockname()[1]}")
        forget_client()
        with pytest.raises(Unavailable, match=r"'gs://far/0\.jpg' cannot be reached: "):
            list(find_all(rows))
        with contextlib.suppress(TimeoutError):
            while True:
                connections.append(server.accept()[0])
    forget_client()
    for connection in connections:
        connection.close()
    assert 1 <= len(connections) <= 3


class _Busy(http.server.BaseHTTPRequestHandler):
    """Knows one object, and is busy when it is asked for another the first time."""

    requested_names: list[str]

    def do_GET(self) -> None:
        name = self.path.partition("/o/")[2].partition("?")[0]
        busy = name == "2.jpg" and name not in self.requested_names
        self.requested_names.append(name)
        is_there = name in ("1.jpg", "2.jpg") and not busy
        body = b'{"size": "123", "generation": "1", "name": "x", "bucket": "b"}' if is_there else b"{}"
        self.send_response(503 if busy else 200 if body != b"{}" else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_bucket_that_has_answered_is_waited_for_as_long_as_ever(monkeypatch):
    used = []
    retry = gcs.RETRY

    def counted(function):
        used.append(function)
        return retry(function)

    monkeypatch.setattr(gcs, "RETRY", counted)
    monkeypatch.setattr(gcs, "_answered", set())

    class Handler(_Busy):
        requested_names: list[str] = []  # noqa: RUF012

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        forget_client()
        uris = [f"gs://near/{number}.jpg" for number in (1, 2, 3)]
        rows = {row.uri: row for row in find_all([Row(uri, uri, "a") for uri in uris])}
        server.shutdown()
    forget_client()
    assert [(rows[uri].num_bytes, rows[uri].reason) for uri in uris] == [(123, ""), (123, ""), (0, "missing")]
    assert len(used) == 2
    assert sorted(Handler.requested_names) == ["1.jpg", "2.jpg", "2.jpg", "3.jpg"]


def test_a_list_without_buckets_asks_nobody(tmp_path, quick):
    make(tmp_path, "1.jpg")
    rows = [Row("1.jpg", f"{tmp_path}/1.jpg", "a"), Row("2.jpg", f"{tmp_path}/2.jpg", "a")]
    assert [row.reason for row in find_all(rows)] == ["", "missing"]
