"""Conversions with processes of this machine instead of a Beam runner; test_kill.py kills them."""

from __future__ import annotations

import importlib
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.conversion import shard_owners, shard_writing
from beam_pipelines.convert import convert
from beam_pipelines.options import NEAR_DUPLICATES
from beam_pipelines.repair import repair
from beam_pipelines.runners import executors
from beam_pipelines.verify import verify
from support.conversion import after_planning, local, options
from support.dying_owner import DyingOwner
from support.folders import files
from support.pages import unwrapped
from tpu_input.command_line.cores import num_cores


def test_processes_give_the_same_bytes_as_beam(few_digits, tmp_path):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    convert(options(few_digits, tmp_path / "a"), local())
    convert(options(few_digits, tmp_path / "b"), num_processes=3)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("splits", [[], ["--splits=all=100%"]])
@pytest.mark.parametrize("num_processes", [1, 3])
def test_no_more_processes_than_are_asked_for_make_records(few_digits, tmp_path, monkeypatch, num_processes, splits):
    monkeypatch.setattr(shard_writing, "_LEAST_ROWS", 4)  # or else a single shard of 36 images would be 3 units
    assert (
        main(["convert", f"--input={few_digits}", f"--output={tmp_path}/a", "--runner=FnApiRunner", *FLAGS, *splits])
        == 0
    )
    expected = num_processes if num_processes > 1 else 0  # of 4 shards, or of a single one
    flag = f"--num_processes={num_processes}"
    assert num_started(monkeypatch, expected, few_digits, tmp_path / "b", flag, *splits) == expected
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("few", ["_FEW_IMAGES", "_FEW_BYTES"])
def test_so_few_images_that_a_process_would_start_later_are_written_by_this_one(few_digits, tmp_path, monkeypatch, few):
    numbers = executors._FEW_IMAGES, executors._FEW_BYTES // 10**6
    assert "Up to {:,} images of {} MB in total".format(*numbers) in unwrapped("docs/conversion.md")
    assert num_started(monkeypatch, 0, few_digits, tmp_path / "a") == 0
    monkeypatch.setattr(executors, few, 30)  # of 36 images
    least = 2 if num_cores() > 1 else 0  # as two of the 4 shards are written at the same time
    assert least <= num_started(monkeypatch, least, few_digits, tmp_path / "b") <= min(num_cores(), 4) * (least > 0)
    assert files(tmp_path / "a") == files(tmp_path / "b")


FLAGS = ["--shard_size=10KB", "--max_rejected=100%"]


def num_started(monkeypatch: pytest.MonkeyPatch, expected: int, source: Path, output: Path, *flags: str) -> int:
    """Converts images to 4 shards; returns how many processes it starts for their records.

    A process is started when all others are busy. So that they are, their results wait until `expected` have started.
    """
    num_processes, are_started = 0, threading.Event()
    start, receive_from = executors.Processes._start, executors.Processes._receive_from

    def count(executor: executors.Processes) -> Any:
        nonlocal num_processes
        num_processes += 1
        if num_processes >= expected:
            are_started.set()
        return start(executor)

    def wait_and_receive(executor: executors.Processes, worker: Any) -> None:
        are_started.wait(60)
        receive_from(executor, worker)

    with monkeypatch.context() as patch:
        patch.setattr(executors.Processes, "_start", count)
        patch.setattr(executors.Processes, "_receive_from", wait_and_receive)
        assert main(["convert", f"--input={source}", f"--output={output}", *FLAGS, *flags]) == 0
    return num_processes


@pytest.fixture
def two_owners(monkeypatch):
    """Of one worker each, as on a machine with many cores."""
    monkeypatch.setattr(shard_owners, "WORKERS_PER_OWNER", 1)


