"""Executors call a function for each unit and return the results in order; a contract over all of them."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from beam_pipelines.runners import worker_process
from beam_pipelines.runners.executors import UNIT_BYTES, Executor, Inline, Processes, Threads
from support.executor_functions import Logger, buffer_of, fail_awkwardly, process_of

ROOT = Path(__file__).parents[2]
EXECUTORS: dict[str, Callable[[], Executor]] = {
    "inline": Inline,
    "threads": lambda: Threads(2),
    "processes": lambda: Processes(2),
}


@pytest.fixture(params=EXECUTORS)
def executor(request) -> Iterator[Executor]:
    with EXECUTORS[request.param]() as instance:
        yield instance


def test_results_are_in_the_order_of_the_units_however_long_each_takes(executor):
    units = [range(200_000 // (1 + number % 7)) for number in range(50)]
    assert list(executor.map_units(sum, units)) == list(map(sum, units))
    assert list(executor.map_units(sum, [])) == []


def test_the_error_of_the_first_unit_that_fails_is_raised_and_the_executor_works_on(executor):
    results = executor.map_units(int, ["1", "2", "x", "y"])
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="'x'"):
        next(results)
    assert list(executor.map_units(int, ["3"])) == [3]


def test_an_error_of_the_system_keeps_its_number_and_its_path(executor, tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        list(executor.map_units(os.listdir, [f"{tmp_path}/none"]))
    assert raised.value.filename == f"{tmp_path}/none"


def test_an_error_that_cannot_be_pickled_keeps_its_text(executor):
    with pytest.raises(ValueError, match=r"^a: does not fit$"):
        list(executor.map_units(fail_awkwardly, ["a"]))


def test_a_unit_is_begun_before_the_one_before_it_is_done(executor, tmp_path):
    assert list(executor.map_units(Logger(tmp_path / "log"), range(20))) == list(range(1, 21))
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{event} {number}" for event in ("begin", "call") for number in range(20))
    if isinstance(executor, Inline):  # elsewhere it depends on when a unit arrives
        assert all(lines.index(f"begin {number + 1}") < lines.index(f"call {number}") for number in range(19))
    assert all(lines.index(f"begin {number}") < lines.index(f"call {number}") for number in range(20))


@pytest.mark.parametrize("size", [0, UNIT_BYTES, 100 * UNIT_BYTES])
def test_few_units_are_in_flight_and_one_that_is_too_large_is_alone(executor, size):
    numbers: list[int] = []

    def units() -> Iterator[int]:
        for number in range(40):
            numbers.append(number)
            yield number

    ahead = []
    for number, result in enumerate(executor.map_units(abs, units(), lambda unit: size)):
        assert result == number
        ahead.append(len(numbers) - number)
    # The one that is yielded, and one that has been taken from the units and waits for room.
    most = 2 if size > UNIT_BYTES else 3 * executor.num_workers + 2
    assert max(ahead) <= most
    if size <= UNIT_BYTES and not isinstance(executor, Inline):
        assert max(ahead) >= 2 * executor.num_workers


def test_several_threads_share_the_workers(executor):
    def total(first: int) -> int:
        return sum(executor.map_units(abs, range(first, first + 300)))

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(total, [0, 1000, 2000])) == [sum(range(n, n + 300)) for n in (0, 1000, 2000)]


def test_who_stops_early_leaves_room_for_others(executor):
    for _ in range(10):
        results = executor.map_units(abs, range(100))
        assert next(results) == 0
        results.close()
    assert list(executor.map_units(abs, range(100))) == list(range(100))


def test_a_closed_executor_cancels_what_others_wait_for(executor):
    start = threading.Event()

    def units() -> Iterator[float]:
        yield 0.0
        start.set()
        while True:
            yield 0.001

    def work() -> None:
        for _ in executor.map_units(time.sleep, units()):
            pass

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        start.wait()
        executor.close()
        assert isinstance(working.exception(60), CancelledError)


def test_large_buffers_come_from_processes_without_a_copy():
    data = os.urandom(5_000_000)
    with Processes(1) as executor:
        (result,) = executor.map_units(pickle.PickleBuffer, [data])
    assert isinstance(result, memoryview)  # of the other process' memory
    assert result == data


def test_a_process_writes_its_results_into_the_same_memory_again():
    with Processes(1) as executor:
        memory_files = set[int]()
        for number, (data, files) in enumerate(executor.map_units(buffer_of, [(n, 300_000) for n in range(60)])):
            assert bytes(data) == bytes([number]) * 300_000
            memory_files |= files
            del data
    assert 1 <= len(memory_files) <= 3


@pytest.mark.parametrize("num_bytes", [10, 300_000, 9_000_000])
def test_a_result_stays_as_it_is_while_later_units_are_done(num_bytes):
    with Processes(2) as executor:
        results = [data for data, _ in executor.map_units(buffer_of, [(n, num_bytes) for n in range(20)])]
        assert [bytes(data) for data in results] == [bytes([number]) * num_bytes for number in range(20)]
        later = [data for data, _ in executor.map_units(buffer_of, [(n, num_bytes) for n in range(100, 110)])]
        assert [bytes(data)[0] for data in (*results, *later)] == [*range(20), *range(100, 110)]


@pytest.mark.parametrize(("num_units", "num_processes"), [(0, 0), (1, 1), (100, 3)])
def test_there_are_no_more_processes_than_units_nor_than_asked_for_and_none_is_left(num_units, num_processes):
    before = set(psutil.Process().children(recursive=True))
    with Processes(3, ["numpy"]) as executor:
        workers = set(executor.map_units(process_of, range(num_units)))
    assert len({process for process, _ in workers}) <= num_processes
    assert not {process for process, _ in workers} & {os.getpid()}
    assert {num_threads for _, num_threads in workers} <= {1}  # NumPy's OpenBLAS would start one for each core
    assert not set(psutil.Process().children(recursive=True)) - before


def test_a_killed_process_is_an_error_for_all_who_wait_and_for_those_who_come_later():
    with Processes(2) as executor, ThreadPoolExecutor(2) as threads:
        ((process, _),) = executor.map_units(process_of, [0])
        waiting = [threads.submit(list, executor.map_units(time.sleep, [1000.0, 1000.0])) for _ in range(2)]
        os.kill(process, signal.SIGKILL)
        for future in waiting:
            with pytest.raises(OSError, match="a worker process has ended: it was killed, perhaps because memory ran"):
                future.result(60)
        with pytest.raises(OSError, match="a worker process has ended"):
            list(executor.map_units(abs, [1]))


def test_what_a_process_sent_before_it_ended_is_received_though_it_left_messages_unread():
    one, other = worker_process.connections()
    with one:
        worker_process.send(one, 1, "unread")
        worker_process.send(other, 2, "why it ends")
        other.close()
        assert worker_process.receive(one) == (2, "why it ends")
        assert worker_process.receive(one) is None


def test_a_module_that_cannot_be_imported_is_an_error():
    with Processes(1, ["no_such_module"]) as executor, pytest.raises(ImportError, match="no_such_module"):
        list(executor.map_units(abs, [1]))


# Prints its processes, all of which wait; whoever reads its output to the end waits for all of them.
WAITING = """
import os, sys, time
from beam_pipelines.runners.executors import Processes
with Processes(2) as executor:
    next(executor.map_units(print, ["begun"]))
    for _ in executor.map_units(time.sleep, [0, 1000, 1000]):
        print(os.getpid(), flush=True)
