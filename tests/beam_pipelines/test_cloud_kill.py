"""Conversions into a bucket that are killed, or that meet each other."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from beam_pipelines import storage
from beam_pipelines.conversion.output_folder import locked
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.convert import convert
from beam_pipelines.storage import gcs_lock
from support.conversion import options

pytestmark = pytest.mark.cloud
ROOT = Path(__file__).parents[2]
# As on the command line, with a lease that is shorter than the tests' patience.
COMMAND = """
import sys
from beam_pipelines.storage import gcs_lock
from beam_pipelines.__main__ import main
gcs_lock.LEASE = 1.0
sys.exit(main(sys.argv[1:]))
"""


class Conversion:
    """Runs conversions of a bucket's images through a proxy, and kills them at a request of which the n is given."""

    def __init__(self, proxy, bucket: str) -> None:
        self._proxy, self._bucket = proxy, bucket

    def run(self, output: str, victim: str = "all", fatal_request: int = 0) -> subprocess.CompletedProcess:
        command = [sys.executable, "-W", "ignore", "-c", COMMAND, "convert", f"--input={self._bucket}/images"]
        process = subprocess.Popen(
            [*command, f"--output={self._bucket}/{output}", "--shard_size=10KB", "--num_processes=2"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        number, lock = 0, threading.Lock()

        def kill(request):
            nonlocal number
            if request.name.endswith("/lock"):  # its renewals depend on how long a run takes
                return ""
            with lock:
                number += 1
                if number == fatal_request:
                    _kill(process.pid, victim)
            return ""

        self._proxy.fault = kill
        out, err = process.communicate(timeout=120)
        self._proxy.calm()
        self.num_requests = number
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def _kill(parent: int, victim: str) -> None:
    if victim == "all":
        os.killpg(parent, signal.SIGKILL)
        return
    for server in psutil.Process(parent).children():
        for worker in server.children():
            worker.kill()
            return


@pytest.fixture
def conversion(cloud, proxy, digits) -> Conversion:
    bucket = cloud.make_bucket()
    for label in "012":
        for path in sorted((digits / label).iterdir())[:12]:
            cloud.put(f"{bucket}/images/{label}/{path.name}", path.read_bytes())
    conversion = Conversion(proxy, bucket)
    result = conversion.run("whole")
    assert result.returncode == 0, result.stderr
    return conversion


def test_a_conversion_killed_at_any_request_leaves_whole_objects_alone_and_goes_on(cloud, conversion):
    bucket, num_requests = conversion._bucket, conversion.num_requests
    expected = cloud.files(f"{bucket}/whole")
    for seed in range(2):
        for victim in ("all", "writer"):
            fatal_request = random.Random(seed).randrange(
                num_requests // (2 if victim == "writer" else 20), num_requests
            )
            result = conversion.run(f"{victim}{seed}", victim, fatal_request)
            objects = cloud.files(f"{bucket}/{victim}{seed}").items()
            assert {path for path, _ in objects - expected.items() if not path.startswith(".jpeg2tpu/")} == set()
            if victim == "all":
                assert result.returncode == -signal.SIGKILL
            if victim == "writer" and result.returncode:
                assert result.stderr.startswith("error: a worker process has ended")
            result = conversion.run(f"{victim}{seed}")
            assert result.returncode == 0, result.stderr
            assert cloud.files(f"{bucket}/{victim}{seed}") == expected


def test_a_second_conversion_into_the_same_output_is_told_who_is_writing(cloud, few_digits, monkeypatch):
    monkeypatch.setattr(gcs_lock, "LEASE", 1.0)
    bucket = cloud.make_bucket()
    with locked(f"{bucket}/out") as still_held:
        with pytest.raises(ValueError, match=rf"another conversion \(process {os.getpid()} on .*\) is writing"):
            convert(options(few_digits, f"{bucket}/out"))
        assert cloud.files(bucket).keys() == {"out/.jpeg2tpu/lock"}
        still_held()
    assert cloud.files(bucket) == {}


def test_a_lock_whose_holder_was_killed_is_taken_over(cloud, few_digits, monkeypatch, capsys):
    monkeypatch.setattr(gcs_lock, "LEASE", 0.5)
    bucket = cloud.make_bucket()
    cloud.put(f"{bucket}/out/.jpeg2tpu/lock", json.dumps({"host": "gone", "process": 7}).encode())
    convert(options(few_digits, f"{bucket}/out"))
    assert "held by process 7 on 'gone'; waiting 0.5 s for a heartbeat" in capsys.readouterr().err


def test_who_has_lost_the_lock_does_not_complete_the_dataset(cloud, few_digits, monkeypatch):
    monkeypatch.setattr(gcs_lock, "LEASE", 0.5)
    bucket = cloud.make_bucket()
    lock_loss = threading.Event()
    renew = gcs_lock._renew

    def renew_and_say(*args):
        renew(*args)
        lock_loss.set()

    def steal(folder, plan):  # as another process would that had waited in vain for a sign of life
        cloud.put(f"{bucket}/out/.jpeg2tpu/lock", b"{}")
        assert lock_loss.wait(20)
        write_plan(folder, plan)

    write_plan = WorkingFolder.write_plan
    monkeypatch.setattr(gcs_lock, "_renew", renew_and_say)
    monkeypatch.setattr(WorkingFolder, "write_plan", steal)
    with pytest.raises(OSError, match="was lost because this process was suspended"):
        convert(options(few_digits, f"{bucket}/out"))
    objects = cloud.files(f"{bucket}/out")
    assert "manifest.json" not in objects
    assert ".jpeg2tpu/lock" in objects  # the other's


def test_two_that_commit_at_the_same_time_are_kept_apart(cloud, proxy):
    bucket = cloud.make_bucket()
    proxy.fault = lambda request: "lost" if proxy.counts()["upload"] == 1 else ""  # done, but the client must ask again
    with storage.create(f"{bucket}/manifest.json", new=True) as file:
        file.write(b"mine")
    with pytest.raises(FileExistsError), storage.create(f"{bucket}/manifest.json", new=True) as file:
        file.write(b"another's")
    assert cloud.get(f"{bucket}/manifest.json") == b"mine"
