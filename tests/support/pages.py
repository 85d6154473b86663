"""Commands of a page of the docs, and how a test runs them in this process."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from beam_pipelines.__main__ import main as beam_pipelines
from estimator_app.__main__ import main as estimator_app
from tpu_input.__main__ import main as tpu_input

ROOT = Path(__file__).parents[2]
MAINS = {"beam_pipelines": beam_pipelines, "tpu_input": tpu_input, "estimator_app": estimator_app}


def commands(page: str) -> list[list[str]]:
    """Returns every command of a page's blocks, indented or fenced, word by word, in their order."""
    text = re.sub(r"\\\n +", "", (ROOT / page).read_text())
    lines = re.findall(r"^(?:    (?=python|rm |pip )|(?=python -m ))(.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def ours(words: Sequence[str]) -> bool:
    """Returns whether a command is python -m PACKAGE … of one of our packages."""
    return list(words[:2]) == ["python", "-m"] and words[2] in MAINS


def run_ours(words: Sequence[str], added: Mapping[str, Sequence[str]]) -> int:
    """Runs python -m PACKAGE COMMAND …; returns its exit code.

    Args:
      words: The command.
      added: Flags to append, by COMMAND: they make a training small.
    """
    _, _, package, command, *arguments = words
    return MAINS[package]([command, *arguments, *added.get(command, ())])
