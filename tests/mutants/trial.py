"""Runs tests on a mutant in a fork, which imports the mutant's source in place of the module's file."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_WALL_SECONDS = 1800  # after which tests hang, also on a machine that has much else to do
_MORE_MEMORY = 8 << 30  # addresses beyond those of the libraries; a mutant must not take the machine's memory


class Trial(NamedTuple):
    """The result of tests.

    Attributes:
      passed: Whether all passed.
      output: What pytest printed.
      seconds: CPU time that they took.
    """

    passed: bool
    output: str
    seconds: float


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a source as if the file had it, and keeps no compiled file of it."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        super().__init__(name, str(path))
        self._source = source

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, for which it has a loader."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self._loader) if name == self._loader.name else None


def run_tests(tests: Sequence[str], module: str, path: Path, source: str, seconds: int) -> Trial:
    """Runs tests in a fork of this process, in which no module of this project may have been imported.

    Args:
      tests: Arguments of pytest. The tests must not need the module in processes that they start.
      module: Name of the module.
      path: Path of its file.
      source: Its source.
      seconds: CPU time after which the tests are stopped and have not passed, as with a loop that never ends.
    """
    with tempfile.TemporaryDirectory(prefix="mutant") as folder:
        output = Path(folder, "output")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of C++ libraries, which wait
            process = os.fork()
        if process == 0:
            try:
                _limit(output, seconds)
                sys.meta_path.insert(0, _Finder(_Loader(module, path, source)))
                code = _run_pytest(["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/tests", *tests])
            except BaseException:
                traceback.print_exc()
                code = 1
            os._exit(code)
        _, status, usage = os.wait4(process, 0)
        return Trial(status == 0, output.read_text(errors="replace"), usage.ru_utime + usage.ru_stime)


def _limit(output: Path, seconds: int) -> None:
    """Sends the output of this process to a file, and limits its time and memory."""
    opened = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_WALL_SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    with open("/proc/self/statm") as file:
        memory = int(file.read().split()[0]) * resource.getpagesize() + _MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _run_pytest(arguments: Sequence[str]) -> int:
    import pytest

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # these tests need none of the plugins that are installed
    code = pytest.main([*arguments])
    sys.stdout.flush()
    return int(code)
