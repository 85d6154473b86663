"""Runs of the trainer on JAX in several processes: they train as one, go on in another number, and end together."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from estimator_app.model_dir.run_files import read_command
from support.app_fixtures import configured
from support.cloud import free_port
from support.jax_runs import command, command_in_two, ended, started
from support.small_network import NORMALIZED
from support.trainers import needs_jax

pytestmark = needs_jax
FLAGS = ("train", "--trainer=jax", "--image_size=8", "--train_batch_size=8", "--eval_batch_size=104", "--no_flip")
RECIPE = (
    f"--network={NORMALIZED}",
    "--learning_rate=0.05",
    "--ema=0.9",
    "--mixup=0.2",
    "--train_steps=8",
    "--save_steps=2",
    "--save_seconds=0",
)


def arrays(folder: Path, step: int) -> dict[str, np.ndarray]:
    with np.load(folder / f"model.ckpt-{step}.npz") as file:
        return {name: file[name] for name in file.files}


def metrics(folder: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return fields


@pytest.mark.long
@pytest.mark.core
def test_two_processes_that_were_killed_end_as_one_and_go_on_as_two_or_one(digits_dataset, tmp_path):
    """One process has two devices, so that the sums over devices are the same, bit for bit."""

    def flags(name: str) -> tuple[str, ...]:
        return *FLAGS, *RECIPE, f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/{name}"

    reference = command(*flags("whole"), devices=2)
    assert reference.returncode == 0, reference.stderr
    killed = command_in_two(*flags("two"), signals=(signal.SIGKILL, signal.SIGKILL), at_step=5)
    assert [process.returncode for process in killed] == [-signal.SIGKILL] * 2
    shutil.copytree(tmp_path / "two", tmp_path / "one")
    first, second = command_in_two(*flags("two"))
    assert (first.returncode, second.returncode) == (0, 0), (first.stderr, second.stderr)
    assert first.stdout.startswith(f"resuming {NORMALIZED} at step 4/8")
    assert "Gloo" not in first.stdout
    assert (second.stdout, second.stderr) == ("", "")
    one = command(*flags("one"), devices=2)
    assert one.returncode == 0, one.stderr
    expected = arrays(tmp_path / "whole", 8)
    for name in ("two", "one"):
        actual = arrays(tmp_path / name, 8)
        assert actual.keys() == expected.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(actual[key], array, err_msg=f"{name}: {key}")
        assert metrics(tmp_path / name)["confusion"] == metrics(tmp_path / "whole")["confusion"]
        assert metrics(tmp_path / name)["loss"] == pytest.approx(metrics(tmp_path / "whole")["loss"], rel=1e-12)
    on_eight = command("evaluate", f"--model_dir={tmp_path}/one", f"--network={NORMALIZED}", "--json", devices=8)
    assert json.loads(on_eight.stdout)["confusion"] == metrics(tmp_path / "whole")["confusion"]
    assert json.loads(on_eight.stdout)["num_examples"] == digits_dataset.split("validation").num_examples


@pytest.mark.long
@pytest.mark.core
def test_a_signal_to_one_process_saves_and_ends_both(digits_dataset, tmp_path):
    flags = *FLAGS, *RECIPE, f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/m"
    first, second = command_in_two(*flags, signals=(0, signal.SIGTERM), at_step=2)
    assert (first.returncode, second.returncode) == (128 + signal.SIGTERM,) * 2, (first.stderr, second.stderr)
    assert "stopped and saved at step 3/8; resume with: jpeg2tpu train" in first.stdout
    command_to_repeat = read_command(f"{tmp_path}/m")
    assert f"--model_dir={tmp_path}/m" in command_to_repeat
    assert not re.search("--(coordinator_address|num_processes|process_id)", command_to_repeat)
    assert (second.stdout, second.stderr) == ("", "")


# Processes that agree again and again; one of them ends, while the others are in a step, or wait for one for ever.
ENDING = """
import os, signal, sys, threading
from estimator_app.trainers.jax.connections import Place
from estimator_app.trainers.jax.processes import joined
address, size, index, ending, waits, dies = sys.argv[1], *map(int, sys.argv[2:])
with joined(Place(address, size, index), {}, 60, print) as group:
    for step in range(10**6):
        if step == 5 and index == ending:
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("an image")
        if step == 5 and waits:
            threading.Event().wait()
        group.is_stopped(threading.Event())
