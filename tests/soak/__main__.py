"""make soak STEPS=20000: a run that is killed at random moments, whose disk fills up twice and whose bucket goes away.

    undisturbed: train ───────────────────────────────────────────────────────▶ weights, history
    disturbed:   train ─SIGKILL─▶ train ─disk full─▶ train ─bucket away─▶ … ──▶ the same weights and history

Both run at the same time and read a dataset from a bucket (fake-gcs-server), each through a proxy of its own; that of
the disturbed run can refuse every request. The disturbed run writes to a small filesystem, which only this process and
its children see: `unshare --map-root-user --mount` allows to mount one without being root.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import csv
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from beam_pipelines.__main__ import main as beam_pipelines
from estimator_app.config import TRAINERS
from estimator_app.model_dir import checkpoints
from support.cloud import running_cloud
from support.gs import Gs, running_gs

DISK = "48m"  # the size of the disturbed run's filesystem, some 10 times what a run writes
POLL = 0.1  # seconds between two looks at a process
MOST_IDLE = 20  # commands in a row that are killed before they have written a checkpoint
SLOWEST = 300.0  # seconds within which a full disk or an unreachable bucket ends a command
# Columns of history.csv that tell of one process's stretch of training.
NOT_COMPARED = {"train_loss", "images_per_second", "input_wait", "train_seconds", "eval_seconds"}
_PROGRESS = re.compile(r"step \d+/\d+: ")  # what a command that trains longer than half a minute prints meanwhile


class Soak:
    """The disturbed run, and what was done to it.

    Attributes:
      model_dir: On the small filesystem.
      events: How often what happened: "killed", "disk full", "bucket away", "reruns without the bucket".
      problems: What should not have happened, one line each.
    """

    def __init__(self, gs: Gs, disk: Path, flags: tuple[str, ...], draws: random.Random) -> None:
        self._gs, self._disk, self._flags, self._draws = gs, disk, flags, draws
        self.model_dir = disk / "run"
        self.events = collections.Counter[str]()
        self.problems = list[str]()

    def run(self, steps: int, kill_every: float, full_disks: int, away: float) -> None:
        """Runs the command again and again until it exits with 0.

        Args:
          steps: Number of steps of the run, by which the disturbances are spread over it.
          kill_every: Mean seconds between two kills; each time is uniform between 0 and twice that.
          full_disks: How often the disk is filled.
          away: Seconds for which the bucket answers every request with 503.
        """
        shares = {(number + 1) / (full_disks + 2): self._fill for number in range(full_disks)}
        if away:
            shares[(full_disks + 1) / (full_disks + 2)] = lambda process: self._away(process, away)
        planned = sorted(shares.items(), key=lambda item: item[0])
        reached, idle = 0, 0
        while idle < MOST_IDLE:
            process = self._start()
            if planned and self._step() >= planned[0][0] * steps:
                planned.pop(0)[1](process)
            elif self._ends(process, self._draws.uniform(0, 2 * kill_every)):
                self._check(process, expected=0)
                break
            else:
                process.kill()
                self.events["killed"] += 1
                process.communicate()
            before, reached = reached, self._step()
            idle = 0 if reached > before else idle + 1
            print(f"step {reached}: {dict(self.events)}", file=sys.stderr, flush=True)
        else:
            raise SystemExit(
                f"error: {idle} commands in a row were killed before a checkpoint after step {reached}; "
                "give a larger --kill_every"
            )
        if planned:
            self.problems.append(f"{len(planned)} disturbances were not reached; give more --steps")

    def _start(self) -> subprocess.Popen[str]:
        return self._gs.start("-m", "estimator_app", *self._gs.training(str(self.model_dir), *self._flags))

    def _step(self) -> int:
        with contextlib.suppress(ValueError, OSError):  # a file may be about to be written
            return checkpoints.latest_step(str(self.model_dir))
        return 0

    @staticmethod
    def _ends(process: subprocess.Popen[str], seconds: float) -> bool:
        """Returns whether a command ends by itself within so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode is not None

    def _check(self, process: subprocess.Popen[str], expected: int) -> None:
        """Notes what is wrong with a command that has ended: its exit code, or other words than one line of error."""
        _, error = process.communicate()
        lines = [line for line in error.splitlines() if not _PROGRESS.match(line)]
        is_error = len(lines) == 1 and lines[0].startswith("error: ")
        if process.returncode != expected or (not is_error if expected else lines):
            self.problems.append(f"exit code {process.returncode} in place of {expected}, with {error!r}")

    def _advance(self, process: subprocess.Popen[str]) -> None:
        """Waits until the command has written another checkpoint, or has ended."""
        before = self._step()
        while process.poll() is None and self._step() == before:
            time.sleep(POLL)

    def _fill(self, process: subprocess.Popen[str]) -> None:
        """Fills the disk while the command trains, which ends it with one line; then frees it."""
        self._advance(process)
        self.events["disk full"] += 1
        filler = self._disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * 4096):
                pass
        if not self._ends(process, SLOWEST):
            self.problems.append(f"a full disk has not ended the command within {SLOWEST:.0f} s")
            process.kill()
        self._check(process, expected=2)
        filler.unlink()

    def _away(self, process: subprocess.Popen[str], seconds: float) -> None:
        """Lets the bucket refuse all requests for some seconds, in which the command is run again whenever it ends."""
        self._advance(process)
        self.events["bucket away"] += 1
        began = time.monotonic()
        self._gs.proxy.fault = lambda request: "503"
        while self._ends(process, max(0.0, began + seconds - time.monotonic())):
            self._check(process, expected=2)
            self.events["reruns without the bucket"] += 1
            process = self._start()
        self._gs.proxy.calm()
        process.kill()
        process.communicate()


