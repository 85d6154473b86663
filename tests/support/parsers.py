"""The parser of each command of jpeg2tpu, as its package makes it."""

from __future__ import annotations

import argparse
import importlib

from tpu_input.command_line import Parser
from tpu_input.command_line.jpeg2tpu import COMMANDS


def parser_of(verb: str) -> Parser:
    parser = importlib.import_module(f"{COMMANDS[verb].package}.__main__").make_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    parser = commands.choices[verb]
    assert isinstance(parser, Parser)
    return parser


PARSERS = {verb: parser_of(verb) for verb in COMMANDS}
