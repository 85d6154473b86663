"""The help of a command, laid out for the columns of the terminal.

    --help      usage, the everyday options with the first sentence of their description, examples
    --help-all  usage, all options in named groups with their whole description, examples, exit codes

argparse's own layout has one length, and differs between versions of Python.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Sequence

MESSAGES = "messages"  # title of the group of options that every command has; it is the last one
_MOST_COLUMNS = 100
_MOST_NAME = 24  # columns of an option and its indentation; the description of a longer one begins on the next line


def columns() -> int:
    """Returns the number of columns that help may fill."""
    return max(40, min(shutil.get_terminal_size().columns, _MOST_COLUMNS) - 1)


def table(rows: Sequence[tuple[str, str]], indent: int = 0) -> list[str]:
    """Returns the lines of an indented table of (name, description).

    Args:
      rows: Of the table.
      indent: Column in which descriptions begin; 0 for the first that fits.
    """
    indent = indent or min(max((len(name) for name, _ in rows), default=0) + 4, _MOST_NAME)
    lines = []
    for name, text in rows:
        fits = len(name) + 4 <= indent
        lines += [] if fits else [f"  {name}"]
        first = f"  {name}".ljust(indent) if fits else " " * indent
        lines += textwrap.wrap(
            text,
            columns(),
            initial_indent=first,
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
            break_long_words=False,
        )
    return lines


def paragraph(text: str, indent: str = "") -> list[str]:
    """Returns the lines of a text; all but the first are indented."""
    wrapped = textwrap.wrap(text, columns(), subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return wrapped or [""]


def command_line(command: str) -> list[str]:
    """Returns the lines of a command of an example, which a shell takes as one."""
    lines, words = [], command.split()
    line = f"  {words[0]}"
    for number, word in enumerate(words[1:], 1):
        needed = len(line) + len(word) + 1 + 2 * (number < len(words) - 1)  # with a backslash if more words follow
        if needed > columns():
            lines.append(f"{line} \\")
            line = f"      {word}"
        else:
            line += f" {word}"
    return [*lines, line]


def usage(parser: argparse.ArgumentParser) -> list[str]:
    """Returns the lines of the usage: the command with what it requires."""
    words = [parser.prog]
    required = [action for _, group in _groups(parser) for action in group if action.required]
    words += [_positional(action) for action in parser._get_positional_actions()]
    words += [name(action) for action in required]
    words += ["[OPTION …]"] * (len(_options(parser)) > len(required))
    return paragraph("usage: " + " ".join(words), " " * 7)


def everyday(parser: argparse.ArgumentParser, names: Sequence[str] | None) -> list[str]:
    """Returns the lines of --help between the description and the examples.

    Args:
      parser: Parser of a command.
      names: Options that most people use, in their order, next to the arguments and the required options; None for all
        but those that every command has.

    Raises:
      KeyError: There is no such option.
    """
    options = {action.option_strings[-1]: action for action in _options(parser)}
    if names is None:
        names = [action.option_strings[-1] for title, group in _groups(parser) if title != MESSAGES for action in group]
    required = [option for option, action in options.items() if action.required and option not in names]
    actions = [*parser._get_positional_actions(), *(options[option] for option in [*required, *names])]
    rows = [(name(action), _first_sentence(description(action))) for action in dict.fromkeys(actions)]
    titles = ", ".join(title for title, _ in _groups(parser))
    rest = f"{parser.prog} --help-all describes all {len(options)} options in full: {titles}."
    return [*table(rows), "", *paragraph(rest)]


def groups(parser: argparse.ArgumentParser) -> list[str]:
    """Returns the lines of --help-all between the description and the examples."""
    lines: list[str] = []
    arguments = parser._get_positional_actions()
    titled = [("arguments", arguments)] * bool(arguments) + _groups(parser)
    for title, actions in titled:
        lines += [f"{title}:", *table([(name(action), description(action)) for action in actions], _MOST_NAME), ""]
    return lines[:-1]


def commands(parser: argparse.ArgumentParser) -> list[str]:
    """Returns the lines about the commands of a package's parser."""
    added = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [
        "commands:",
        *table([(command.dest, command.help or "") for action in added for command in action._get_subactions()]),
    ]


def name(action: argparse.Action) -> str:
    """Returns an option, or an argument, as it is written in a command: --output=FOLDER."""
    metavar = action.metavar or "|".join("none" if choice is None else f"{choice}" for choice in action.choices or ())
    if not action.option_strings:
        return f"{metavar or action.dest}"
    value = f"={metavar or action.dest.upper()}" if action.nargs != 0 else ""
    return ", ".join(action.option_strings) + value


def description(action: argparse.Action) -> str:
    """Returns the description of an option with its default."""
    return (action.help or "") % vars(action)


def _positional(action: argparse.Action) -> str:
    words = name(action)
    return {"*": f"[{words} …]", "+": f"{words} …"}.get(str(action.nargs), words)


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for _, group in _groups(parser) for action in group]


def _groups(parser: argparse.ArgumentParser) -> list[tuple[str, list[argparse.Action]]]:
    """Returns (title, options) of every group that has options; the last one is common to all commands."""
    sections = [
        (group.title or "", [action for action in group._group_actions if action.option_strings])
        for group in parser._action_groups
    ]
    return sorted(((title, actions) for title, actions in sections if actions), key=lambda item: item[0] == MESSAGES)


def _first_sentence(text: str) -> str:
    """Returns the first sentence of a description, and its default."""
    body, mark, default = text.partition(" (default: ")
    return re.split(r"(?<!e\.g)\. ", body)[0] + mark + default