"""


@pytest.mark.long
@pytest.mark.core
@pytest.mark.parametrize(("size", "ending", "waits", "dies"), [(2, 0, 0, 1), (3, 1, 0, 1), (2, 0, 1, 1), (2, 1, 0, 0)])
def test_the_end_of_a_process_ends_the_others_with_a_line(size, ending, waits, dies):
    address = f"127.0.0.1:{free_port()}"
    results = ended(*(started(ENDING, address, *map(str, (size, index, ending, waits, dies))) for index in range(size)))
    assert results.pop(ending).returncode == (-signal.SIGKILL if dies else 2)
    line = (
        "died; to resume from the last checkpoint, rerun the command of every process" if dies else "failed: an image"
    )
    for result in results:
        assert (result.returncode, result.stdout, result.stderr) == (2, f"process {ending} {line}\n", "")


def test_another_dataset_than_process_0_s_is_refused(digits_dataset):
    from estimator_app.trainers.jax.train import follow

    class Group:
        def calls(self) -> Any:
            config = dataclasses.replace(configured(digits_dataset, trainer="jax"), fingerprint="0" * 64)
            yield "make", {"config": config.to_json({})}

    with pytest.raises(ValueError, match="has other content than the dataset of process 0; copy it again"):
        follow(cast("Any", Group()), digits_dataset.path, threading.Event())


def test_processes_that_a_program_has_connected_are_refused(digits_dataset, tmp_path, monkeypatch):
    import jax

    from estimator_app.trainers.jax.state import make_run

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"JAX has already connected several processes; leave out jax\.distributed"):
        make_run(configured(digits_dataset, trainer="jax"), str(tmp_path))


@dataclasses.dataclass(frozen=True)
class Device:
    process_index: int
    id: int


def test_the_devices_of_a_process_are_next_to_each_other():
    """On a TPU slice of several hosts, their numbers are not: each host has a square of its chips."""
    from estimator_app.trainers.jax.batches import make_mesh

    processes = {0: 0, 1: 0, 2: 1, 3: 1, 4: 0, 5: 0, 6: 1, 7: 1}
    devices = make_mesh([Device(process, number) for number, process in processes.items()]).devices
    assert [device.id for device in devices] == [0, 1, 4, 5, 2, 3, 6, 7]


def meeting_results(
    *settings: dict[str, Any], size: int = 2, indices: tuple[int, ...] = (0, 1), timeout: float = 20
) -> list[str]:
    """Returns the line by which the meeting ends in each process; "" if it succeeds."""
    from estimator_app.trainers.jax.connections import Place, meet

    address = f"127.0.0.1:{free_port()}"

    def line(index: int, values: dict[str, Any]) -> str:
        try:
            meet(Place(address, size, index), values, timeout)
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor() as pool:
        return list(pool.map(line, indices, settings))


SAME = {"--learning_rate": 0.1, "jax": "0.12.0"}


def test_processes_that_are_given_the_same_meet():
    assert meeting_results(SAME, SAME) == ["", ""]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"--learning_rate": 0.2}, "--learning_rate is 0.1 in process 0 and 0.2 in process 1; start all with the same"),
        ({"jax": "0.11.0"}, "jax is '0.12.0' in process 0 and '0.11.0' in process 1; start all with the same command"),
        ({"--ema": 0.9}, "--ema is None in process 0 and 0.9 in process 1"),
    ],
)
def test_processes_that_are_given_different_things_are_refused_in_the_same_line(other, words):
    first, second = meeting_results(SAME, SAME | other)
    assert first == second
    assert f"the processes differ: {words}" in first


def test_two_processes_of_one_number_are_refused():
    assert (
        meeting_results(SAME, SAME, SAME, size=3, indices=(0, 1, 1))
        == ["two processes have --process_id=1; give each its own"] * 3
    )


def test_a_process_that_does_not_come_is_named():
    lines = meeting_results(SAME, SAME, size=3, timeout=3)  # for the third alone: the second comes at once
    assert lines[0] == lines[1]
    assert "process 2 of 0 to 2 did not come to 127.0.0.1:" in lines[0]
    assert "within 3 s; start every process with the same command and its own --process_id" in lines[0]


def test_an_address_that_does_not_answer_is_named():
    (line,) = meeting_results(SAME, indices=(1,), timeout=0.3)
    assert "--coordinator_address=127.0.0.1:" in line
    assert "does not answer within 0.3 s (" in line
    assert "start process 0 there, with the same command and --process_id=0" in line


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"[]\n"])
def test_another_program_at_the_address_is_recognized(answer):
    from estimator_app.trainers.jax.connections import Place, meet

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ValueError, match="has ended, or another program listens there"):
            meet(Place(address, 2, 1), SAME, 10)
        thread.join()


def test_a_stranger_at_process_0_is_ignored():
    from estimator_app.trainers.jax.connections import Place, meet

    address = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(meet, Place(address, 2, 0), SAME, 20)
        for content in (b"GET / HTTP/1.1\r\n", b'{"process": "1"}\n', b'{"process": 1, "given": []}\n'):
            with connected(address) as stranger:
                stranger.sendall(content)
                assert stranger.recv(100) == b""
        pool.submit(meet, Place(address, 2, 1), SAME, 20).result()
        first.result()


def connected(address: str) -> socket.socket:
    """Returns a connection to process 0, which may not listen yet."""
    from estimator_app.trainers.jax.connections import connect

    host, _, port = address.partition(":")
    return connect(host, int(port), 20)


def test_a_port_that_is_taken_is_one_line():
    from estimator_app.trainers.jax.connections import Place, meet

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"cannot listen at --coordinator_address={address}: Address already in"):
            meet(Place(address, 2, 0), SAME, 1)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("10.0.0.1:1", None, 0), "--num_processes must be given too"),
        ((None, 2, None), "--coordinator_address and --process_id must be given too"),
        (("10.0.0.1:1", 2, 2), "--process_id must be at least 0 and below --num_processes=2, got 2"),
        (("10.0.0.1", 2, 0), "--coordinator_address must be HOST:PORT, such as 10.0.0.1:1234, got '10.0.0.1'"),
    ],
)
def test_flags_that_do_not_name_a_process_are_one_line(flags, line):
    from estimator_app.trainers.jax.processes import find_place

    with pytest.raises(ValueError, match=line):
        find_place(*flags)


def test_jax_finds_the_place_in_a_cluster(monkeypatch):
    from estimator_app.trainers.jax.connections import Place
    from estimator_app.trainers.jax.processes import find_place

    assert find_place() is None
    cluster = {"JOB_ID": "7", "STEP_NODELIST": "node[3-5]", "NTASKS": "3", "PROCID": "2", "LOCALID": "0"}
    for name, value in cluster.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert find_place() == Place("node3:61447", 3, 2, [0])
    assert find_place(num_processes=1) is None
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert find_place() is None


def test_a_pod_that_is_not_of_an_indexed_job_trains_alone(monkeypatch):
    from estimator_app.trainers.jax.processes import find_place

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert find_place() is None
