"""Functions that executors call in other processes, which import them from here."""

from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path


class Awkward(ValueError):
    """An exception that cannot be pickled: the copy lacks an argument."""

    def __init__(self, unit: str, reason: str) -> None:
        super().__init__(f"{unit}: {reason}")


def fail_awkwardly(unit: str) -> None:
    raise Awkward(unit, "does not fit")


def process_of(unit: int) -> tuple[int, int]:
    """Returns the process that does a unit, and how many threads it has."""
    return os.getpid(), len(os.listdir("/proc/self/task"))


def buffer_of(unit: tuple[int, int]) -> tuple[pickle.PickleBuffer, frozenset[int]]:
    """Returns so many bytes with one value, and the files in memory that this process has open after another unit."""
    value, num_bytes = unit
    descriptors = Path("/proc/self/fd").iterdir()
    files = frozenset(os.stat(path).st_ino for path in descriptors if "memfd:" in os.path.realpath(path))
    return pickle.PickleBuffer(bytes([value]) * num_bytes), files


@dataclasses.dataclass(frozen=True)
class Logger:
    """Function whose method begin() leaves a line in a file, as the function itself does, which returns unit + 1."""

    path: Path

    def begin(self, unit: int) -> tuple[int]:
        self._log(f"begin {unit}")
        return (unit,)

    def __call__(self, state: tuple[int]) -> int:
        self._log(f"call {state[0]}")
        return state[0] + 1

    def _log(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")
