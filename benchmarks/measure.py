"""Runs one command and measures it with all its descendants; keeps what was found. The one place that does either.

    command ──▶ child, in a session of its own ──▶ Run(seconds, cpu_seconds, peak_mb, exit_code, stdout, stderr)
    Table of a part ──keep──▶ benchmarks/results/PART.json ──▶ benchmarks/plots.py, benchmarks/tables.py

Memory is what the processes hold together at one moment, each shared page counted once (PSS, proc_pid_smaps(5)); it is
looked at up to twenty times a second, so that a shorter peak is missed. CPU time is the kernel's count.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import psutil

RESULTS = Path(__file__).with_name("results")
# The Pythons of the peers' environments.
PEERS = Path(os.environ.get("VENV_PEERS", ".venv-peers")) / "bin" / "python"
PEERS_TORCH = Path(os.environ.get("VENV_PEERS_TORCH", ".venv-peers-torch")) / "bin" / "python"
_POLL_SECONDS = 0.05  # seconds
_MAX_POLL_SHARE = 1 / 20  # of one core: adding up a large process's pages takes milliseconds
# TensorFlow's notes on stderr are off. The bytecode of modules is kept, as that of an installed package is: without it,
# a third of the start of a command is compilation.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": ""}
_PACKAGES = ("tensorflow", "apache-beam", "pillow", "numpy", "protobuf")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Run:
    """What one command took; exit_code is negative where a signal ended it."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    exit_code: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """What it said last, on stderr if nothing is on stdout."""
        lines = (self.stdout.strip() or self.stderr.strip()).splitlines()
        return lines[-1] if lines else ""

    @property
    def result(self) -> dict[str, Any]:
        """What a benchmark's child prints last: an object in JSON."""
        return dict(json.loads(self.stdout.splitlines()[-1]))


def run(
    command: Sequence[Any],
    cores: int | None = None,
    kill_when: Callable[[], bool] | None = None,
    **environment: str,
) -> Run:
    """Returns what a command took, whatever its exit code.

    Args:
      command: It and its arguments.
      cores: Number of cores it may use; None: all.
      kill_when: Asked all the time; once it says yes, the command and its descendants get SIGKILL.
      environment: Variables besides this process's own and _ENVIRONMENT.
    """
    affinity = ["taskset", "--cpu-list", f"0-{cores - 1}"] if cores else []
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        start = time.monotonic()
        child = subprocess.Popen(
            [*affinity, *map(str, command)],
            stdout=stdout,
            stderr=stderr,
            env=os.environ | _ENVIRONMENT | environment,
            start_new_session=True,
        )
        try:
            peak, status, usage = _wait(child.pid) if kill_when is None else _kill(child.pid, kill_when)
        except BaseException:  # Ctrl-C does not reach another session
            os.killpg(child.pid, signal.SIGKILL)
            raise
        seconds = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = [_text(file) for file in (stdout, stderr)]
    return Run(seconds, usage.ru_utime + usage.ru_stime, peak / 1e6, child.returncode, *texts)


def check(process: Run, command: Sequence[Any]) -> Run:
    """Returns `process` if its exit code is 0.

    Raises:
      RuntimeError: It is not.
    """
    if process.exit_code:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {process.exit_code}:\n{process.stderr}")
    return process


def _wait(pid: int) -> tuple[float, int, Any]:
    """Returns (peak bytes, wait status, usage) of a child that has ended."""
    peak = 0.0
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return peak, status, usage
        before = time.monotonic()
        peak = max(peak, _bytes_of_tree(pid))
        time.sleep(max(_POLL_SECONDS, (time.monotonic() - before) / _MAX_POLL_SHARE))


def _kill(pid: int, when: Callable[[], bool]) -> tuple[float, int, Any]:
    """The same of a child that is killed, if it has not ended before; its memory is not looked at."""
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return 0.0, status, usage
        if when():
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.002)


