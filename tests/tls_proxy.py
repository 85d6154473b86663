"""Lets TensorFlow's own C++ filesystem, unmodified, talk to an emulator of Google Cloud Storage; and disturbs it.

    TensorFlow ──CONNECT www.googleapis.com, TLS──▶ TlsProxy ──HTTP──▶ emulator
                                                       └── requests: what was asked; fault: what goes wrong

Its addresses are fixed, but libcurl honours https_proxy, and TensorFlow hands CURL_CA_BUNDLE on to it.
"""

from __future__ import annotations

import dataclasses
import http.client
import http.server
import socket
import socketserver
import ssl
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import trustme

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


@dataclasses.dataclass(frozen=True)
class Request:
    """What TensorFlow asked.

    Attributes:
      method: "GET", "POST", …
      target: Path and query, decoded: "/bucket/train-00000-of-00009.tfrecord" for the bytes of an object,
        "/storage/v1/b/bucket/o/…" for what is known about it.
      headers: By name in lower case.
    """

    method: str
    target: str
    headers: dict[str, str]

    @property
    def is_read(self) -> bool:
        """Whether it asks for an object's bytes."""
        return self.method == "GET" and not self.target.startswith("/storage/v1/")


@dataclasses.dataclass(frozen=True)
class Fault:
    """What becomes of a request.

    Attributes:
      status: Answer this instead of the emulator's; 0 is the emulator's.
      stall: Seconds before the answer.
      cut: Bytes of the answer's body after which the connection is reset, or of a request with a body; -1 is none.
      body: Of an answer with `status`.
    """

    status: int = 0
    stall: float = 0.0
    cut: int = -1
    body: bytes = b"{}"


class TlsProxy:
    """A proxy in threads of this process, while its `with` lasts."""

    def __init__(self, backend: str, folder: Path) -> None:
        """Takes the emulator's address, as in "127.0.0.1:4443", and a folder for the certificate."""
        self.backend = backend
        self.requests: list[Request] = []
        self.fault: Callable[[Request], Fault | None] = lambda request: None
        self.uploaded: set[str] = set()
        authority = trustme.CA()
        self._certificate = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self._certificate))
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("*.googleapis.com").configure_cert(self.tls)
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))

    def __enter__(self) -> TlsProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        """Returns what a process with TensorFlow needs; it waits a tenth of a second for what it else waits 197."""
        return {
            "https_proxy": f"http://127.0.0.1:{self._server.server_address[1]}",
            "no_proxy": "127.0.0.1,localhost",
            "CURL_CA_BUNDLE": str(self._certificate),
            "NO_GCE_CHECK": "true",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "10000",
            "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "20000",
            "GCS_RETRY_CONFIG_MAX_RETRIES": "5",
        }

    def reads(self, ending: str) -> list[Request]:
        """Returns the requests for the bytes of objects whose names end so."""
        return [request for request in self.requests if request.is_read and request.target.endswith(ending)]


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # TensorFlow has gone, or a fault has cut the connection


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy: TlsProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is two packets: 40 ms each time

    def log_message(self, *_: object) -> None:
        pass

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.connection.close()  # of TLS; the server knows only the one below

    def do_CONNECT(self) -> None:
        self.send_response_only(200, "Connection established")
        self.end_headers()
        self.rfile.close()
        self.connection = self.request = self.proxy.tls.wrap_socket(self.connection, server_side=True)
        self.setup()
        self.close_connection = False

    def _forward(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Request(self.command, urllib.parse.unquote(self.path), headers)
        self.proxy.requests.append(asked)
        fault = self.proxy.fault(asked) or Fault()
        body = self._body(headers)
        if headers.get("content-range", "").startswith("bytes */"):
            return self._say_how_far(asked)
        if fault.cut >= 0 and body:
            return self._reset()
        status, answer_headers, answer = (fault.status, {}, fault.body) if fault.status else self._ask(headers, body)
        if not fault.status:
            self.proxy.uploaded.add(asked.target)
        time.sleep(fault.stall)
        self.send_response_only(status)
        for name, value in answer_headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if fault.cut >= 0:
            self.wfile.write(answer[: fault.cut])
            return self._reset()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = _forward  # noqa: N815

    def _body(self, headers: dict[str, str]) -> bytes:
        """Returns the request's body; TensorFlow's uploads say that they are chunked and how long they are."""
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(headers.get("content-length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _ask(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        kept = {name: value for name, value in headers.items() if name not in _NOT_PASSED_ON}
        connection = http.client.HTTPConnection(self.proxy.backend, timeout=60)
        connection.request(self.command, self.path, body, kept | {"content-length": str(len(body))})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        back = {name: value for name, value in answer.headers.items() if name.lower() not in _NOT_PASSED_ON}
        if "Location" in back:  # of an upload: the emulator's own address, which TensorFlow would ask past the proxy
            at = urllib.parse.urlsplit(back["Location"])
            back["Location"] = at._replace(scheme="https", netloc="www.googleapis.com").geturl()
        return answer.status, back, content

    def _say_how_far(self, asked: Request) -> None:
        """Answers how far an upload is, as Google does: fake-gcs-server takes the question for the upload's end."""
        self.send_response_only(200 if asked.target in self.proxy.uploaded else 308)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
