"""A conversion that is killed at any moment, or runs out of disk, goes on and ends with the same files."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Kills its own process with signal 9 at the n-th time it opens, renames, makes or removes a file of the input or the
# output, in whatever thread that is; prints the count if it comes to an end.
RUNNER = """
import itertools, os, signal, sys
input_, output, fatal = sys.argv[1], sys.argv[2], int(sys.argv[3])
from beam_pipelines.__main__ import main
counter = itertools.count(1)
seen = 0
def hook(event, args):
    global seen
    if event in ("open", "os.rename", "os.remove", "os.mkdir", "shutil.rmtree", "os.rmdir") and args:
        if isinstance(args[0], str) and args[0].startswith((input_, output)):
            seen = next(counter)
            if seen == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
code = main(["convert", f"--input={input_}", f"--output={output}", "--shard_size=10KB"])
print(seen)
sys.exit(code)
"""


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def run(source: Path, output: Path, fatal: int) -> subprocess.CompletedProcess:
    args = [sys.executable, "-W", "ignore", "-c", RUNNER, str(source), str(output), str(fatal)]
    return subprocess.run(args, capture_output=True, text=True, cwd=ROOT)


@pytest.fixture(scope="module")
def source(digits, tmp_path_factory) -> Path:
    """A hundred digits and two files that are no images."""
    folder = tmp_path_factory.mktemp("kill") / "in"
    for label in "0123456789":
        (folder / label).mkdir(parents=True)
        for path in sorted((digits / label).iterdir())[:10]:
            shutil.copy(path, folder / label)
    (folder / "3" / "page.jpg").write_text("<html>")
    return folder


def test_a_conversion_killed_at_twenty_random_moments_ends_with_the_same_files(source, tmp_path):
    whole = run(source, tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    moments, expected = int(whole.stdout.split()[-1]), files(tmp_path / "whole")
    assert moments > 200
    random_ = random.Random(0)
    kills, output = 0, tmp_path / "out0"
    while kills < 20:
        done = run(source, output, random_.randrange(1, moments + 1))
        if done.returncode == -signal.SIGKILL:
            kills += 1
            assert not (output / "manifest.json").exists() or files_match(output, expected)
            continue
        assert done.returncode == 0, done.stderr
        assert files(output) == expected
        output = tmp_path / f"out{kills}"
    assert run(source, output, 0).returncode == 0
    assert files(output) == expected


def files_match(output: Path, expected: dict[str, str]) -> bool:
    """Whether a dataset whose manifest is there is complete, but for working files that are yet to go."""
    held = files(output)
    return all(held[name] == digest for name, digest in expected.items())


def test_a_full_disk_is_said_and_the_next_run_goes_on(source, tmp_path):
    limited = (
        "import resource, signal, sys; from beam_pipelines.__main__ import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8000, -1))\n"  # no file grows beyond 8,000 bytes
        f"sys.exit(main(['convert', '--input={source}', '--output={tmp_path}/out', '--shard_size=10KB']))"
    )
    args = [sys.executable, "-W", "ignore", "-c", limited]
    done = subprocess.run(args, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert run(source, tmp_path / "out", 0).returncode == 0
    assert run(source, tmp_path / "whole", 0).returncode == 0
    assert files(tmp_path / "out") == files(tmp_path / "whole")
