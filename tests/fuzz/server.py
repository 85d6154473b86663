"""Imports packages once, and runs each command that it is sent in a fork of itself.

    {"package", "argv", "cwd", "environment", "output"} ──fork──▶ main(argv) ──▶ {"code", "cpu", "wall", "memory"}

What a command prints goes to OUTPUT.stdout and OUTPUT.stderr. A fork is a hundred times faster than another interpreter
that imports TensorFlow or Beam.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

WALL_SECONDS = 300  # after which a command hangs, also on a machine that has other things to do
CPU_SECONDS = 40
_MORE_MEMORY = 8 << 30  # addresses beyond those that the packages take; a mistake must not take the machine's memory
_FILE_BYTES = 1 << 30


def main() -> None:
    packages = sys.argv[1:]
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    if "estimator_app" in packages:
        from estimator_app.runtime.tensorflow_startup import import_tensorflow

        import_tensorflow(verbose=False)
    commands = {package: importlib.import_module(f"{package}.__main__").main for package in packages}
    for package in packages:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            with contextlib.suppress(ImportError, AttributeError):  # of what is not installed, as TPUEstimator
                importlib.import_module(module.name)
    if "apache_beam" in sys.modules:
        from support.signatures import remember_signatures

        remember_signatures()
    print("ready", file=replies, flush=True)
    for line in requests:
        request = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of C++ libraries, which wait
            process = os.fork()
        if process == 0:
            replies.close()
            _prepare(request)
            _run(commands[request["package"]], request["argv"])
        print(json.dumps(_outcome(process)), file=replies, flush=True)


def _prepare(request: dict[str, Any]) -> None:
    """Makes of this process what a user's shell would start."""
    os.setsid()
    for number, name in ((0, os.devnull), (1, f"{request['output']}.stdout"), (2, f"{request['output']}.stderr")):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    sys.path.insert(0, request["cwd"])  # as python -m does
    with open("/proc/self/statm") as file:
        memory = int(file.read().split()[0]) * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, memory + _MORE_MEMORY),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


def _run(command: Callable[[list[str]], int], argv: list[str]) -> NoReturn:
    """Runs a command and ends this process as the interpreter would, but for freeing memory, which takes longest."""
    code: Any = 1
    try:
        code = command(argv)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # waits for its threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _outcome(process: int) -> dict[str, float]:
    """Returns how a process ended, of which and of whose children nothing is left."""
    start, handle = time.monotonic(), os.pidfd_open(process)
    ended, *_ = select.select([handle], [], [], WALL_SECONDS)
    os.close(handle)
    if not ended:
        os.kill(process, signal.SIGKILL)
    _, status, usage = os.wait4(process, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    return {
        "code": os.waitstatus_to_exitcode(status) if ended else -99,
        "cpu": usage.ru_utime + usage.ru_stime,
        "wall": time.monotonic() - start,
        "memory": usage.ru_maxrss << 10,
    }


if __name__ == "__main__":
    main()
