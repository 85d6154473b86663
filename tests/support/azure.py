"""A Blob Storage of Azure's kind: Microsoft's emulator Azurite on a free port of 127.0.0.1.

`make test-cloud` installs it, says where it is in AZURITE, and runs the tests marked `cloud`.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import importlib.util
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cloud import free_port, wait_for
from support.s3 import forget_stores

# Everybody's: https://learn.microsoft.com/azure/storage/common/storage-use-azurite#well-known-storage-account-and-key
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Azure:
    """One server.

    Attributes:
      environment: What makes obstore go there.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        self.environment = {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": endpoint,
        }

    def make_bucket(self) -> str:
        """Returns the URI of a new, empty container."""
        name = f"container-{uuid.uuid4().hex[:8]}"
        self._put(name, b"", {}, {"restype": "container"})
        return f"az://{name}"

    def upload(self, folder: Path | str, uri: str) -> None:
        """Copies all files of a local folder below a URI."""
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            self.put(f"{uri}/{path.relative_to(folder)}", path.read_bytes())

    def put(self, uri: str, data: bytes) -> None:
        name = uri.removeprefix("az://").replace(" ", "%20")
        self._put(name, data, {"x-ms-blob-type": "BlockBlob"}, {})

    def _put(self, name: str, data: bytes, headers: dict[str, str], query: dict[str, str]) -> None:
        """Sends a request that is signed as in https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key."""
        headers = headers | {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = ["PUT", "", "", str(len(data)) if data else "", *[""] * 8]
        lines += [f"{key}:{headers[key]}" for key in sorted(headers)]
        lines += [f"/{ACCOUNT}/{ACCOUNT}/{name}", *(f"{key}:{value}" for key, value in query.items())]
        digest = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
        signed = headers | {"Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"}
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        query_string = "&".join(f"{key}={value}" for key, value in query.items())
        connection.request("PUT", f"/{ACCOUNT}/{name}{'?' * bool(query_string)}{query_string}", data, signed)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
        connection.close()


@contextlib.contextmanager
def running_azure(program: str) -> Iterator[Azure]:
    """Context manager: a server."""
    port = free_port()
    command = [program, "--silent", "--inMemoryPersistence", "--skipApiVersionCheck", f"--blobPort={port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(port, process, seconds=60)
        yield Azure(port)
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def az_server() -> Iterator[Azure]:
    """The server, for the whole session; nothing in this process's environment points to it."""
    if not (program := os.environ.get("AZURITE")):
        pytest.skip("no Azurite: AZURITE is not set; run: make test-cloud")
    if not importlib.util.find_spec("obstore"):
        pytest.skip("obstore is not installed")
    with running_azure(program) as server:
        yield server


@pytest.fixture
def az(az_server: Azure, monkeypatch: pytest.MonkeyPatch) -> Iterator[Azure]:
    """The server, with this process's environment pointing to it for one test."""
    for name, value in az_server.environment.items():
        monkeypatch.setenv(name, value)
    forget_stores()
    yield az_server
    forget_stores()