def differences(one: Path, other: Path) -> list[str]:
    """Returns how two finished runs differ: in files, in a column of history.csv that is not measured, in a weight."""
    return [
        *_unequal("files", _files(one), _files(other)),
        *_unequal("history", _history(one), _history(other)),
        *_unequal("weights", _weights(one), _weights(other)),
    ]


def _unequal(kind: str, one: Mapping[str, object], other: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            yield f"{kind}: {name} differs"


def _files(model_dir: Path) -> dict[str, object]:
    """Returns the files of a run but for TensorBoard's, whose names have the time, and those of exports."""
    names = (path.relative_to(model_dir) for path in model_dir.rglob("*") if path.is_file())
    return {str(name): True for name in names if "tfevents" not in name.name and name.parts[0] != "export"}


def _history(model_dir: Path) -> dict[str, object]:
    with (model_dir / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {
        f"{name} of row {number}": value
        for number, row in enumerate(rows)
        for name, value in row.items()
        if name not in NOT_COMPARED
    }


def _weights(model_dir: Path) -> dict[str, object]:
    """Returns the bytes of every variable of the last checkpoint but for those in which TensorFlow describes itself."""
    reader = checkpoints.open_checkpoint(str(checkpoints.latest_checkpoint(str(model_dir))))
    names = (name for name in reader.get_variable_to_shape_map() if "save_counter" not in name)
    return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names if "OBJECT_GRAPH" not in name}


def _soak(flags: argparse.Namespace, folder: Path) -> list[str]:
    """Runs both; prints one line, and returns what is wrong."""
    began = time.monotonic()
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)], check=True)
    for args in (
        ("sample", f"{folder}/digits"),
        ("convert", f"--input={folder}/digits", f"--output={folder}/dataset", "--splits=train=80%,validation=20%"),
    ):
        with contextlib.redirect_stdout(sys.stderr):
            if beam_pipelines([*args]):
                raise SystemExit(2)
    (folder / "calm").mkdir()
    with (
        running_cloud(os.environ["FAKE_GCS_SERVER"], folder) as cloud,
        running_gs(cloud, folder / "calm") as calm,
        running_gs(cloud, folder) as gs,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        contextlib.ExitStack() as stack,
    ):
        gs.take(f"{folder}/dataset")
        calm.dataset = gs.dataset
        options = (
            f"--trainer={flags.trainer}",
            f"--train_steps={flags.steps}",
            f"--steps_per_eval={max(1, flags.steps // 10)}",
            "--save_steps=50",
        )
        undisturbed = calm.start("-m", "estimator_app", *calm.training(f"{folder}/undisturbed", *options))
        stack.callback(undisturbed.kill)  # where this process ends before it
        output = pool.submit(undisturbed.communicate)  # reads all the time, so that the run is never blocked
        soak = Soak(gs, disk, options, random.Random(flags.seed))
        soak.run(flags.steps, flags.kill_every, flags.full_disks, flags.away)
        disturbed = time.monotonic() - began
        if output.result() and undisturbed.returncode:
            return [f"the undisturbed run ended with exit code {undisturbed.returncode}"]
    problems = soak.problems + differences(folder / "undisturbed", soak.model_dir)
    counts = ", ".join(f"{count} x {event}" for event, count in sorted(soak.events.items()))
    print(
        f"{flags.trainer}: {flags.steps:,} steps in {disturbed:,.0f} s with {counts}; beside an undisturbed run, "
        f"{len(_weights(soak.model_dir))} variables and {len(_history(soak.model_dir))} figures of history.csv "
        f"compared, {len(problems)} problems",
        flush=True,
    )
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000, help="of each run (default: 20,000)")
    parser.add_argument("--kill_every", type=float, default=60.0, metavar="SECONDS", help="mean (default: 60)")
    parser.add_argument("--full_disks", type=int, default=2, help="how often the disk is full (default: 2)")
    parser.add_argument("--away", type=float, default=60.0, metavar="SECONDS", help="without bucket (default: 60)")
    parser.add_argument("--trainer", choices=TRAINERS, default="tf_distribute")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    if "FAKE_GCS_SERVER" not in os.environ:
        parser.error("FAKE_GCS_SERVER is not in the environment; make soak sets it")
    with tempfile.TemporaryDirectory(prefix="soak", ignore_cleanup_errors=True) as folder:
        problems = _soak(flags, Path(folder))
    for line in problems:
        print(f"FAILED: {line}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