"""


def program(code: str, **more) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


@pytest.mark.parametrize("victim", ["command", "server"])
def test_processes_end_when_the_command_or_their_server_is_killed(victim):
    with program(WAITING) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        command = int(process.stdout.readline())
        (server,) = psutil.Process(command).children()
        os.kill(command if victim == "command" else server.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if victim == "command" else 1)
    assert ("a worker process has ended" in err) == (victim == "server")


def test_ctrl_c_for_the_whole_group_is_the_command_s_alone():
    with program(f"import signal; signal.signal(2, signal.default_int_handler)\n{WAITING}", process_group=0) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        os.killpg(int(process.stdout.readline()), signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert err.count("Traceback") == 1
    assert err.endswith("\nKeyboardInterrupt\n")


LIMITED = """
from beam_pipelines.runners.executors import Processes
with Processes(16, ["beam_pipelines.conversion.units"]) as executor:
    units = [bytes([number]) * 100_000 for number in range(100)]
    assert list(executor.map_units(bytes, units)) == units
    print(executor.num_workers)
"""


@pytest.mark.parametrize(
    ("limit", "value", "most"),
    [(resource.RLIMIT_NOFILE, 64, 8), (resource.RLIMIT_AS, 1_200_000_000, 16), (resource.RLIMIT_FSIZE, 300_000, 16)],
    ids=["files", "memory", "file size"],
)
def test_processes_work_within_the_limits_of_a_shell(limit, value, most):
    with program(LIMITED, preexec_fn=lambda: resource.setrlimit(limit, (value, value))) as process:
        out, err = process.communicate(timeout=120)
    assert (out, err) == (f"{most}\n", "")


def test_processes_need_no_shared_memory_of_the_file_system():
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /dev/shm && exec "$@"', "sh"]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run([*hidden, "true"], capture_output=True).returncode == 0:
            command = [*hidden, sys.executable, "-W", "ignore", "-c", LIMITED]
            result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            assert (result.stdout, result.stderr) == ("16\n", "")
            return
    pytest.skip("this user cannot hide /dev/shm from a process")


FREED = """
import resource
from beam_pipelines.runners import heap_limits

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def use(num_bytes, times):
    before, faults = resident(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        b"x" * num_bytes
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return (resident() - before) / num_bytes, faults * resource.getpagesize() / num_bytes

heap_limits.apply()
print(*use(24 << 20, 4), *use(4 << 20, 40))
"""


def test_freed_memory_of_a_unit_is_used_again_and_that_of_a_plan_is_returned():
    with program(FREED) as process:
        out, err = process.communicate(timeout=120)
    assert err == ""
    large_resident, _, _, unit_cleared = map(float, out.split())
    assert large_resident < 0.5  # of 24 MB, though it was used four times
    assert unit_cleared < 5  # times a unit's pages for 40 units
