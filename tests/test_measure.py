"""What the benchmarks measure with: a command with all its descendants, and how often each example is counted."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks import measure
from benchmarks.corpus import photograph
from benchmarks.evaluation import account

# Starts a process of its own that takes 100 MB and half a second of CPU time.
NESTED = """
import subprocess, sys
subprocess.run([sys.executable, "-c", '''
import time
taken = bytearray(b"x" * 100_000_000)
while time.process_time() < 0.5:
    pass
'''], check=True)
print('{"seen": 1}')
"""


def test_a_run_counts_memory_and_time_of_the_processes_that_its_process_starts():
    done = measure.run([sys.executable, "-c", NESTED])
    assert (done.exit_code, done.found) == (0, {"seen": 1})
    assert done.peak_mb > 100
    assert done.cpu_seconds > 0.5


def test_a_run_is_killed_with_its_descendants_when_asked_for(tmp_path):
    begun = tmp_path / "begun"
    code = f"import subprocess; subprocess.run(['sh', '-c', 'touch {begun}; sleep 60; touch {begun}.after'])"
    done = measure.run([sys.executable, "-c", code], kill_when=begun.exists)
    assert done.exit_code == -9
    assert not begun.with_suffix(".after").exists()


def test_a_run_that_fails_is_an_error_with_what_it_said():
    command = [sys.executable, "-c", "import sys; sys.exit('no such way')"]
    with pytest.raises(RuntimeError, match=r"ended with 1:\nno such way"):
        measure.check(measure.run(command), command)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([[[0, 1], [2, 3], [4, -1]]], {"steps": 3, "once": 5, "padded": 1, "twice": 0, "dropped": 0, "ragged": 0}),
        ([[[0, 1], [2, 3]]], {"steps": 2, "once": 4, "padded": 0, "twice": 0, "dropped": 1, "ragged": 0}),
        ([[[0, 1], [2, 3], [4, 4]]], {"steps": 3, "once": 4, "padded": 0, "twice": 1, "dropped": 0, "ragged": 0}),
        # The second host has no second batch, so the first one's is never taken.
        ([[[0, 1], [2]], [[3, 4]]], {"steps": 1, "once": 4, "padded": 0, "twice": 0, "dropped": 1, "ragged": 0}),
        ([[[0, 1], [4]], [[2, 3], [-1]]], {"steps": 2, "once": 5, "padded": 1, "twice": 0, "dropped": 0, "ragged": 2}),
    ],
)
def test_examples_are_counted_in_the_steps_that_all_hosts_can_take(hosts, expected):
    assert account(hosts, images=5, batch_size=2) == {"hosts": len(hosts)} | expected


def test_photographs_are_the_same_every_time_and_of_the_size_that_the_page_says():
    made = [photograph(np.random.default_rng([0, number])) for number in range(20)]
    assert made[3] == photograph(np.random.default_rng([0, 3]))
    assert 80_000 < np.mean([len(one) for one in made]) < 96_000
