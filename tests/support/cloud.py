"""A Google Cloud Storage of the tests' own: fake-gcs-server on a free port of 127.0.0.1, with Google's own clients.

`make test-cloud` installs the server, says where it is in FAKE_GCS_SERVER, and runs the tests marked `cloud`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import json
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import google.cloud.storage
import pytest
from google.auth.credentials import AnonymousCredentials

from support.fault_proxy import FaultProxy, fault_proxy
from tpu_input.command_line import google_client


@dataclasses.dataclass(frozen=True)
class Cloud:
    """One server.

    Attributes:
      url: "http://127.0.0.1:PORT"; JSON and XML API.
      environment: What makes google-cloud-storage and Beam's gcsio go there, for this process or others.
    """

    url: str
    environment: dict[str, str]
    _client: google.cloud.storage.Client

    def client(self) -> google.cloud.storage.Client:
        """Returns a client that goes there whatever the environment says."""
        return self._client

    def make_bucket(self) -> str:
        """Returns the URI of a new, empty bucket."""
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        self._client.create_bucket(name)
        return f"gs://{name}"

    def upload(self, folder: Path | str, uri: str) -> None:
        """Copies all files of a local folder below a URI."""
        bucket, prefix = self._parts(uri)
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            bucket.blob(f"{prefix}/{path.relative_to(folder)}".lstrip("/")).upload_from_filename(path)

    def put(self, uri: str, data: bytes) -> None:
        bucket, name = self._parts(uri)
        bucket.blob(name).upload_from_string(data)

    def get(self, uri: str) -> bytes:
        bucket, name = self._parts(uri)
        return bytes(bucket.blob(name).download_as_bytes())

    def files(self, uri: str) -> dict[str, str]:
        """Returns the SHA-256 of every object below a URI, by its path there."""
        bucket, prefix = self._parts(uri)
        below = f"{prefix}/" if prefix else ""
        blobs = bucket.client.list_blobs(bucket, prefix=below)
        return {blob.name[len(below) :]: hashlib.sha256(blob.download_as_bytes()).hexdigest() for blob in blobs}

    def _parts(self, uri: str) -> tuple[google.cloud.storage.Bucket, str]:
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        return self._client.bucket(bucket), name


@contextlib.contextmanager
def running_cloud(program: str, folder: Path) -> Iterator[Cloud]:
    """Context manager: a server, with the key of an account in a folder."""
    with _token_server() as token_url, _running(program) as url:
        key = folder / "service-account.json"
        key.write_text(json.dumps(_service_account(token_url)))
        environment = {
            "STORAGE_EMULATOR_HOST": url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(key),
            "GOOGLE_CLOUD_PROJECT": "tests",
            "NO_GCE_CHECK": "true",
            "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true",  # asks for the bucket, for traces
        }
        client = google.cloud.storage.Client("tests", AnonymousCredentials(), client_options={"api_endpoint": url})
        yield Cloud(url, environment, client)
        client.close()


@pytest.fixture(scope="session")
def cloud_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """The server, for the whole session; nothing in this process's environment points to it."""
    if not (program := os.environ.get("FAKE_GCS_SERVER")):
        pytest.skip("no fake-gcs-server: FAKE_GCS_SERVER is not set; run: make test-cloud")
    with running_cloud(program, tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture
def cloud(cloud_server: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """The server, with this process's environment pointing to it for one test."""
    for name, value in cloud_server.environment.items():
        monkeypatch.setenv(name, value)
    yield cloud_server
    forget_client()


@pytest.fixture
def proxy(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy that this process's environment points to in the server's place."""
    with fault_proxy(cloud.url) as between:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", between.url)
        yield between
        forget_client()


def forget_client() -> None:
    """Makes this process look at the environment again."""
    if google_client._client_of.cache_info().currsize:
        google_client.client().close()
        google_client._client_of.cache_clear()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _running(program: str) -> Iterator[str]:
    port = free_port()
    host = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", f"-public-host=127.0.0.1:{port}"]
    command = [program, "-backend=memory", "-log-level=error", *host]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes], seconds: int = 10) -> None:
    """Waits until a server listens that was just started."""
    for _ in range(20 * seconds):
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError("the server does not listen")


@contextlib.contextmanager
def _token_server() -> Iterator[str]:
    """Serves what Google's token endpoint would: a bearer token for whoever asks."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Token)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()


class _Token(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"access_token": "tests", "expires_in": 3600, "token_type": "Bearer"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _service_account(token_url: str) -> dict[str, str]:
    """Returns the key file of an account that exists nowhere, with a key made for it now."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {
        "type": "service_account",
        "project_id": "tests",
        "private_key_id": "1",
        "private_key": pem,
        "client_email": "tests@tests.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": token_url,
    }
