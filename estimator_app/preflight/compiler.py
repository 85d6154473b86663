"""libtpu's compiler, which runs in an environment of its own and is reached through files.

HLO ──REQUEST.json──▶ libtpu_program.py ──RESULT.json──▶ Program, or TooLarge
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile

from estimator_app.runtime.topologies import Topology

DEFAULT_PYTHON = ".venv-preflight/bin/python"  # where `make preflight` makes it
_SCRIPT = pathlib.Path(__file__).with_name("libtpu_program.py")


@dataclasses.dataclass(frozen=True)
class Program:
    """A step as one core would run it.

    Attributes:
      flops: Floating-point operations.
      bytes_accessed: That go to and from memory.
      memory: Bytes by use: argument, output, alias (in both), temp, generated_code.
      text: Its HLO, with the layout of every tensor on the device.
    """

    flops: float
    bytes_accessed: float
    memory: dict[str, int]
    text: str

    @property
    def bytes(self) -> int:
        """What it takes of a core's memory."""
        return sum(self.memory.values()) - 2 * self.memory["alias"]

    @property
    def has_loops(self) -> bool:
        """Whether it repeats something, as Keras' LSTM does: flops and bytes_accessed count that once."""
        return " while(" in self.text


@dataclasses.dataclass(frozen=True)
class TooLarge:
    """A step that no program was made of.

    Attributes:
      needs: Bytes.
      has: Bytes of a core that there are for it.
    """

    needs: float
    has: float


@dataclasses.dataclass(frozen=True)
class Compiler:
    """The compiler for a topology.

    Attributes:
      python: The interpreter of the environment that has it.
      topology: The TPU.
    """

    python: str
    topology: Topology

    def __post_init__(self) -> None:
        if not os.access(self.python, os.X_OK):
            raise ValueError(f"--compiler {self.python!r} is no program; make it with: make preflight")

    def __call__(self, hlo: bytes) -> Program | TooLarge:
        """Returns what a step becomes on one core.

        Args:
          hlo: HloModuleProto.

        Raises:
          ValueError: The compiler refuses it for another reason than its size, or cannot run.
        """
        with tempfile.TemporaryDirectory() as folder:
            request, result, module = (f"{folder}/{name}" for name in ("request.json", "result.json", "step.hlo"))
            pathlib.Path(module).write_bytes(hlo)
            pathlib.Path(request).write_text(json.dumps({"topology": self.topology.name, "hlo": module}))
            done = subprocess.run(
                [self.python, str(_SCRIPT), request, result], capture_output=True, text=True, check=False, cwd=folder
            )
            if done.returncode:
                last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
                raise ValueError(f"the TPU's compiler, run by {self.python!r}, says: {last}")
            fields = json.loads(pathlib.Path(result).read_text())
        if "needs" in fields:
            return TooLarge(fields["needs"], fields["has"])
        if "error" in fields:
            raise ValueError(f"the TPU's compiler says: {fields['error']}")
        return Program(**fields)
