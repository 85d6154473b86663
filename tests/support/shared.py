"""What takes seconds to make is made once for all processes that run the tests, by the first that needs it."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Value = TypeVar("Value")


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Value]) -> Value:
    """Returns what `make` returns for a new folder; other processes of this run wait for it, and get a copy.

    Args:
      factory: Knows the temporary folder of this run. With pytest-xdist, each process has a folder in it.
      name: Name of the folder in it.
      make: Fills a folder, which nothing may change later, and returns what can be pickled.
    """
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, result = root / name, root / f"{name}.pickle"
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed, or failed
            folder.mkdir()
            result.write_bytes(pickle.dumps(make(folder)))
        value: Value = pickle.loads(result.read_bytes())
        return value