def test_several_owners_of_shards_write_the_same_bytes(few_digits, tmp_path, two_owners):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    convert(options(few_digits, tmp_path / "a"), num_processes=1)
    convert(options(few_digits, tmp_path / "b"), num_processes=2)
    assert len(list((tmp_path / "b").glob("*.tfrecord"))) == 5
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_a_conversion_whose_owner_of_shards_is_killed_ends_with_a_line_and_continues(
    few_digits, tmp_path, two_owners, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(shard_owners, "Owner", DyingOwner)
        with pytest.raises(OSError, match="a worker process has ended: it was killed"):
            convert(options(few_digits, tmp_path / "a"), num_processes=2)
    convert(options(few_digits, tmp_path / "a"), num_processes=2)
    convert(options(few_digits, tmp_path / "b"), num_processes=1)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_an_error_in_one_of_several_owners_ends_the_conversion_with_it(few_digits, tmp_path, two_owners, monkeypatch):
    def changed() -> None:
        next((few_digits / "0").iterdir()).write_bytes(b"another file")

    after_planning(monkeypatch, changed)
    with pytest.raises(ValueError, match="an input has changed since it was listed"):
        convert(options(few_digits, tmp_path / "a"), num_processes=2)


@pytest.mark.parametrize("number", [-1, 0, 1.5, "2", True])
def test_a_number_of_processes_that_cannot_be_is_refused(few_digits, tmp_path, number):
    with pytest.raises(ValueError, match="num_processes must be "):
        convert(options(few_digits, tmp_path / "out"), num_processes=number)
    assert not (tmp_path / "out").exists()


def test_processes_of_this_machine_are_refused_beside_a_runner(few_digits, tmp_path):
    with pytest.raises(ValueError, match="num_processes=2 is for this machine alone"):
        convert(options(few_digits, tmp_path / "out"), local(), num_processes=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_no_more_threads_than_are_asked_for_verify(few_digits, tmp_path, monkeypatch, num_threads):
    convert(options(few_digits, tmp_path / "out"))
    verification = importlib.import_module("beam_pipelines.verify")  # that name of the package is the function
    check_shard, calls, threads = verification.check_shard, itertools.count(), set()
    started = threading.Barrier(num_threads, timeout=60)

    def checked(*args: Any, **options: Any) -> Any:
        threads.add(threading.get_ident())
        if next(calls) < num_threads:
            started.wait()  # until each thread has one of the 4 shards
        return check_shard(*args, **options)

    monkeypatch.setattr(verification, "check_shard", checked)
    assert not verify(str(tmp_path / "out"), num_threads=num_threads).problems
    assert len(threads) == num_threads


def sizes_of_pools(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which each pool of processes adds its number of processes."""
    sizes: list[int] = []

    class Recorded(executors.Processes):
        def __init__(self, num_processes: int, names: list[str], units_per_worker: int) -> None:
            sizes.append(num_processes)
            super().__init__(num_processes, names, units_per_worker)

    monkeypatch.setattr(executors, "Processes", Recorded)
    return sizes


@pytest.mark.parametrize("changes", [{"dedup": "exact"}, {"dedup": "near"}, {"group_by": NEAR_DUPLICATES}], ids=str)
def test_copies_are_found_by_processes_as_by_one_thread(few_digits, tmp_path, monkeypatch, changes):
    for name in ("copy", "other copy"):
        (few_digits / "0" / f"{name}.jpg").write_bytes((few_digits / "0" / "0000.jpg").read_bytes())
    monkeypatch.setattr("beam_pipelines.conversion.planning.make_plan._ROWS_READ", 10)
    convert(options(few_digits, tmp_path / "a", **changes), num_processes=1)
    monkeypatch.setattr(executors, "_FEW_IMAGES", 1)  # so that there are enough for processes
    sizes = sizes_of_pools(monkeypatch)
    convert(options(few_digits, tmp_path / "b", **changes), num_processes=3)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert sizes == [3, 3]  # one pool plans, the other one writes


def test_a_dataset_is_verified_and_repaired_by_processes_as_by_one_thread(few_digits, tmp_path, monkeypatch):
    convert(options(few_digits, tmp_path / "out"))
    before = files(tmp_path / "out")
    shards = sorted((tmp_path / "out").glob("*.tfrecord"))
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    shards[-1].write_bytes(b"noise")
    by_thread = verify(str(tmp_path / "out"), num_threads=1)
    monkeypatch.setattr(executors, "_FEW_IMAGES", 1)  # so that there are enough for processes
    sizes = sizes_of_pools(monkeypatch)
    findings = verify(str(tmp_path / "out"), num_threads=2)
    assert findings == by_thread
    assert findings.damaged == [shards[0].name, shards[-1].name]
    assert repair(findings, num_threads=2) == findings.damaged
    assert files(tmp_path / "out") == before
    assert sizes == [2, 2]


def test_a_dataset_is_verified_and_repaired_by_one_thread_as_by_many(few_digits, tmp_path, capsys):
    convert(options(few_digits, tmp_path / "out"))
    before = files(tmp_path / "out")
    shard = min((tmp_path / "out").glob("*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert verify(str(tmp_path / "out"), num_threads=1) == verify(str(tmp_path / "out"))
    assert main(["verify", f"{tmp_path}/out", "--num_threads=1"]) == 1
    assert repair(verify(str(tmp_path / "out"), num_threads=1), num_threads=1) == [shard.name]
    assert files(tmp_path / "out") == before
    assert main(["verify", f"{tmp_path}/out", "--num-threads=1"]) == 0
    assert main(["repair", f"{tmp_path}/out", "--num_threads=1"]) == 0
