"""The help of every command: short, in 80 columns, with all options in --help-all, and true to the parser."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import subprocess
import sys

import pytest

from beam_pipelines.options import FORMATS
from beam_pipelines.shard_formats.all_formats import EXPORTS
from estimator_app.config import TRAINERS
from estimator_app.model.tasks import TASKS
from support.parsers import PARSERS
from tpu_input.command_line.jpeg2tpu import COMMANDS, main
from tpu_input.config import AUGMENTATIONS

MOST_LINES = 40  # of --help
FLAG = re.compile(r"(?:\b(?P<verb>[a-z]+) )?(?P<flag>--[a-z][\w-]*)")
# What means something only to Python: constants, names of modules, calls, pairs, arguments of a call.
PYTHON = re.compile(
    r"\b(?:None|True|False)\b|\b(?:tpu_input|beam_pipelines|estimator_app|keras|jax|np|tf|tensorflow)\.\w"
    r"|\w\(\)|\(\w+, \w+\)|\b\w+=['\"]|`\w+`"
)
# Words with underscores that are values of options, or other terms than the names of options.
TERMS = {
    *("model_dir", "first_label", "small_photos", "imagenet_resnet50", "near_duplicates", "likely_wrong_labels"),
    *(*FORMATS, *EXPORTS, *TRAINERS, *AUGMENTATIONS, "vit_s16", "vit_b16"),
    *(metric for task in TASKS.values() for metric in task.watchable(10)),
}
# Options that mean another thing in another command: a dataset or a file of predictions.
SEVERAL_METAVARS = {"--output"}
OPTIONS = {
    verb: {flag: action for action in parser._actions for flag in action.option_strings}
    for verb, parser in PARSERS.items()
}


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(*words: str) -> list[str]:
    """Returns the lines that jpeg2tpu prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(words)
    return out.getvalue().splitlines()


def listed(lines: list[str]) -> list[str]:
    """Returns the options that begin a line of help."""
    return [match[1] for line in lines if (match := re.match(r"  (?:-\w, )?(--[\w-]+)", line))]


@pytest.mark.parametrize("verb", [*COMMANDS, "completion"])
@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_help_fits_80_columns(verb: str, flag: str) -> None:
    lines = printed(verb, flag)
    assert lines[0].startswith(f"usage: jpeg2tpu {verb}")
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_is_short_and_leads_to_the_rest(verb: str) -> None:
    lines = printed(verb, "--help")
    assert len(lines) <= MOST_LINES
    flags = listed(lines)
    assert {flag for flag, action in OPTIONS[verb].items() if action.required} <= {*flags} <= {*OPTIONS[verb]}
    assert len(set(flags)) == len(flags)
    num_options = sum(bool(action.option_strings) for action in PARSERS[verb]._actions)
    (rest,) = re.findall(rf"jpeg2tpu {verb} --help-all describes all (\d+) options", " ".join(" ".join(lines).split()))
    assert int(rest) == num_options
    assert any(line.startswith(f"  jpeg2tpu {verb} ") for line in lines), "there is no example"


@pytest.mark.parametrize("verb", COMMANDS)
def test_all_options_are_in_titled_groups_once(verb: str) -> None:
    lines = printed(verb, "--help-all")
    actions = [action for action in PARSERS[verb]._actions if action.option_strings]
    assert sorted(listed(lines)) == sorted(action.option_strings[-1] for action in actions)
    for group in PARSERS[verb]._action_groups:
        if any(action.option_strings for action in group._group_actions):
            assert f"{group.title}:" in lines
            assert group.title != "options", "these options are in no group of their own"
    assert printed(verb, "--help_all") == lines
    assert "exit codes:" in lines


def metavar(action: argparse.Action) -> str:
    return action.metavar if isinstance(action.metavar, str) else "|".join(map(str, action.choices or ()))


def with_values(verb: str) -> dict[str, argparse.Action]:
    """Returns the options of a command that take a value, by name."""
    return {flag: action for flag, action in OPTIONS[verb].items() if action.nargs != 0}


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_value_has_a_name_that_says_more_than_its_option(verb: str) -> None:
    names = {flag: metavar(action) for flag, action in with_values(verb).items()}
    assert [flag for flag, name in names.items() if re.sub(r"\W", "", name).lower() in ("", flag.strip("-"))] == []


def test_the_value_of_an_option_has_the_same_name_in_every_command() -> None:
    names: dict[str, set[str]] = {}
    for verb in COMMANDS:
        for flag, action in with_values(verb).items():
            if not action.choices:
                names.setdefault(flag, set()).add(metavar(action))
    assert {flag for flag, several in names.items() if len(several) > 1} == SEVERAL_METAVARS


@pytest.mark.parametrize("verb", COMMANDS)
def test_descriptions_name_options_that_exist_and_nothing_of_python(verb: str) -> None:
    for action in PARSERS[verb]._actions:
        text = (action.help or "") % vars(action)
        assert text
        for match in FLAG.finditer(text):
            command = match["verb"] if match["verb"] in COMMANDS else verb
            assert match["flag"] in OPTIONS[command], f"{command} has no {match['flag']}: {text}"
        assert PYTHON.findall(text) == [], text
        words = set(re.findall(r"(?<![\w/-])[a-z]\w*_\w+", text)) - TERMS - set(map(str, action.choices or ()))
        assert words == set(), f"write options with --: {text}"


@pytest.mark.parametrize("verb", COMMANDS)
def test_an_everyday_option_is_described_in_two_lines_at_most(verb: str) -> None:
    lines = printed(verb, "--help")
    table = lines[lines.index("", 2) + 1 :]
    table = table[: table.index("")]
    entries = re.split(r"\n(?=  \S)", "\n".join(table))
    names_alone = re.compile(r"  \S+\n")  # a line with the option alone, as it is long
    assert [entry for entry in entries if len(names_alone.sub("", entry).splitlines()) > 2] == []


def test_help_needs_neither_tensorflow_nor_beam_nor_jax() -> None:
    code = f"""
import contextlib, sys
from tpu_input.command_line.jpeg2tpu import main
for verb in {[*COMMANDS]}:
    for flag in ("--help", "--help-all"):
        with contextlib.suppress(SystemExit):
            main([verb, flag])
print(*sys.modules, file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in result.stderr.split()}
    assert not loaded & {"tensorflow", "apache_beam", "jax", "torch", "keras"}