def _bytes_of_tree(pid: int) -> float:
    total = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it has just ended
            continue
    return total


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def in_turn(ways: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """Returns what each way gave each time; they take turns, as the machine is not equally fast all the time."""
    results: dict[str, list[T]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            results[name].append(way())
    return results


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the median of each number, and of anything else the first."""
    return {
        key: type(value)(statistics.median(run[key] for run in runs)) if isinstance(value, (int, float)) else value
        for key, value in runs[0].items()
    }


def machine() -> dict[str, Any]:
    """Returns what figures depend on: cores, processor, versions, day."""
    lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    processor = fields.get("model name", "")
    if "cpu family" in fields:  # a virtual machine may hide the generation in the name
        processor += f" (family {fields['cpu family']}, model {fields['model']})"
    versions = {"Python": platform.python_version()} | {name: version(name) for name in _PACKAGES}
    cores = len(os.sched_getaffinity(0))
    return {"cores": cores, "processor": processor, "versions": versions, "day": datetime.date.today().isoformat()}


def in_words(details: Mapping[str, Any]) -> str:
    """Returns the line that goes with figures measured on that machine."""
    versions = ", ".join(f"{name} {number}" for name, number in details["versions"].items())
    return f"{details['cores']} cores, {details['processor']}, {details['day']}; {versions}"


@dataclasses.dataclass(frozen=True)
class Table:
    """What a part of a benchmark found.

    Attributes:
      rows: Anything that JSON knows.
      columns: {heading: key of the rows and format, as "images/s:,.0f"}.
      notes: Lines below it, such as how it stands to what is wanted.
    """

    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, str]
    notes: Sequence[str] = ()


def keep(part: str, table: Table) -> None:
    """Prints a part's table, and saves it with the machine and the command that gave it."""
    print(markdown(dataclasses.asdict(table)), flush=True)
    RESULTS.mkdir(exist_ok=True)
    flags = [flag for flag in sys.argv[1:] if not flag.startswith("--folder")]  # where files lie changes no figure
    names = Path(sys.argv[0]).with_suffix("").parts
    module = ".".join(name for name in names[names.index("benchmarks") :] if name != "__main__")
    command = " ".join(["python -m", module, *flags])
    report = {"part": part, "command": command, "machine": machine(), **dataclasses.asdict(table)}
    (RESULTS / f"{part}.json").write_text(json.dumps(report, indent=1) + "\n")


def run_parts(
    subject: str, description: str | None, parts: Mapping[str, Callable[[Path, int | None, int | None], Table]]
) -> None:
    """Runs the parts of a benchmark that --part names, with (--folder, --count, --repeats), and keeps their tables."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / f"jpeg2tpu_{subject}_benchmark")
    parser.add_argument("--part", choices=parts, action="append", help="(default: all)")
    parser.add_argument("--count", type=int, help="images or records, to try it out with few (default: as in the docs)")
    parser.add_argument("--repeats", type=int, help="(default: each part's own)")
    flags = parser.parse_args()
    print(in_words(machine()), "\n")
    for part in flags.part or parts:
        keep(f"{subject}_{part}", parts[part](flags.folder, flags.count, flags.repeats))


def versions(python: str, *packages: str) -> str:
    """Returns the versions of packages in the environment of a Python: "keras 3.15.1 jax 0.12.0"."""
    code = "import sys; from importlib.metadata import version; print(*(f'{n} {version(n)}' for n in sys.argv[1:]))"
    return subprocess.run([python, "-c", code, *packages], check=True, capture_output=True, text=True).stdout.strip()


def markdown(table: Mapping[str, Any]) -> str:
    """Returns a Table's fields as Markdown."""
    lines = ["| " + " | ".join(table["columns"]) + " |", "|---" * len(table["columns"]) + "|"]
    lines += [
        "| " + " | ".join(_cell(row, column) for column in table["columns"].values()) + " |" for row in table["rows"]
    ]
    return "\n".join([*lines, "", *[f"- {note}" for note in table["notes"]], *[""] * bool(table["notes"])])


def against(goals: Sequence[tuple[str, str, float]], figures: Mapping[str, float], quantity: str) -> list[str]:
    """Returns a line for each goal (one, of another, at most) whose two were found."""
    lines = []
    for one, other, most in goals:
        if one in figures and other in figures:
            ratio = figures[one] / figures[other]
            verdict = "" if ratio <= most else ": MISSED"
            lines.append(f"{quantity} of {one}: {ratio:.2f} times {other}; at most {most:.2f} wanted{verdict}")
    return lines


def _cell(row: Mapping[str, Any], column: str) -> str:
    key, _, form = column.partition(":")
    value = row.get(key)
    return "" if value is None else str(value) if isinstance(value, str) else format(value, form)
