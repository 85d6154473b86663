"""What keeps an image from being read, and which of it the image is to blame for."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from beam_pipelines import storage
from beam_pipelines.__main__ import main
from beam_pipelines.sources import read_ahead
from beam_pipelines.sources.read_ahead import Reader, map_images, read_rows
from beam_pipelines.sources.rows import Row, find
from beam_pipelines.storage import local as local_files
from support.conversion import after_planning
from tpu_input.stored_images.check import Rejected


def failing(error: Exception):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE])
def test_what_the_machine_lacks_stops_the_run_and_rejects_nothing(monkeypatch, code):
    monkeypatch.setattr(storage, "DELAYS", (0, 0))
    monkeypatch.setattr(local_files, "read_bytes", failing(OSError(code, os.strerror(code), "a.jpg")))
    message = rf"^'a.jpg' cannot be read now, after 3 tries: {os.strerror(code)}; fix the storage"
    with pytest.raises(storage.Unavailable, match=message):
        list(read_rows([Row("a", "a.jpg")]))


def test_want_of_memory_stops_the_run_and_rejects_nothing(monkeypatch, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"a")
    row = Row("a", str(tmp_path / "a.jpg"), num_bytes=1)
    with pytest.raises(
        storage.Unavailable, match="there is not enough memory; resolve this, the file is not the cause"
    ):
        list(map_images([row], failing(MemoryError()), 1))
    monkeypatch.setattr(storage, "read_bytes", failing(MemoryError()))
    with pytest.raises(storage.Unavailable, match="there is not enough memory"):
        list(read_rows([row]))


@pytest.mark.parametrize(("waits", "prefix"), [(False, ""), (True, ""), (False, "gs://bucket/")])
def test_threads_read_what_takes_time_and_all_rows_come_in_order(monkeypatch, waits, prefix):
    main_thread, readers, in_flight, peak = threading.get_ident(), list[bool](), 0, 0

    def read(uri: str, version: int) -> bytes:
        nonlocal in_flight, peak
        readers.append(threading.get_ident() == main_thread)
        in_flight += 1
        peak = max(peak, in_flight)
        if waits or prefix:
            time.sleep(0.005)
        in_flight -= 1
        return uri[len(prefix) :].encode()

    monkeypatch.setattr(storage, "read_bytes", read)
    rows = [Row(f"{number:04d}", f"{prefix}{number:04d}", num_bytes=4) for number in range(500)]
    with_file = [(row, row.key.encode()) for row in rows]
    assert list(read_rows(rows)) == with_file
    if waits or prefix:
        assert readers.count(True) == (0 if prefix else 1)
        assert peak > 16
    else:
        assert readers.count(False) < 100  # but for a page fault that may have taken a moment
        assert len(readers) == 500


@pytest.mark.parametrize(("waits", "prefix"), [(False, ""), (True, ""), (False, "gs://bucket/")])
def test_a_unit_is_read_ahead_of_the_one_before_it_where_reading_takes_time(monkeypatch, waits, prefix):
    main_thread, readers, num_waits = threading.get_ident(), list[bool](), 0

    def read(uri: str, version: int) -> bytes:
        nonlocal num_waits
        readers.append(threading.get_ident() == main_thread)
        num_waits += waits
        return uri[len(prefix) :].encode()

    monkeypatch.setattr(storage, "read_bytes", read)
    monkeypatch.setattr(read_ahead, "_num_waits", lambda: num_waits)
    reader, counts = Reader(), []
    for unit in range(8):
        rows = [
            Row(f"{number:04d}", f"{prefix}{number:04d}", num_bytes=4) for number in range(20 * unit, 20 * unit + 20)
        ]
        loaded = reader.begin(rows)
        readers.clear()
        assert list(loaded) == [(row, row.key.encode()) for row in rows]
        counts.append(readers.count(True))
    if not waits:
        assert counts == ([0] * 8 if prefix else [20] * 8)
    else:  # then one unit is read ahead, after the next wait two, then four
        assert [count > 0 for count in counts] == [True, False, True, False, False, True, False, False]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_the_rows_of_a_unit_are_read_at_the_same_time_where_reading_takes_time(monkeypatch, is_ahead):
    num_waits, main_thread, all_read = 0, threading.get_ident(), threading.Barrier(30)

    def read(uri: str, version: int) -> bytes:
        nonlocal num_waits
        if threading.get_ident() == main_thread:
            num_waits += 1
        else:
            all_read.wait(60)  # raises BrokenBarrierError unless 30 threads get here
        return uri.encode()

    monkeypatch.setattr(storage, "read_bytes", read)
    monkeypatch.setattr(read_ahead, "_num_waits", lambda: num_waits)
    reader = Reader()
    if is_ahead:
        assert len(list(reader.begin([Row("0", "0", num_bytes=1)]))) == 1
    num_here = 0 if is_ahead else 1
    rows = [Row(f"{number:02d}", f"{number:02d}", num_bytes=2) for number in range(num_here + 30)]
    assert list(reader.begin(rows)) == [(row, row.key.encode()) for row in rows]


# In every process: opening a local file takes time, as on a network file system.
SLOW = """
import time
from beam_pipelines.storage import local
read_bytes = local.read_bytes

