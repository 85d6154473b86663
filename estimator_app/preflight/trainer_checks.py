"""What a trainer hands over to preflight: findings of its own, the steps that are compiled, and the cost of its input.

TrainerChecks ──parts()──▶ graph, input, … ; ──steps()──▶ {"training": StepMaker, …} ──▶ compile.py; ──input_cost()──▶
feeding.py

Imports no framework: each trainer has a subclass of its own, which trainers/registry.py knows.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping

from estimator_app.config import TrainConfig
from estimator_app.preflight.compiler import Source, default_python
from estimator_app.preflight.feeding import LESS_INPUT
from estimator_app.preflight.findings import Finding, Part
from estimator_app.runtime.topologies import Topology
from tpu_input import Manifest
from tpu_input.benchmark.cost import Cost


@dataclasses.dataclass(frozen=True)
class StepMaker:
    """How the step of a mode is made for the compiler.

    Attributes:
      batch: Images per core.
      make_step: Returns the step for a number of images per core.
    """

    batch: int
    make_step: Callable[[int], Source]


class TrainerChecks(abc.ABC):
    """The checks of a run that depend on its trainer.

    Attributes:
      less_input: Advice for an input that is slower than the TPU.
    """

    less_input = LESS_INPUT

    def __init__(self, manifest: Manifest, config: TrainConfig, topology: Topology, model_dir: str) -> None:
        """Checks the options.

        Args:
          manifest: Manifest of the dataset.
          config: Options of the run.
          topology: The TPU.
          model_dir: Empty folder, which must exist as long as this object is used.

        Raises:
          ValueError: `train` would refuse the run with the same message.
        """
        self.manifest, self.config, self.topology, self.model_dir = manifest, config, topology, model_dir

    @staticmethod
    def compiler_python() -> str | None:
        """Returns the Python whose libtpu compiles the steps; None if `make preflight` has not been run.

        Raises:
          ValueError: There is none, and nothing is left to check without one.
        """
        return default_python()

    @property
    def layout(self) -> str | None:
        """Order of the axes in which images are sent to a core, such as "NHWC"; None if the device has its own."""
        return None

    @abc.abstractmethod
    def software(self) -> Finding:
        """Returns the finding about the framework's software on this TPU."""

    @abc.abstractmethod
    def parts(self) -> Iterator[Part]:
        """Yields the findings that need no compiler for TPUs, each part as soon as it is complete."""

    @abc.abstractmethod
    def steps(self) -> Mapping[str, StepMaker]:
        """Returns the steps that can be compiled, by mode, after parts(); without "training" if that cannot."""

    @abc.abstractmethod
    def input_cost(self) -> tuple[Cost, float | None]:
        """Returns the cost per image of training's input, and the images per second that one thread puts into batches.

        Both are measured on this machine. The second is None if several threads do.
        """
