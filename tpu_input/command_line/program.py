"""How a command runs and ends; the three packages' main functions are calls of run_program().

argv ──parse──▶ flags ──run──▶ exit code
           │              │
           └── an error ──┴──▶ one line on stderr, and with --json an object on stdout ──▶ exit code
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Sequence

from tpu_input.command_line import (
    Misused,
    exit_code,
    failed,
    output,
    print_failure,
    print_line,
    print_traceback,
    sigterm_raises,
)
from tpu_input.command_line.error_lines import first_error, limit_reached, one_line
from tpu_input.command_line.streams import streams


def run_program(
    argv: Sequence[str],
    parse: Callable[[Sequence[str]], argparse.Namespace],
    run: Callable[[argparse.Namespace], int],
    *,
    describe: Callable[[Exception, argparse.Namespace], str],
    interrupted: Callable[[argparse.Namespace], str] = lambda _: "",
) -> int:
    """Runs a command and returns its exit code, one of command_line.EXIT_CODES.

    Args:
      argv: Arguments of the command.
      parse: Function that parses them.
      run: Function that does the work and returns the exit code.
      describe: Function that returns the one line of an error; "" if the error is a fault of the program, which is
        raised with its traceback.
      interrupted: Function that returns what is printed if the command is interrupted; "" for nothing.

    Raises:
      Misused: The arguments are wrong, which has been printed.
    """
    with streams():
        try:
            flags = parse(argv)
            with output(flags, argv):
                return _run(flags, argv, run, describe, interrupted)
        except Misused as error:
            print_failure(argv, error.message)
            raise
        except (ValueError, ImportError) as error:  # of the arguments or --log_file
            return failed(argv, one_line(error))


def end_process(code: int) -> None:
    """Ends the process of a command with an exit code, without ending Python; returns if gRPC has not been imported.

    What was registered for the end of Python runs before. A thread that asks for the interpreter while Python ends is
    ended where it is; in gRPC's C++ that aborts the process ("FATAL: exception not rethrown"), and the exit code is
    lost. Beam has such threads, among others where an engine was killed (Python up to 3.13: python/cpython#87135).
    """
    if "grpc" in sys.modules:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # streams() has said that it cannot be written
                stream.flush()
        os._exit(code)


def _run(
    flags: argparse.Namespace,
    argv: Sequence[str],
    run: Callable[[argparse.Namespace], int],
    describe: Callable[[Exception, argparse.Namespace], str],
    interrupted: Callable[[argparse.Namespace], str],
) -> int:
    try:
        with sigterm_raises():
            return int(run(flags))
    except (Exception, KeyboardInterrupt) as raised:
        error = first_error(raised)
        if isinstance(error, KeyboardInterrupt):
            message = interrupted(flags)
            if message:
                print_line(message, sys.stderr)
            print_failure(argv, message or "interrupted")
            return exit_code(error)
        if not isinstance(error, Exception):
            raise
        if flags.verbose:
            print_traceback()
        line = limit_reached(error) or describe(error, flags)
        if not line:
            print_failure(argv, f"{type(error).__name__}: {error}")
            raise
        return failed(argv, line)


def place_of(flags: argparse.Namespace) -> str:
    """Returns the path that a command writes to or reads, for errors that name none; "" if no flag has one."""
    names = ("output", "model_dir", "dataset", "before", "export_dir")
    paths = [getattr(flags, name, None) for name in names]
    return next((path for path in paths if isinstance(path, str) and path), "")
