"""How the three commands speak: a mistake is one line, and a mistyped flag is told the nearest one; TensorFlow-free."""

from __future__ import annotations

import argparse
import difflib
import itertools
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse, but that a mistake is one line, and a mistyped flag is told the nearest one."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Before argparse misses the required flag that was meant. At the top level the command is yet to be read, and
        # what other runners take, Beam knows.
        known = [flag for action in self._actions for flag in action.option_strings]
        words = itertools.takewhile(lambda word: word != "--", args or ())
        given = [word.partition("=")[0] for word in words if word.startswith("--")]
        if self._subparsers is None and not ("--runner" in given and "--runner" in known):
            for flag in given:
                if flag not in known:
                    close = difflib.get_close_matches(flag, known, n=1)
                    self.error(f"unknown flag {flag}" + (f"; did you mean {close[0]}?" if close else ""))
        return super().parse_known_args(args, namespace)
