"""A conversion any of whose processes is killed at any moment, or that runs out of disk, goes on and ends the same."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.folders import files

ROOT = Path(__file__).parents[2]

# Every Python process below the test runs this at its start. In the parent or its writers, it kills at the n-th time
# that one opens, renames, makes or removes a file of the input or the output, in whatever thread that is; until then it
# leaves a byte for each.
SITE = """
import os, signal, sys
kind = "writer" if "worker_process" in " ".join(sys.orig_argv) else "parent"
if kind == os.environ.get("KILL_WHO"):
    folder, count, fatal = os.environ["KILL_IN"], os.environ["KILL_COUNT"], int(os.environ["KILL_AT"])
    log = os.open(f"{count}{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def hook(event, args):
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "shutil.rmtree", "os.rmdir") and args:
            if isinstance(args[0], str) and args[0].startswith(folder):
                os.write(log, b".")
                if os.fstat(log).st_size == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
"""


class Killer:
    """Runs conversions, of which it kills processes."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder, self._source = folder, source
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SITE)

    def run(self, output: Path, victim: str = "parent", moment: int = 0) -> subprocess.CompletedProcess:
        environment = {
            "PYTHONPATH": str(self.folder / "site"),
            "KILL_WHO": victim,
            "KILL_AT": str(moment),
            "KILL_IN": str(self.folder),
            "KILL_COUNT": str(self.folder / "site" / victim),
        }
        args = [sys.executable, "-W", "ignore", "-m", "beam_pipelines", "convert", f"--input={self._source}"]
        return subprocess.run(
            [*args, f"--output={output}", "--shard_size=10KB", "--num_processes=2"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | environment,
            timeout=120,
        )

    def moments(self, victim: str) -> int:
        """Returns at how many moments such a process could have been killed, at most."""
        return max(path.stat().st_size for path in (self.folder / "site").glob(f"{victim}*"))


@pytest.fixture(scope="module")
def killer(digits, tmp_path_factory) -> Killer:
    """Converts a hundred digits and a file that is no image."""
    folder = tmp_path_factory.mktemp("kill")
    for label in "0123456789":
        (folder / "in" / label).mkdir(parents=True)
        for path in sorted((digits / label).iterdir())[:10]:
            shutil.copy(path, folder / "in" / label)
    (folder / "in" / "3" / "page.jpg").write_text("<html>")
    return Killer(folder, folder / "in")


@pytest.fixture(scope="module")
def expected(killer) -> dict[str, str]:
    """What an undisturbed conversion leaves; the killer has counted its moments."""
    folder = killer.folder / "whole"
    for victim in ("parent", "writer"):
        result = killer.run(folder / victim, victim)
        assert result.returncode == 0, result.stderr
    assert files(folder / "parent") == files(folder / "writer")
    return files(folder / "parent")


@pytest.mark.parametrize(("victim", "kills"), [("parent", 12), ("writer", 8)])
@pytest.mark.long
@pytest.mark.core
def test_a_conversion_killed_at_random_moments_ends_with_the_same_files(killer, expected, victim, kills):
    folder = killer.folder / f"killed_{victim}"
    random_, killed, outputs = random.Random(0), 0, (folder / f"out{number}" for number in itertools.count())
    output = next(outputs)
    while killed < kills:
        result = killer.run(output, victim, random_.randrange(1, killer.moments(victim) + 1))
        if result.returncode == 0:
            assert files(output) == expected
            output = next(outputs)
            continue
        assert result.returncode == (-signal.SIGKILL if victim == "parent" else 2), result.stderr
        killed += 1
        assert not (output / "manifest.json").exists() or is_whole(output, expected)
    assert killer.run(output).returncode == 0
    assert files(output) == expected


def is_whole(output: Path, expected: dict[str, str]) -> bool:
    """Whether a dataset whose manifest is there is complete, but for working files that are yet to go."""
    digests = files(output)
    return all(digests[name] == digest for name, digest in expected.items())


@pytest.mark.long
def test_the_death_of_a_writer_is_said(killer, expected):
    result = killer.run(killer.folder / "said", "writer", 3)
    assert result.returncode == 2
    assert result.stderr.startswith("error: a worker process has ended")
    assert result.stderr.endswith("rerun the same command to resume\n")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.long
def test_a_full_disk_is_said_and_the_next_run_goes_on(killer, expected):
    folder = killer.folder
    code = (
        "import resource, signal, sys; from beam_pipelines.__main__ import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8000, -1))\n"  # no file grows beyond 8,000 bytes
        f"sys.exit(main(['convert', '--input={folder}/in', '--output={folder}/full', '--shard_size=10KB']))"
    )
    args = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(args, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 2
    assert "File too large" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (folder / "full" / "manifest.json").exists()
    assert killer.run(folder / "full").returncode == 0
    assert files(folder / "full") == expected
