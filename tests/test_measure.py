"""What the benchmarks measure with: a command with all its descendants."""

from __future__ import annotations

import os
import select
import sys

import pytest

from benchmarks import measure

# Starts a process of its own that takes 100 MB and a second of CPU time.
NESTED = """
import subprocess, sys
subprocess.run([sys.executable, "-c", '''
import time
taken = bytearray(b"x" * 100_000_000)
while time.process_time() < 1:
    pass
'''], check=True)
print('{"seen": 1}')
"""


def test_a_run_counts_memory_and_time_of_the_processes_that_its_process_starts():
    run = measure.run([sys.executable, "-c", NESTED])
    assert (run.exit_code, run.result) == (0, {"seen": 1})
    assert run.peak_mb > 100
    assert run.cpu_seconds > 1


def test_a_run_is_killed_with_its_descendants_when_asked_for(tmp_path):
    marker, fifo = tmp_path / "begun", tmp_path / "held"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    code = f"import subprocess; subprocess.run(['sh', '-c', 'exec 3>{fifo}; touch {marker}; sleep 60'])"
    result = measure.run([sys.executable, "-c", code], kill_when=marker.exists)
    assert result.exit_code == -9
    assert select.select([reader], [], [], 30)[0]  # its end: nobody is left who could write
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_run_that_fails_is_an_error_with_what_it_said():
    command = [sys.executable, "-c", "import sys; sys.exit('no such way')"]
    with pytest.raises(RuntimeError, match=r"ended with 1:\nno such way"):
        measure.check(measure.run(command), command)
