"""What the three command lines share, without TensorFlow: the parser, the exit codes, and how signals end a command."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn, TextIO

# What shells report of a process that a signal has ended: 128 and the signal's number.
# https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_08_02
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
EXIT_CODES = f"""\
exit codes:
  0    done
  1    found something: damage, a file that cannot be used, a training that would fail
  2    a mistake in the command or its input, or storage that failed; a line on stderr says which
  {INTERRUPTED}  ended by Ctrl-C (SIGINT)
  {TERMINATED}  ended by SIGTERM
"""


class Terminated(KeyboardInterrupt):
    """SIGTERM has asked the command to end. It is handled as Ctrl-C is, but for the exit code."""


def printable(text: str) -> str:
    """Returns text as one line that a terminal only shows: what it would obey, or not show, is escaped as in Python.

    Names of files and classes, and what files say, may be a stranger's: they could move the cursor, change colors, or
    look like lines of ours.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def to_json(value: Any) -> str:
    """Returns a line of JSON that is printable() as it is, with all other letters as themselves."""
    line = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def print_line(text: str, file: TextIO | None = None) -> None:
    """Prints printable(text), on stdout unless another file is given, at once.

    Raises:
      Unread: Nobody reads it.
    """
    try:
        print(printable(text), file=file, flush=True)
    except BrokenPipeError as error:
        raise Unread from error


def print_error(message: object) -> None:
    """Prints what ends a command with exit code 2, on stderr as `error: …`; each of its lines as print_line()."""
    for line in f"error: {message}".split("\n"):
        print_line(line, sys.stderr)


class Unread(BrokenPipeError):
    """Nobody reads any more what a command prints."""


def unread() -> int:
    """Returns the exit code of a command whose output nobody reads any more: who reads, e.g. head, has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would flush into the pipe at its end
    return 0


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Returns the exit code of a command that Ctrl-C or SIGTERM has ended."""
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Makes the first SIGTERM raise Terminated in the main thread, so that temporary files and locks are given up.

    A second one ends the process at once.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # where Python sets no handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# Flags of other programs, and what they are called here.
_MEANT = {
    "batch_size": ("--train_batch_size",),
    "data": ("--dataset", "--input"),
    "data_dir": ("--dataset", "--input"),
    "epochs": ("--train_steps",),
    "lr": ("--learning_rate",),
    "max_steps": ("--train_steps",),
    "model": ("--network",),
    "num_epochs": ("--train_steps",),
    "output_dir": ("--output", "--model_dir"),
    "size": ("--image_size",),
    "steps": ("--train_steps",),
    "wd": ("--weight_decay",),
}


def _in_snake_case(args: Sequence[str], known: Collection[str]) -> list[str]:
    """Returns arguments with known flags that are written with hyphens, --train-steps, written as --train_steps."""
    taken = list(args)
    for number, word in enumerate(taken):
        if word == "--":
            break
        flag, separator, value = word.partition("=")
        name = "--" + flag[2:].replace("-", "_")
        if word.startswith("--") and flag not in known and name in known:
            taken[number] = f"{name}{separator}{value}"
    return taken


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one line, a mistyped flag is told the nearest one, and help states the exit codes."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")

    def format_help(self) -> str:
        return f"{super().format_help()}\n{EXIT_CODES}"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Before argparse misses the required flag that was meant. At the top level the command is yet to be read, and
        # what other runners take, Beam knows.
        known = [flag for action in self._actions for flag in action.option_strings]
        args = _in_snake_case(args or (), known)
        words = itertools.takewhile(lambda word: word != "--", args)
        given = [word.partition("=")[0] for word in words if word.startswith("--")]
        if self._subparsers is None and not ("--runner" in given and "--runner" in known):
            for flag in given:
                if flag not in known:
                    meant = [other for other in _MEANT.get(flag.replace("-", "_").lstrip("_"), ()) if other in known]
                    close = meant or difflib.get_close_matches(flag, known, n=1)
                    self.error(f"unknown flag {flag}" + (f"; did you mean {close[0]}?" if close else ""))
        return super().parse_known_args(args, namespace)
