"""An S3 of the tests' own: moto's server on a free port of 127.0.0.1, with boto3 to fill it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cloud import free_port, wait_for

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "secret-of-tests",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


class S3:
    """One server.

    Attributes:
      url: "http://127.0.0.1:PORT".
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def client(self) -> Any:
        import boto3

        credentials = {name.lower(): ENVIRONMENT[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **credentials)

    def make_bucket(self) -> str:
        """Returns the URI of a new, empty bucket."""
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        self.client.create_bucket(Bucket=name)
        return f"s3://{name}"

    def upload(self, folder: Path | str, uri: str) -> None:
        """Copies all files of a local folder below a URI."""
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            self.put(f"{uri}/{path.relative_to(folder)}", path.read_bytes())

    def put(self, uri: str, data: bytes) -> None:
        bucket, _, name = uri.removeprefix("s3://").partition("/")
        self.client.put_object(Bucket=bucket, Key=name, Body=data)

    def delete(self, uri: str) -> None:
        bucket, _, name = uri.removeprefix("s3://").partition("/")
        self.client.delete_object(Bucket=bucket, Key=name)


@contextlib.contextmanager
def running_s3() -> Iterator[S3]:
    """Context manager: a server."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H127.0.0.1", f"-p{port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process, seconds=60)
        yield S3(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    """The server, for the whole session; nothing in this process's environment points to it."""
    for package in ("obstore", "boto3", "moto", "flask"):
        if not importlib.util.find_spec(package):
            pytest.skip(f"{package} is not installed")
    with running_s3() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """The server, with this process's environment pointing to it for one test."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    forget_stores()
    yield s3_server
    forget_stores()


def forget_stores() -> None:
    """Makes this process look at the environment again."""
    from beam_pipelines.storage import hub, object_stores

    object_stores._cached_store.cache_clear()
    object_stores._answered.clear()
    hub._cached_store.cache_clear()
    hub._listed.cache_clear()
    hub._commits.clear()
