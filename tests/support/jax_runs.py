"""Runs of the trainer on JAX in processes of their own, where TensorFlow and Beam cannot be imported."""

from __future__ import annotations

import functools
import os
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from unittest import mock

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.cloud import free_port

# A command, in a process that may get a signal right before a step.
PROGRAM = """
import os, sys
sys.modules.update(dict.fromkeys(os.environ["NOT_OF_JAX"].split(",")))
number, at = int(sys.argv[1]), int(sys.argv[2])
if number:
    os.environ["KERAS_BACKEND"] = "jax"
    from estimator_app.trainers.jax import train
    draw = train.draw_mixing
    def signaled(config, step):
        if step == at:
            os.kill(os.getpid(), number)
        return draw(config, step)
    train.draw_mixing = signaled
from estimator_app.__main__ import main
sys.exit(main(sys.argv[3:]))
"""
ROOT = Path(__file__).parents[2]


@functools.cache
def not_of_jax() -> tuple[str, ...]:
    """Returns the importable names of all installed packages that `pip install '.[jax]'` does not install, but libtpu.

    That is beside them where preflight compiles.
    """
    with mock.patch("setuptools.setup") as called:
        runpy.run_path(str(ROOT / "setup.py"))
    requirements = called.call_args.kwargs["install_requires"] + called.call_args.kwargs["extras_require"]["jax"]
    installed, waiting = {"jpeg2tpu", "libtpu"}, list(map(Requirement, requirements))
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in installed:
            installed.add(name)
            required = map(Requirement, metadata.requires(name) or [])
            waiting += [one for one in required if not one.marker or one.marker.evaluate({"extra": ""})]
    return tuple(
        module
        for module, packages in metadata.packages_distributions().items()
        if not installed & set(map(canonicalize_name, packages))
    )


def started(program: str, *arguments: str, devices: int = 1) -> subprocess.Popen[str]:
    """Starts a program of Python.

    Args:
      program: Its text.
      arguments: Its arguments.
      devices: Number of devices that JAX makes of the processor.
    """
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment["NOT_OF_JAX"] = ",".join(not_of_jax())
    paths = filter(None, [os.environ.get("PYTHONPATH")])  # libtpu, where preflight compiles
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), *paths])  # for networks of support/
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    words = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(*processes: subprocess.Popen[str]) -> list[subprocess.CompletedProcess[str]]:
    """Waits until processes have ended; returns their results."""
    try:
        outputs = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *texts)
        for process, texts in zip(processes, outputs, strict=True)
    ]


def command(*arguments: str, signal: int = 0, at_step: int = 0, devices: int = 1) -> subprocess.CompletedProcess[str]:
    """Runs a command of jpeg2tpu.

    Args:
      arguments: Of the command.
      signal: Signal that its process gets; 0 for none.
      at_step: Number of steps done when it gets it.
      devices: Number of devices that JAX makes of the processor.
    """
    (result,) = ended(started(PROGRAM, str(int(signal)), str(at_step), *arguments, devices=devices))
    return result


def command_in_two(
    *arguments: str, signals: tuple[int, int] = (0, 0), at_step: int = 0
) -> list[subprocess.CompletedProcess[str]]:
    """Runs a command of jpeg2tpu in two processes with a device each; the arguments are as of command()."""
    address = f"--coordinator_address=127.0.0.1:{free_port()}"
    flags = (address, "--num_processes=2", "--initialization_timeout=60")
    return ended(
        *(
            started(PROGRAM, str(int(number)), str(at_step), *arguments, *flags, f"--process_id={process}")
            for process, number in enumerate(signals)
        )
    )
