"""Shared code of the three command lines: the parser, the exit codes and the handling of signals; TensorFlow-free."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from tpu_input.command_line import help_text
from tpu_input.command_line.dataclass_options import suggestion
from tpu_input.command_line.output import (
    SECONDS_PER_LINE as SECONDS_PER_LINE,
    activity as activity,
    failed as failed,
    is_json as is_json,
    is_quiet as is_quiet,
    note as note,
    output as output,
    print_error as print_error,
    print_failure as print_failure,
    print_line as print_line,
    print_traceback as print_traceback,
    printable as printable,
    shows_progress as shows_progress,
    speed as speed,
    to_json as to_json,
)

# Exit codes that shells report for a process that was ended by a signal: 128 + the signal's number.
# https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_08_02
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
EXIT_CODES = f"""\
exit codes:
  0    done
  1    problems found: damage, differences, a file that cannot be used, a
       training that would fail
  2    an error in the command or its input, or a storage failure; one line on
       stderr describes it
  {INTERRUPTED}  ended by Ctrl-C (SIGINT)
  {TERMINATED}  ended by SIGTERM
"""


class Terminated(KeyboardInterrupt):
    """Exception that SIGTERM raises. It is handled like Ctrl-C, except for the exit code."""


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Returns the exit code of a command that was ended by Ctrl-C or SIGTERM."""
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Context manager in which the first SIGTERM raises Terminated in the main thread.

    The exception lets a command delete temporary files and release locks. A second SIGTERM ends the process at once.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # Python sets handlers there only
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# Flags of other programs, and the flags of this program that correspond to them.
_EQUIVALENTS = {
    "batch_size": ("--train_batch_size",),
    "data": ("--dataset", "--input"),
    "data_dir": ("--dataset", "--input"),
    "lr": ("--learning_rate",),
    "max_steps": ("--train_steps",),
    "model": ("--network",),
    "num_epochs": ("--epochs",),
    "output_dir": ("--output", "--model_dir"),
    "resize": ("--resize_shorter", "--image_size"),
    "size": ("--image_size",),
    "steps": ("--train_steps",),
    "wd": ("--weight_decay",),
}


def _as_spelled(args: Sequence[str], options: Collection[str]) -> list[str]:
    """Returns arguments with known flags as they are spelled: --train-steps becomes --train_steps."""
    spelled = {flag.replace("-", "_"): flag for flag in options}
    words = list(args)
    for number, word in enumerate(words):
        if word == "--":
            break
        flag, separator, value = word.partition("=")
        if word.startswith("--") and flag not in options and (name := spelled.get(flag.replace("-", "_"))):
            words[number] = f"{name}{separator}{value}"
    return words


def _without_names(args: Sequence[str], arguments: Collection[str], options: Collection[str]) -> list[str]:
    """Returns arguments with --dataset=D as D if a command has the argument DATASET: it is an option of other commands.

    `arguments` are the command's as they are in its usage, such as DATASET.
    """
    names = {f"--{name.lower()}" for name in arguments} - {*options}
    words: list[str] = []
    for number, word in enumerate(args):
        name, _, value = word.partition("=")
        if word == "--":
            return [*words, *args[number:]]
        if name in names:
            words += [value] * (word != name)  # else the value is the next word
        else:
            words.append(word)
    return words


_HOME = re.compile(r"(--?\w+=(?:\w+=)?|\w+=)?(~(?:/.*)?)", re.DOTALL)


def _at_home(args: Sequence[str]) -> list[str]:
    """Returns arguments with ~ at the beginning of a path replaced by the home folder.

    A shell does that for the word ~/x, but not for --output=~/x or train=~/x.
    """
    words = [(word, _HOME.fullmatch(word)) for word in args]
    return [(match[1] or "") + os.path.expanduser(match[2]) if match else word for word, match in words]


class _HelpAll(argparse.Action):
    """Prints the long help and ends the process, as argparse's action "help" does with the short one."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser._print_message(parser.format_help(is_whole=True), sys.stdout)
        parser.exit()


class Misused(SystemExit):
    """Error: the arguments of a command are wrong, which Parser has printed."""

    def __init__(self, message: str) -> None:
        super().__init__(2)
        self.message = message


class Parser(argparse.ArgumentParser):
    """ArgumentParser with one-line errors, a suggestion for a mistyped command, flag or choice, and two lengths of
    help, as in help_text.py.

    Attributes:
      everyday: Options that --help shows, in their order, next to the required ones; None for all of the command's own.
      examples: Commands at the end of the help.
      messages: Group of the options that every command has.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"add_help": False})
        self.everyday: Sequence[str] | None = None
        self.examples: Sequence[str] = ()
        self.messages = self.add_argument_group(help_text.MESSAGES)
        self.messages.add_argument("-h", "--help", action="help", help="show the everyday options")
        self.messages.add_argument("--help-all", action=_HelpAll, help="show all options, in full, and the exit codes")

    def error(self, message: str) -> NoReturn:
        error = f"{message} (see {self.prog} --help)"
        print(f"error: {error}", file=sys.stderr)
        raise Misused(error)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = ["none" if choice is None else str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"unknown command {value!r}{suggestion(value, choices)}")
        choice = f"must be one of {', '.join(choices)}, got {value!r}{suggestion(str(value), choices)}"
        raise argparse.ArgumentError(action, choice)

    def format_usage(self) -> str:
        return "\n".join(help_text.usage(self)) + "\n"

    def format_help(self, is_whole: bool = False) -> str:
        lines = [*help_text.usage(self), ""]
        if self.description:
            lines += [*help_text.paragraph(self.description), ""]
        if self._subparsers is not None:
            lines += [*help_text.commands(self), "", EXIT_CODES]
            return "\n".join(lines)
        lines += help_text.groups(self) if is_whole else help_text.everyday(self, self.everyday)
        if self.examples:
            lines += ["", f"example{'s' * (len(self.examples) > 1)}:"]
            lines += [line for example in self.examples for line in help_text.command_line(example)]
        return "\n".join([*lines, *(["", EXIT_CODES] if is_whole else [""])])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Unknown flags are reported before argparse complains that the flag that was meant is missing. They are not
        # checked at the top level, where the command is not parsed yet, or with --runner, as Beam checks its flags.
        options = [flag for action in self._actions for flag in action.option_strings]
        args = _at_home(_as_spelled(sys.argv[1:] if args is None else args, options))
        arguments = [str(action.metavar) for action in self._get_positional_actions()]
        args = _without_names(args, [name for name in arguments if name in ("DATASET", "OUTPUT")], options)
        words = itertools.takewhile(lambda word: word != "--", args)
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        if self._subparsers is None and not ("--runner" in flags and "--runner" in options):
            for flag in flags:
                if flag not in options:
                    equivalents = [
                        other for other in _EQUIVALENTS.get(flag.replace("-", "_").lstrip("_"), ()) if other in options
                    ]
                    did_you_mean = f"; did you mean {equivalents[0]}?" if equivalents else suggestion(flag, options)
                    self.error(f"unknown flag {flag}{did_you_mean}")
        return super().parse_known_args(args, namespace)