def read(*arguments):
    time.sleep(0.02)
    return read_bytes(*arguments)

local.read_bytes = read
"""


@pytest.mark.parametrize("num_processes", [1, 2])
def test_what_takes_time_is_read_within_a_limit_of_the_address_space(digits, tmp_path, num_processes):
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    command = ["convert", f"--input={digits}", f"--output={tmp_path}/out", f"--num_processes={num_processes}"]
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "jpeg2tpu", *command],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1_200_000_000, 1_200_000_000)),
        capture_output=True,
        text=True,
    )
    assert result.stdout.startswith("train: "), result.stderr
    assert result.returncode == 0


def test_local_files_are_read_here_again_when_they_no_longer_take_time(monkeypatch):
    main_thread, readers = threading.get_ident(), list[bool]()

    def read(uri: str, version: int) -> bytes:
        readers.append(threading.get_ident() == main_thread)
        if len(readers) == 1:
            time.sleep(0.005)
        return b""

    monkeypatch.setattr(storage, "read_bytes", read)
    monkeypatch.setattr(read_ahead, "_LEAST_AHEAD", 2)
    rows = [Row(f"{number}", f"{number}") for number in range(1000)]
    assert [row for row, _ in read_rows(rows)] == rows
    assert readers[0]
    assert not any(readers[1:8])
    assert any(readers[8:])


def test_the_longer_reads_take_time_the_more_are_ahead(monkeypatch):
    main_thread, readers = threading.get_ident(), list[bool]()

    def read(uri: str, version: int) -> bytes:
        readers.append(threading.get_ident() == main_thread)
        time.sleep(0.001)
        return b""

    monkeypatch.setattr(storage, "read_bytes", read)
    monkeypatch.setattr(read_ahead, "_LEAST_AHEAD", 1)
    rows = [Row(f"{number}", f"{number}") for number in range(8 * (3 + 5 + 9 + 17))]  # 1 + 2, 1 + 4, … chunks
    assert [row for row, _ in read_rows(rows)] == rows
    assert readers.count(True) <= 6  # one of each time


def test_a_file_that_may_not_be_read_is_rejected(monkeypatch):
    monkeypatch.setattr(local_files, "read_bytes", failing(PermissionError(errno.EACCES, "Permission denied", "a.jpg")))
    ((_, rejected),) = read_rows([Row("a", "a.jpg")])
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "unreadable"


# Reading this file fails with EIO, as nothing is mapped at its first byte: a real failure of a real, regular file.
FAILING = "/proc/self/mem"


def fail_to_read(path: Path) -> Callable[[], None]:
    """Lets reads of a file fail; returns what mends it."""
    aside = path.parents[2] / path.name
    path.rename(aside)
    path.symlink_to(FAILING)

    def mend() -> None:
        path.unlink()
        aside.rename(path)

    return mend


def test_a_read_that_fails_is_tried_again(few_digits, monkeypatch):
    path = few_digits / "1" / "0001.jpg"
    data = path.read_bytes()
    mend = fail_to_read(path)
    with pytest.raises(OSError, match="Input/output error"):
        path.read_bytes()
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        mend()

    monkeypatch.setattr("beam_pipelines.storage.time.sleep", sleep)
    assert list(read_rows([row := Row("a", str(path), num_bytes=len(data))])) == [(row, data)]
    assert len(slept) == 1


@pytest.mark.parametrize("when", ["planning", "writing"])
def test_an_error_of_the_disk_rejects_nothing_and_the_same_command_goes_on(
    when, few_digits, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(storage, "DELAYS", (0, 0))
    path = few_digits / "1" / "0001.jpg"
    command = ["convert", f"--input={few_digits}", f"--output={tmp_path}/out", "--max_rejected=100%"]
    mends = []
    if when == "planning":
        mends.append(fail_to_read(path))
    else:
        after_planning(monkeypatch, lambda: mends.append(fail_to_read(path)))
    assert main(command) == 2
    err = capsys.readouterr().err
    assert f"error: '{path}' cannot be read now, after 3 tries: Input/output error; fix the storage" in err
    assert err.endswith("written files are kept; rerun the same command to resume\n")
    assert not (tmp_path / "out" / "manifest.json").exists()
    mends[0]()
    assert main(command) == 0
    assert "rejected: 0 of 36" in capsys.readouterr().out


def test_a_size_that_cannot_be_told_is_not_taken_for_a_missing_file(few_digits, monkeypatch):
    monkeypatch.setattr(storage, "DELAYS", (0,))
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing(OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(storage.Unavailable, match="Input/output error"):
            find(Row("a", str(few_digits / "1" / "0001.jpg")))


def replace(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(1000))


@pytest.mark.parametrize("processes", [0, 2])
def test_inputs_that_changed_after_they_were_listed_stop_the_conversion_by_name(
    processes, few_digits, tmp_path, monkeypatch, capsys
):
    changed = [few_digits / "0" / "0000.jpg", few_digits / "2" / sorted(os.listdir(few_digits / "2"))[5]]
    missing_path = few_digits / "1" / "0001.jpg"
    sizes = {path: path.stat().st_size for path in changed}

    def change() -> None:
        missing_path.unlink()
        for path in changed:
            replace(path)

    after_planning(monkeypatch, change)
    command = [
        "convert",
        f"--input={few_digits}",
        f"--output={tmp_path}/out",
        "--max_rejected=100%",
        "--splits=all=100%",
        *[f"--num_processes={processes}"] * bool(processes),
    ]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "3 inputs have changed since they were listed: " in err
    for path, size in sizes.items():
        assert f"'{path}' has {size + 1000} bytes, previously {size}" in err
    assert f"'{missing_path}' no longer exists" in err
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert main([*command, "--overwrite"]) == 0
    assert "rejected: 0 of 35" in capsys.readouterr().out


def test_an_archive_that_changed_after_it_was_listed_stops_the_conversion(few_digits, tmp_path, monkeypatch, capsys):
    path = tmp_path / "digits.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(few_digits, ".")

    def put_another_in_its_place() -> None:
        (few_digits / "3").mkdir()
        shutil.copy(few_digits / "0" / "0000.jpg", few_digits / "3")
        with tarfile.open(path, "w") as archive:
            for label in ("3", "2", "1", "0"):
                archive.add(few_digits / label, label)

    after_planning(monkeypatch, put_another_in_its_place)
    assert main(["convert", f"--input={path}", f"--output={tmp_path}/out", "--max_rejected=100%"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"'{path}" in err
    assert re.search("since (it was|they were) listed", err)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_file_of_another_size_than_was_listed_is_no_input(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(b"12345")
    assert [data for _, data in read_rows([Row("a", str(path), num_bytes=5)])] == [b"12345"]
    with pytest.raises(storage.Changed, match=f"'{path}' has 5 bytes, previously 4; when the inputs no longer change"):
        list(read_rows([Row("a", str(path), num_bytes=4)]))


def test_a_device_or_a_pipe_is_refused_without_being_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    opened, open_file = list[str](), os.open

    def watched(path: str, flags: int) -> int:
        opened.append(path)
        return open_file(path, flags)

    monkeypatch.setattr(os, "open", watched)
    for path in (f"{tmp_path}/pipe", "/dev/zero"):
        with pytest.raises(OSError, match="is not a regular file"):
            storage.read_bytes(path)
    assert opened == []
