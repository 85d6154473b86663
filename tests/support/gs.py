"""Commands with TensorFlow, whose gs:// is the emulator of cloud.py, through fault_proxy.py.

Its filesystem's addresses are fixed, but libcurl honours https_proxy, and TensorFlow hands CURL_CA_BUNDLE on to it.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from support.app_commands import without_progress
from support.cloud import Cloud
from support.fault_proxy import FaultProxy, fault_proxy
from tpu_input.dataset_format.records import Manifest

ROOT = Path(__file__).parents[2]
FLAGS = (
    *("--image_size=16", "--train_batch_size=16", "--no_flip", "--learning_rate=0.05"),
    *("--train_steps=20", "--steps_per_eval=10", "--save_steps=4"),
)


class Gs:
    """Runs commands whose gs:// is the emulator, in a folder where `make preflight` has put no compiler.

    Attributes:
      cloud: The emulator.
      proxy: Between it and TensorFlow.
      dataset: URI of the digits.
    """

    def __init__(self, cloud: Cloud, proxy: FaultProxy, folder: Path) -> None:
        self.cloud, self.proxy, self._folder = cloud, proxy, folder
        self._uploaded = dict[str, str]()
        self.dataset = ""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "GCS_"))}
        self._environment = environment | self.variables() | {"PYTHONPATH": str(ROOT)}

    def take(self, dataset: str) -> None:
        """Takes a local dataset as the one in the bucket; it is uploaded once."""
        if dataset not in self._uploaded:
            self._uploaded[dataset] = f"{self.cloud.make_bucket()}/digits"
            self.cloud.upload(dataset, self._uploaded[dataset])
        self.dataset = self._uploaded[dataset]

    def variables(self) -> dict[str, str]:
        """Returns what both clients need; TensorFlow tries again at once, for which it else waits 197 s.

        With a first delay above 0 it adds up to a second at random (tensorflow/tsl: retrying_utils.cc).
        """
        return {
            "https_proxy": self.proxy.url,
            "no_proxy": "127.0.0.1,localhost",
            "CURL_CA_BUNDLE": str(self._folder / "ca.pem"),
            "REQUESTS_CA_BUNDLE": str(self._folder / "ca.pem"),  # for Google's client
            "NO_GCE_CHECK": "true",
            "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true",  # as in cloud.py
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "0",
            "GCS_RETRY_CONFIG_MAX_RETRIES": "5",
        }

    def start(self, *args: str) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, "-W", "ignore", *args], subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=self._folder, env=self._environment)

    def run(self, *args: str) -> tuple[int, str, str]:
        """Returns the exit status, stdout and stderr of `python …`."""
        process = self.start(*args)
        out, err = process.communicate(timeout=1200)
        return process.returncode, out, err

    def does(self, *args: str) -> str:
        """Returns what a command of estimator_app says that goes well, with nothing on stderr."""
        code, out, err = self.run("-m", "estimator_app", *args)
        assert (code, without_progress(err)) == (0, ""), err
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


@contextlib.contextmanager
def running_gs(cloud: Cloud, folder: Path) -> Iterator[Gs]:
    """Context manager: a proxy in front of an emulator, and commands that go there; its certificate is in `folder`."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("*.googleapis.com").configure_cert(tls)
    with fault_proxy(cloud.url, tls) as proxy:
        yield Gs(cloud, proxy, folder)


@pytest.fixture(scope="session")
def gs_session(cloud_server: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gs]:
    with running_gs(cloud_server, tmp_path_factory.mktemp("gs")) as gs:
        yield gs


@pytest.fixture
def gs(gs_session: Gs, digits_dataset: Manifest) -> Iterator[Gs]:
    """The digits' dataset in a bucket, and a proxy that has counted nothing and disturbs nobody."""
    gs_session.take(digits_dataset.path)  # tests of tpu_input have another one than the others
    gs_session.proxy.requests.clear()
    yield gs_session
    gs_session.proxy.calm()
