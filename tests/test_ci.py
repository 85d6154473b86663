""".ci/run: what was not tried has not passed. The script is the real one, `make` and the programs are stand-ins."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CI = TESTS.parent / ".ci" / "run"
TARGETS = ["environments", "test", "test-core", "test-cloud"]
TARGETS += ["docs", "test-engines", "test-preflight", "fuzz"]
PROGRAMS = ["chromium", "npm", "go", "mvn", "java"]


def run_ci(folder: Path, programs: list[str], fails: str = "") -> tuple[int, list[str], str]:
    """Returns the exit code, the targets that were made, and what was said; there is no `date` to choose tests by."""
    for name in ("bash", "dirname", "id"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    targets_file = folder / "made"
    # Like make, it ends at a target that fails; options and variables are no targets.
    make = (
        f'for t; do case $t in -*|*=*) ;; *) echo "$t" >> {targets_file}; [ "$t" != "{fails}" ] || exit 2 ;; esac; done'
    )
    scripts = {"make": make} | dict.fromkeys(programs, "exit 0")
    for name, body in scripts.items():
        (folder / name).write_text(f"#!/usr/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    ended = subprocess.run([CI], env={"PATH": str(folder)}, capture_output=True, text=True, cwd=folder)
    return ended.returncode, targets_file.read_text().split() if targets_file.exists() else [], ended.stderr


def test_everything_is_tried(tmp_path):
    assert run_ci(tmp_path, PROGRAMS) == (0, TARGETS, "")


@pytest.mark.parametrize("target", TARGETS)
def test_what_fails_or_cannot_be_set_up_fails_it(tmp_path, target):
    code, targets, _ = run_ci(tmp_path, PROGRAMS, fails=target)
    assert code != 0
    assert targets[-1] == target


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_cannot_be_installed_fails_it_before_anything_is_tried(tmp_path, program):
    code, targets, stderr = run_ci(tmp_path, [name for name in PROGRAMS if name != program])
    assert (code, targets) == (2, [])
    assert "install" in stderr
    assert os.linesep not in stderr.rstrip()


def test_the_core_of_the_long_tests_is_long_and_reaches_every_package():
    """`make test-core` looks for its tests in the files that have the mark."""
    files = [
        path for path in TESTS.rglob("test_*.py") if re.search(r"^@pytest\.mark\.core$", path.read_text(), re.MULTILINE)
    ]
    assert {path.parent.name for path in files} >= {"beam_pipelines", "tpu_input", "estimator_app"}
    assert [path.name for path in files if "mark.long" not in path.read_text()] == []
