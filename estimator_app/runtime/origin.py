"""Who wrote what fails: the line of a user's code in a stack of a hundred frames of libraries.

frames, outermost first ──users_line()──▶ "nets.py:12"
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable
from typing import Any

_LIBRARIES = ("absl", "keras", "tensorflow", "tensorflow_estimator", "tf_keras")
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_STDLIB = sysconfig.get_path("stdlib")


def users_line(frames: Iterable[Any]) -> str:
    """Returns "file:line" of the innermost frame that is no library's, "" where all are.

    Args:
      frames: As in traceback.FrameSummary, outermost first.
    """
    own = [frame for frame in frames if not _is_library(frame.filename)]
    return f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else ""


def raised_at(error: BaseException) -> str:
    """Returns "file:line" of the user's code that an exception came out of, "" where there was none."""
    return users_line(traceback.extract_tb(error.__traceback__))


def is_ours(line: str) -> bool:
    """Returns whether a line of users_line() is this package's."""
    return os.path.abspath(line).startswith(_PACKAGE + os.sep)


def _is_library(path: str) -> bool:
    if os.path.basename(path).startswith("__autograph_generated_file"):  # stands for what the next frames call
        return True
    if path.startswith("<") or f"{os.sep}site-packages{os.sep}" not in path:
        return path.startswith(("<", _STDLIB))
    return path.rpartition(f"{os.sep}site-packages{os.sep}")[2].split(os.sep)[0] in _LIBRARIES
