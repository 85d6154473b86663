"""make mutants: runs the tests on every mutant, and prints those that no test has noticed and how many were killed."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import importlib
import math
import multiprocessing
import os
import sys
from pathlib import Path

from mutants.mutation import Mutant, mutants
from mutants.targets import TARGETS
from mutants.trial import Trial, run_tests

# Imported before the forks, so that none of them has to. They are not used here: no thread must run while it forks.
_LIBRARIES = (
    "apache_beam",
    "google.cloud.storage",
    "PIL.Image",
    "pyarrow.parquet",
    "pytest",
    "scipy.stats",
    "sklearn.datasets",
    "tensorflow",
)
_ROOT = Path(__file__).parents[2]


def _import_libraries() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    for name in _LIBRARIES:
        importlib.import_module(name)
    tensorflow = sys.modules["tensorflow"]
    _ = tensorflow.keras.layers, getattr(tensorflow.compat.v1, "estimator", None)  # which it imports when asked for
    gc.freeze()  # a fork that collects garbage would else go through all of the libraries' objects, and copy them


def _try(mutant: Mutant, module: str, seconds: int) -> tuple[Mutant, Trial]:
    return mutant, run_tests(TARGETS[module].tests, module, _path(module), mutant.source, seconds)


def _path(module: str) -> Path:
    return _ROOT / f"{module.replace('.', '/')}.py"


def _seconds(module: str) -> int:
    """Returns the CPU time after which the tests of a module are stopped.

    Raises:
      ValueError: They fail without a mutation.
    """
    trial = run_tests(TARGETS[module].tests, module, _path(module), _path(module).read_text(), 600)
    if not trial.passed:
        raise ValueError(f"the tests of {module} fail without a mutation:\n{trial.output}")
    return math.ceil(10 + 5 * trial.seconds)


@dataclasses.dataclass
class _Count:
    """Number of mutants of a module, or of all, that were killed and that survived, and the CPU time of their tests."""

    name: str
    killed: int = 0
    survived: int = 0
    seconds: float = 0.0

    def add(self, trial: Trial) -> None:
        self.killed += not trial.passed
        self.survived += trial.passed
        self.seconds += trial.seconds

    @property
    def percent(self) -> float:
        return 100 * self.killed / max(self.killed + self.survived, 1)

    def __str__(self) -> str:
        numbers = f"{self.killed + self.survived:9,}{self.killed:9,}{self.survived:10,}{self.percent:8.1f}"
        return f"{self.name:42}{numbers}{self.seconds:9,.0f}"


_HEAD = f"{'':42}  mutants   killed  survived       %    CPU s"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--module", action="append", choices=TARGETS, help="only these, in place of all")
    parser.add_argument("--fail-under", type=float, default=95, metavar="PERCENT", help="of all mutants (default: 95)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--verbose", action="store_true", help="print killed mutants too, and which test failed")
    flags = parser.parse_args()
    _import_libraries()
    total, counts = _Count("all"), []
    with multiprocessing.get_context("fork").Pool(flags.processes) as pool:
        for module in flags.module or TARGETS:
            counts.append(_Count(module))
            try_mutant = functools.partial(_try, module=module, seconds=pool.apply(_seconds, (module,)))
            for mutant, trial in pool.imap(try_mutant, mutants(_path(module), TARGETS[module].only)):
                for count in (counts[-1], total):
                    count.add(trial)
                if trial.passed or flags.verbose:
                    failed = [line for line in trial.output.splitlines() if line.startswith(("FAILED", "ERROR"))][:1]
                    print("survived" if trial.passed else "killed", f"{module}:{mutant.line}", *failed)
                    print(mutant.diff, flush=True)
            print(counts[-1], flush=True)
    print("", _HEAD, *counts, total, sep="\n")
    return 1 if total.percent < flags.fail_under else 0


if __name__ == "__main__":
    sys.exit(main())
