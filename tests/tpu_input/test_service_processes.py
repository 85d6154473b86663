"""A tf.data service as it is run: a dispatcher and workers in processes of their own, of which one is killed."""

from __future__ import annotations

import itertools
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.service import marked, numbers, started
from tpu_input import InputConfig, make_train_input_fn


class Service:
    """A dispatcher, and workers that come and go."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, 0
        self._start_dispatcher()
        self.address = f"grpc://localhost:{self._port}"
        self.workers: list[subprocess.Popen[str]] = []

    def _start_dispatcher(self) -> None:
        self._dispatcher = started("tpu_input", "dispatcher", f"--port={self._port}", f"--work_dir={self._folder}")
        assert self._dispatcher.stdout
        line = self._dispatcher.stdout.readline()
        assert line.startswith("dispatcher: grpc://")
        self._port = int(line.rpartition(":")[2])

    def restart_dispatcher(self) -> None:
        self._dispatcher.kill()
        self._dispatcher.communicate()
        self._start_dispatcher()

    def add_workers(self, count: int) -> None:
        command = ("tpu_input", "worker", f"--dispatcher={self.address}", "--host=localhost")
        new = [started(*command) for _ in range(count)]
        for worker in new:
            assert worker.stdout
            lines = [worker.stdout.readline(), worker.stdout.readline()]
            assert lines == [f"worker: waiting for {self.address}\n", f"worker: connected to {self.address}\n"]
        self.workers += new

    def kill_worker(self) -> None:
        worker = self.workers.pop(0)
        worker.kill()
        worker.communicate()

    def end(self) -> None:
        for process in (*self.workers, self._dispatcher):
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Service(tmp_path_factory.mktemp("dispatcher"))
    yield running
    running.end()


def batches_of(manifest, service, job):
    options: dict[str, Any] = {"augment": marked, "deterministic": False}
    config = InputConfig(8, service=service.address, service_job=job, **options)
    return make_train_input_fn(manifest, config)({"batch_size": 24}).as_numpy_iterator()


@pytest.mark.long
def test_a_dispatcher_that_is_started_again_goes_on_and_no_example_comes_twice(digits_dataset, service):
    service.add_workers(2)
    total = digits_dataset.split("train").num_examples
    batches = batches_of(digits_dataset, service, "restarted")
    examples = numbers(itertools.islice(batches, total // 24))
    service.restart_dispatcher()
    examples += numbers(itertools.islice(batches, 4 * total // 24))
    assert set(Counter(examples).values()) == {1}
    assert max(examples) >= 4 * total


@pytest.mark.long
def test_after_a_worker_s_death_no_example_comes_twice_and_later_epochs_are_whole(digits_dataset, service):
    service.add_workers(2 - len(service.workers))
    total = digits_dataset.split("train").num_examples
    batches = batches_of(digits_dataset, service, "killed")
    before = numbers(itertools.islice(batches, total // 24))
    service.kill_worker()
    after = numbers(itertools.islice(batches, 5 * total // 24))
    assert set(Counter(before + after).values()) == {1}
    assert {*range(3 * total, 4 * total)} <= set(after)  # whoever works does all of an epoch that begins later


@pytest.mark.long
def test_training_goes_on_when_a_worker_is_killed_and_another_joins(digits_dataset, service, tmp_path):
    service.add_workers(2 - len(service.workers))
    flags = ("--image_size=16", "--train_steps=600", "--steps_per_eval=100", "--crop_area=0.6,1", "--no_flip")
    paths = (f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/model", f"--service={service.address}")
    training = started("estimator_app", "train", *paths, *flags, "--train_batch_size=32", "--learning_rate=0.1")
    assert training.stdout
    lines = [training.stdout.readline() for _ in range(2)]
    assert lines[1].startswith("step 100/600: accuracy")
    service.kill_worker()
    service.add_workers(1)
    rest, _ = training.communicate()
    assert training.returncode == 0
    (last,) = (line for line in rest.splitlines() if line.startswith("step 600/600: accuracy "))
    assert float(last.split()[3]) > 90
