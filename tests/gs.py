"""Commands with TensorFlow, whose gs:// is the emulator of cloud.py, through tls_proxy.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cloud import Cloud
from tls_proxy import TlsProxy

ROOT = Path(__file__).parent.parent
FLAGS = (
    *("--image_size=16", "--train_batch_size=16", "--no_flip", "--learning_rate=0.05"),
    *("--train_steps=20", "--steps_per_eval=10", "--save_steps=4"),
)


class Gs:
    """Runs commands whose gs:// is the emulator.

    Attributes:
      cloud: The emulator.
      proxy: Between it and TensorFlow.
      dataset: URI of the digits.
    """

    def __init__(self, cloud: Cloud, proxy: TlsProxy, dataset: str) -> None:
        self.cloud, self.proxy, self.dataset = cloud, proxy, dataset
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "GCS_"))}
        self._environment = kept | proxy.environment()

    def start(self, *args: str) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, "-W", "ignore", *args], subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=self._environment)

    def run(self, *args: str) -> tuple[int, str, str]:
        """Returns the exit status, stdout and stderr of `python …`."""
        process = self.start(*args)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    def does(self, *args: str) -> str:
        """Returns what a command of estimator_app says that goes well, with nothing on stderr."""
        code, out, err = self.run("-m", "estimator_app", *args)
        assert (code, err) == (0, ""), err
        return out

    def refused(self, *args: str) -> str:
        """Returns the one line with which a command of estimator_app ends."""
        code, _, err = self.run("-m", "estimator_app", *args)
        assert (code, err[:7], err.count("\n")) == (2, "error: ", 1), err
        return err.removeprefix("error: ").strip()

    def training(self, model_dir: str, *flags: str) -> tuple[str, ...]:
        return ("train", f"--dataset={self.dataset}", f"--model_dir={model_dir}", *FLAGS, *flags)

    def download(self, uri: str, folder: Path) -> str:
        """Returns `folder`, into which all files below a URI were copied."""
        for name in self.cloud.files(uri):
            if name and not name.endswith("/"):  # else a folder's marker
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(self.cloud.get(f"{uri}/{name}"))
        return str(folder)


@pytest.fixture(scope="session")
def gs_session(cloud_server, digits_dataset, tmp_path_factory):
    bucket = cloud_server.make_bucket()
    cloud_server.upload(digits_dataset.path, f"{bucket}/digits")
    with TlsProxy(cloud_server.url.removeprefix("http://"), tmp_path_factory.mktemp("proxy")) as proxy:
        yield Gs(cloud_server, proxy, f"{bucket}/digits")


@pytest.fixture
def gs(gs_session):
    """The digits' dataset in a bucket, and a proxy that has counted nothing and disturbs nobody."""
    gs_session.proxy.requests.clear()
    yield gs_session
    gs_session.proxy.fault = lambda request: None
