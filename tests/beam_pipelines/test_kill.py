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

    def run(self, output: Path, who: str = "parent", at: int = 0) -> subprocess.CompletedProcess:
        killing = {
            "PYTHONPATH": str(self.folder / "site"),
            "KILL_WHO": who,
            "KILL_AT": str(at),
            "KILL_IN": str(self.folder),
            "KILL_COUNT": str(self.folder / "site" / who),
        }
        args = [sys.executable, "-W", "ignore", "-m", "beam_pipelines", "convert", f"--input={self._source}"]
        return subprocess.run(
            [*args, f"--output={output}", "--shard_size=10KB", "--num_processes=2"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | killing,
            timeout=120,
        )

    def moments(self, who: str) -> int:
        """Returns at how many moments such a process could have been killed, at most."""
        return max(path.stat().st_size for path in (self.folder / "site").glob(f"{who}*"))


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
def whole(killer) -> dict[str, str]:
    """What an undisturbed conversion leaves; the killer has counted its moments."""
    folder = killer.folder / "whole"
    for who in ("parent", "writer"):
        done = killer.run(folder / who, who)
        assert done.returncode == 0, done.stderr
    assert files(folder / "parent") == files(folder / "writer")
    return files(folder / "parent")


@pytest.mark.parametrize(("who", "kills"), [("parent", 12), ("writer", 8)])
@pytest.mark.long
@pytest.mark.core
def test_a_conversion_killed_at_random_moments_ends_with_the_same_files(killer, whole, who, kills):
    folder = killer.folder / f"killed_{who}"
    random_, killed, outputs = random.Random(0), 0, (folder / f"out{number}" for number in itertools.count())
    output = next(outputs)
    while killed < kills:
        done = killer.run(output, who, random_.randrange(1, killer.moments(who) + 1))
        if done.returncode == 0:
            assert files(output) == whole
            output = next(outputs)
            continue
        assert done.returncode == (-signal.SIGKILL if who == "parent" else 2), done.stderr
        killed += 1
        assert not (output / "manifest.json").exists() or is_whole(output, whole)
    assert killer.run(output).returncode == 0
    assert files(output) == whole


def is_whole(output: Path, expected: dict[str, str]) -> bool:
    """Whether a dataset whose manifest is there is complete, but for working files that are yet to go."""
    held = files(output)
    return all(held[name] == digest for name, digest in expected.items())


@pytest.mark.long
def test_the_death_of_a_writer_is_said(killer, whole):
    done = killer.run(killer.folder / "said", "writer", 3)
    assert done.returncode == 2
    assert done.stderr.startswith("error: a worker process has ended")
    assert done.stderr.endswith("rerun the same command to resume\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_a_full_disk_is_said_and_the_next_run_goes_on(killer, whole):
    folder = killer.folder
    limited = (
        "import resource, signal, sys; from beam_pipelines.__main__ import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8000, -1))\n"  # no file grows beyond 8,000 bytes
        f"sys.exit(main(['convert', '--input={folder}/in', '--output={folder}/full', '--shard_size=10KB']))"
    )
    args = [sys.executable, "-W", "ignore", "-c", limited]
    done = subprocess.run(args, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "full" / "manifest.json").exists()
    assert killer.run(folder / "full").returncode == 0
    assert files(folder / "full") == whole
