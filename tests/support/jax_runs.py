"""Runs of the trainer on JAX in processes of their own, where TensorFlow and Beam cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# A command, in a process that may be killed right after a step.
PROGRAM = """
import os, signal, sys
for name in ("tensorflow", "apache_beam", "tensorboard"):
    sys.modules[name] = None
from estimator_app.__main__ import main
from estimator_app.trainers.progress import Progress
kill_at, took = int(sys.argv[1]), Progress.took
def killed(self, *args):
    took(self, *args)
    if self.step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
Progress.took = killed
sys.exit(main(sys.argv[2:]))
"""


def command(*arguments: str, kill_at: int = 0, devices: int = 1) -> subprocess.CompletedProcess[str]:
    """Runs a command of jpeg2tpu.

    Args:
      arguments: Of the command.
      kill_at: Step after which the process is killed; 0 for none.
      devices: Number of devices that JAX makes of the processor.
    """
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(kill_at), *arguments]
    return subprocess.run(program, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=environment)
