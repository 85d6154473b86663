"""Interface to libtpu's compiler, which runs in a process of its own and exchanges files with this process.

HLO, or the name of a step in JAX ──REQUEST.json──▶ libtpu_program.py ──RESULT.json──▶ Program, or TooLarge

The process may have another Python: TensorFlow 2.15 needs an older NumPy than JAX.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from estimator_app.runtime.topologies import Topology

DEFAULT_PYTHON = ".venv-preflight/bin/python"  # created by `make preflight`


def default_python() -> str | None:
    """Returns the Python of the environment that `make preflight` creates in the working directory; None without it."""
    return os.path.abspath(DEFAULT_PYTHON) if os.path.exists(DEFAULT_PYTHON) else None


_SCRIPT = pathlib.Path(__file__).with_name("libtpu_program.py")


@dataclasses.dataclass(frozen=True)
class JaxStep:
    """A step in JAX on all cores of a topology, which the compiler's Python makes and lowers.

    Attributes:
      name: "package.module:function", see libtpu_program.py; the module is looked for in the working directory and
        among the packages of the compiler's Python.
      arguments: What the function is called with after the devices; values that JSON has.
    """

    name: str
    arguments: tuple[Any, ...] = ()


# What the compiler takes: HLO of one core's step, a serialized HloModuleProto; or a step in JAX of all cores.
Source = bytes | JaxStep


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled step, as one core runs it.

    Attributes:
      flops: Floating-point operations of a step.
      bytes_accessed: Bytes read from and written to memory in a step.
      memory: Bytes by use: argument, output, alias (counted in both), temp, generated_code.
      text: Optimized HLO, with the layout of every tensor on the device.
    """

    flops: float
    bytes_accessed: float
    memory: dict[str, int]
    text: str

    @property
    def bytes(self) -> int:
        """Bytes of a core's memory that the step uses."""
        return sum(self.memory.values()) - 2 * self.memory["alias"]

    @property
    def has_loops(self) -> bool:
        """Whether the step has loops, as Keras' LSTM has; flops and bytes_accessed count the body of a loop once."""
        return " while(" in self.text


@dataclasses.dataclass(frozen=True)
class TooLarge:
    """Result for a step that was not compiled because it needs too much memory.

    Attributes:
      needs: Bytes that the step needs.
      has: Bytes of a core's memory that are available for it.
    """

    needs: float
    has: float


@dataclasses.dataclass(frozen=True)
class Compiler:
    """Compiler for a topology; a callable.

    Attributes:
      python: Path of the Python interpreter of the environment in which libtpu is installed.
      topology: The TPU.
    """

    python: str
    topology: Topology

    def __post_init__(self) -> None:
        if not os.access(self.python, os.X_OK):
            raise ValueError(f"--compiler {self.python!r} is not an executable file; create it with: make preflight")

    def __call__(self, step: Source) -> Program | TooLarge:
        """Returns the compiled program of a step as one core runs it, or TooLarge if it needs too much memory.

        Args:
          step: HLO of one core's step, or a step in JAX on all cores.

        Raises:
          ValueError: There is no such step in JAX or it fails, the compiler rejects the step for another reason than
            its size, or it cannot run.
        """
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(step, JaxStep):
                request = {"jax_step": step.name, "arguments": step.arguments, "folder": os.getcwd()}
            else:
                request = {"hlo": f"{folder}/step.hlo"}
                pathlib.Path(folder, "step.hlo").write_bytes(step)
            request_file, result_file = pathlib.Path(folder, "request.json"), pathlib.Path(folder, "result.json")
            request_file.write_text(json.dumps({"topology": self.topology.name} | request))
            command = [self.python, str(_SCRIPT), str(request_file), str(result_file)]
            process = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=folder, env=self._environment()
            )
            if process.returncode:
                last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
                raise ValueError(f"the TPU compiler, run by {self.python!r}, failed: {last}")
            fields = json.loads(result_file.read_text())
        if "needs" in fields:
            return TooLarge(fields["needs"], fields["has"])
        if "problem" in fields:
            raise ValueError(fields["problem"])
        if "error" in fields:
            raise ValueError(f"the TPU compiler rejects the step: {fields['error']}")
        return Program(**fields)

    def _environment(self) -> dict[str, str]:
        """Returns the environment of the process; the Python of this process finds the same modules there."""
        if self.python != sys.executable:
            return dict(os.environ)
        return os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
