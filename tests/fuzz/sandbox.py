"""A case: good files, of which some are damaged, a command, and what is wrong with how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz import corpus
from fuzz.corpus import KINDS, Command
from fuzz.damage import LARGE, Entry

SECONDS = 10  # beyond what the command takes on good files
BUSY = 30  # seconds that a second of CPU may take on a machine with other things to do; beyond it a command waits
STDERR_LINES = 3
MEMORY_BYTES = 3 << 30
_OLD = 1_000_000_000  # a time of access from which a later one is told


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, CPU and wall seconds, bytes at its peak, and what it printed."""

    code: int
    cpu: float
    wall: float
    memory: int
    stdout: str
    stderr: str


class Sandbox:
    """A folder in which one case after another is made and run; one process runs Beam's commands, another TensorFlow's.

    The good files are made where the cases are to be, as the paths in some of them are absolute, and kept aside.
    """

    def __init__(self, folder: Path, make: Callable[..., None] = corpus.make) -> None:
        self.case, self.aside = folder / "case", folder / "aside"
        self.work, self.output = self.case / "work", folder / "output"
        self._servers: dict[tuple[str, ...], subprocess.Popen[str]] = {}
        for name in ("work", "home", "tmp"):
            (self.case / name).mkdir(parents=True)
        make(self.work, self._run_good)
        self.case.rename(self.aside)

    def close(self) -> None:
        for server in self._servers.values():
            server.communicate()  # it ends with its input

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_good(self, command: Command) -> None:
        ended = self.run(command)
        expected = 2 if "--max_rejected=0%" in command.argv else 0
        if ended.code != expected or "Traceback" in ended.stderr:
            raise RuntimeError(f"{command.argv} ended with {ended.code} on good files: {ended.stderr}")

    def run(self, command: Command) -> Ended:
        """Runs a command in the case's work folder."""
        server = self._server(command.package)
        environment = {name: str(self.case / name.lower()) for name in ("HOME", "TMP")}
        request = {
            "package": command.package,
            "argv": command.argv,
            "cwd": str(self.work),
            "environment": {"HOME": environment["HOME"], "TMPDIR": environment["TMP"]},
            "output": str(self.output),
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        reply = json.loads(server.stdout.readline())  # type: ignore[union-attr]
        printed = [Path(f"{self.output}.{name}").read_bytes()[:1_000_000].decode(errors="replace") for name in _PRINTED]
        return Ended(**reply, stdout=printed[0], stderr=printed[1])

    def _server(self, package: str) -> subprocess.Popen[str]:
        packages = next((both for both in _TOGETHER if package in both), (package,))
        if packages not in self._servers:
            folders = [Path(__file__).parents[1], Path(__file__).parents[2]]
            environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
            path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
            self._servers[packages] = subprocess.Popen(
                [sys.executable, "-m", "fuzz.server", *packages],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment
                | {"PYTHONPATH": path, "MPLCONFIGDIR": str(self.output.parent / "matplotlib")}
                | {"PYTHONDONTWRITEBYTECODE": "1"},  # else an import of a file in the case's folder writes there
            )
            self._servers[packages].stdout.readline()  # type: ignore[union-attr]
        return self._servers[packages]

    def prepare(self, kind: str, file: int, damages: list[Any]) -> str:
        """Makes the case's files anew and damages one of them; returns its path relative to the work folder."""
        if self.case.exists():
            shutil.rmtree(self.case)
        self.work.mkdir(parents=True)
        for name in ("home", "tmp", "precious"):
            shutil.copytree(self.aside / name, self.case / name, symlinks=True)
        for name in (*KINDS[kind].needs, "precious", "evil.py"):
            source = self.aside / "work" / name
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, self.work / name)
        paths = sorted({path for pattern in KINDS[kind].files for path in self.work.glob(pattern)})
        path = paths[file % len(paths)]
        for damage in damages:
            if damage is damages[0] or (path.is_file() and path.stat().st_size < LARGE):
                with contextlib.suppress(IsADirectoryError):
                    damage(path)
        return str(path.relative_to(self.work))

    def find_problems(self, command: Command, damages: list[Any]) -> tuple[list[str], Ended]:
        """Runs a command on the case; returns what it should not have done, and how it ended."""
        may_read = command.reads or any(isinstance(damage, Entry) for damage in damages)  # which has made a link
        before = self._outside(command)
        for path in self._precious():  # the kernel notes the first access after a change
            os.utime(path, (_OLD, _OLD + 1))
        ended = self.run(command)
        problems = []
        if ended.code not in (0, 1, 2):
            problems.append(f"exit code {ended.code}")
        if "Traceback" in ended.stderr + ended.stdout:
            problems.append("a traceback")
        if (lines := len(ended.stderr.splitlines())) > STDERR_LINES:
            problems.append(f"{lines} lines on stderr")
        seconds = SECONDS + command.slack
        if ended.cpu > seconds or ended.wall > seconds + BUSY * ended.cpu:
            problems.append(f"took {ended.cpu:.1f} CPU seconds, {ended.wall:.1f} in all")
        if ended.memory > MEMORY_BYTES:
            problems.append(f"took {ended.memory >> 20:,} MB")
        if not may_read:
            problems += [
                f"read {path.relative_to(self.case)}"
                for path in self._precious()
                if path.exists() and path.stat().st_atime > _OLD + 1
            ]
        after = self._outside(command)
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                change = "made" if name not in before else "removed" if name not in after else "changed"
                problems.append(f"{change} {name}")
        return problems, ended

    def _precious(self) -> list[Path]:
        return [path for folder in (self.case, self.work) for path in (folder / "precious").rglob("*.jpg")]

    def _outside(self, command: Command) -> dict[str, tuple[Any, ...]]:
        """Returns what is in the case's folder besides what a command may write."""
        allowed = [self.work / path for path in command.writes]
        entries: dict[str, tuple[Any, ...]] = {}
        folders = [self.case]
        while folders:
            for entry in os.scandir(folders.pop()):
                path = Path(entry.path)
                if any(path == one for one in allowed):
                    continue
                name = str(path.relative_to(self.case))
                if entry.is_symlink():
                    entries[name] = ("link", os.readlink(path))
                elif entry.is_dir():
                    entries[name] = ("folder",)
                    folders.append(path)
                else:
                    status = entry.stat()
                    read = entry.is_file() and status.st_size < LARGE
                    entries[name] = (status.st_mode, hashlib.sha256(path.read_bytes()).hexdigest() if read else "")
        return entries


_PRINTED = ("stdout", "stderr")
_TOGETHER = [("estimator_app", "tpu_input")]  # which need TensorFlow
