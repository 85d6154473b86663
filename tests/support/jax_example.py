"""Runs of examples/jax_train.py on CPU devices, in one process or several on loopback, and what they print."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.cloud import free_port

ROOT = Path(__file__).parents[2]
DEVICES = 8  # of all processes together
BATCH, RATE = 64, 0.001
FLAGS = (f"--batch_size={BATCH}", "--no_flip", f"--learning_rate={RATE}", "--log_steps=1")


@contextlib.contextmanager
def started(*commands: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts Python on CPU devices, DEVICES in all processes together; those that still run at the end are killed."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES // len(commands)}",
    }
    running = [
        subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        for command in commands
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def printed(*commands: Sequence[str]) -> list[str]:
    """Returns what each process prints, all of which end well."""
    with started(*commands) as running:
        outputs = [process.communicate() for process in running]
        assert [process.returncode for process in running] == [0] * len(commands), outputs
    return [stdout for stdout, _ in outputs]


def training(dataset: str, model_dir: Path, *flags: str, processes: int = 1) -> list[list[str]]:
    """Returns the command of each process of a run."""
    address = f"127.0.0.1:{free_port()}"
    command = ["-W", "error", "examples/jax_train.py", f"--dataset={dataset}", f"--model_dir={model_dir}"]
    process_flags = [
        ["--distributed", address, str(processes), str(number)] if processes > 1 else [] for number in range(processes)
    ]
    return [[*command, *FLAGS, *flags, *extra] for extra in process_flags]


def losses(text: str) -> dict[int, float]:
    """Returns the loss of each step that a run has printed."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss (\S+)$", text, re.MULTILINE)}


def evaluations(text: str) -> dict[int, tuple[int, float, float]]:
    """Returns (examples, accuracy, loss) of each step after which a run has evaluated."""
    matches = re.findall(r"^step (\d+): (\d+) examples, accuracy (\S+), loss (\S+)$", text, re.MULTILINE)
    return {int(step): (int(examples), float(accuracy), float(loss)) for step, examples, accuracy, loss in matches}
