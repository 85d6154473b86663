"""Runs of examples/jax_train.py, in one process or several on loopback, and what they print."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.cloud import free_port

ROOT = Path(__file__).parents[2]
DEVICES = 8  # of all processes together
FLAGS = ("--image_size=16", "--batch_size=16", "--no_flip", "--learning_rate=0.05", "--log_steps=1")


@contextlib.contextmanager
def started(dataset: str, model_dir: Path, *flags: str, processes: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts a run; those of its processes that are still there at the end are killed."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "jax_train.py")]
    command += [f"--dataset={dataset}", f"--model_dir={model_dir}", *FLAGS, *flags]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES // processes}",
    }
    address = f"127.0.0.1:{free_port()}"
    own = [["--distributed", address, str(processes), str(i)] if processes > 1 else [] for i in range(processes)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    running = [subprocess.Popen([*command, *flags], **pipes) for flags in own]  # type: ignore[call-overload]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def printed(dataset: str, model_dir: Path, *flags: str, processes: int = 1) -> str:
    """Returns what a run prints that goes well."""
    with started(dataset, model_dir, *flags, processes=processes) as running:
        said = [process.communicate() for process in running]
        codes = [process.returncode for process in running]
    assert codes == [0] * processes, said
    assert [bool(stdout) for stdout, _ in said] == [True] + [False] * (processes - 1)  # the first one speaks for all
    return said[0][0]


def losses(text: str) -> dict[int, float]:
    """Returns the loss of each step that a run has printed."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss (\S+)$", text, re.MULTILINE)}


def evaluations(text: str) -> dict[int, tuple[int, float, float]]:
    """Returns (examples, accuracy, loss) of each step after which a run has evaluated."""
    found = re.findall(r"^step (\d+): (\d+) examples, accuracy (\S+), loss (\S+)$", text, re.MULTILINE)
    return {int(step): (int(examples), float(accuracy), float(loss)) for step, examples, accuracy, loss in found}
