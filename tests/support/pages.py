"""Commands of a page of the docs, and how a test runs them in this process."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpu_input.command_line.jpeg2tpu import COMMANDS, main

ROOT = Path(__file__).parents[2]


def unwrapped(page: str) -> str:
    """Returns the text of a page with single spaces, for a phrase that may run over the end of a line."""
    return " ".join((ROOT / page).read_text().split())


def commands(page: str) -> list[list[str]]:
    """Returns every command of a page's blocks, indented or fenced, word by word, in their order, without a last &&."""
    text = re.sub(r"\\\n +", "", (ROOT / page).read_text())
    ours = rf"jpeg2tpu (?:{'|'.join(COMMANDS)}) "
    lines = re.findall(rf"^(?:    (?=python|{ours}|rm |pip )|(?=python -m |{ours}))(.*?)(?: &&)?$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def ours(words: Sequence[str]) -> bool:
    """Returns whether a command is jpeg2tpu COMMAND …, of one of the packages."""
    return words[0] == "jpeg2tpu" and words[1] in COMMANDS


def run_ours(words: Sequence[str], added: Mapping[str, Sequence[str]]) -> int:
    """Runs jpeg2tpu COMMAND … in this process; returns its exit code.

    Args:
      words: The command.
      added: Flags to append, by COMMAND: they make a training small.
    """
    _, name, *arguments = words
    return main([name, *arguments, *added.get(name, ())])


def trainer_table() -> dict[str, dict[str, str]]:
    """Returns what each trainer has, of docs/train_jax.md: cells by the first cell of their row and by trainer."""
    _, _, section = (ROOT / "docs/train_jax.md").read_text().partition("## What each trainer has\n\n")
    lines = section.partition("\n\n")[0].split("\n")
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    trainers = [name.strip("`") for name in head[1:]]
    return {name: dict(zip(trainers, cells, strict=True)) for name, *cells in rows}
