"""Completion of commands, flags and choices in bash, zsh and fish, by argcomplete.

    jpeg2tpu completion SHELL ──▶ script, which the shell reads once
    TAB ──▶ script ──▶ jpeg2tpu with _ARGCOMPLETE and COMP_LINE in its environment ──▶ complete() ──▶ words

argcomplete asks the parsers that also run the commands. shtab, which writes scripts without a process for each TAB, has
none for fish (1.8), and would have to import all packages to write one.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Mapping
from typing import Literal, get_args

from tpu_input.command_line import Parser

Shell = Literal["bash", "zsh", "fish"]
SHELLS: tuple[Shell, ...] = get_args(Shell)
_PROGRAM = "jpeg2tpu"


def script(shell: Shell) -> str:
    """Returns the code that a shell has to run so that it completes the arguments of jpeg2tpu.

    Raises:
      ValueError: argcomplete is not installed.
    """
    try:
        import argcomplete
    except ModuleNotFoundError:
        raise ValueError("completion needs argcomplete; install it with: pip install argcomplete") from None
    return str(argcomplete.shellcode([_PROGRAM], shell=shell))


def complete(packages: Mapping[str, str], others: Mapping[str, Collection[str]]) -> None:
    """Writes the words that complete the command line to the shell and ends the process, if a shell has started it.

    Args:
      packages: Package of each command, whose __main__ has make_parser(); it is imported only for its own commands.
      others: Arguments of the commands of no package.
    """
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    words = line.split()
    name = words[1] if len(words) > 2 or (len(words) == 2 and line[-1:].isspace()) else ""
    if name in packages:
        make_parser: Callable[[], Parser] = importlib.import_module(f"{packages[name]}.__main__").make_parser
        parser = make_parser()
    else:
        parser = Parser(prog=_PROGRAM)
        commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
        for command in [*packages, *others]:
            commands.add_parser(command).add_argument("argument", choices=[*others.get(command, ())] or None)
    argcomplete.autocomplete(parser)
