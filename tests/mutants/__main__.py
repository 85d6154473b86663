"""make mutants: runs the tests on every mutant, and prints those that no test has noticed and how many were killed."""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import math
import multiprocessing
import os
import sys
import time
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
    """Returns the time after which the tests of a module are stopped.

    Raises:
      ValueError: They fail without a mutation.
    """
    start = time.monotonic()
    trial = run_tests(TARGETS[module].tests, module, _path(module), _path(module).read_text(), 600)
    if not trial.passed:
        raise ValueError(f"the tests of {module} fail without a mutation:\n{trial.output}")
    return math.ceil(20 + 5 * (time.monotonic() - start))


def _row(name: str, killed: int, survived: int, seconds: float) -> str:
    percent = 100 * killed / max(killed + survived, 1)
    return f"{name:42}{killed + survived:>9,}{killed:>9,}{survived:>10,}{percent:>8.1f}{seconds:>8,.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--module", action="append", choices=TARGETS, help="only these, in place of all")
    parser.add_argument("--fail-under", type=float, default=90, metavar="PERCENT", help="of all mutants (default: 90)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--verbose", action="store_true", help="print killed mutants too, and which test failed")
    flags = parser.parse_args()
    _import_libraries()
    rows, all_killed, all_survived, begin = [], 0, 0, time.monotonic()
    with multiprocessing.get_context("fork").Pool(flags.processes) as pool:
        for module in flags.module or TARGETS:
            start, killed, survived = time.monotonic(), 0, 0
            try_mutant = functools.partial(_try, module=module, seconds=_seconds(module))
            for mutant, trial in pool.imap(try_mutant, mutants(_path(module), TARGETS[module].only)):
                killed, survived = killed + (not trial.passed), survived + trial.passed
                if trial.passed or flags.verbose:
                    failed = [line for line in trial.output.splitlines() if line.startswith(("FAILED", "ERROR"))][:1]
                    print("survived" if trial.passed else "killed", f"{module}:{mutant.line}", *failed)
                    print(mutant.diff, flush=True)
            rows.append(_row(module, killed, survived, time.monotonic() - start))
            print(rows[-1], flush=True)
            all_killed, all_survived = all_killed + killed, all_survived + survived
    print(f"\n{'':42}  mutants   killed  survived       %       s", *rows, sep="\n")
    print(_row("all", all_killed, all_survived, time.monotonic() - begin))
    return 1 if 100 * all_killed < flags.fail_under * (all_killed + all_survived) else 0


if __name__ == "__main__":
    sys.exit(main())
