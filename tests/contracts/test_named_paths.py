"""Every option that takes [NAME=]PATH reads it with tpu_input.command_line.paths: all kinds of names and paths."""

from __future__ import annotations

import argparse
import itertools
import os
import re

import pytest

from beam_pipelines.__main__ import make_parser as pipelines_parser
from beam_pipelines.conversion_flags import named_datasets, source, with_label_lists
from beam_pipelines.options import Source
from estimator_app.__main__ import make_parser as app_parser
from tpu_input.command_line.paths import NamedPath, absolute_patterns, named_path
from tpu_input.storage.foreign_shards import shard_patterns

PATHS = {
    "in": "{here}/in",
    "in/": "{here}/in",
    "./in": "{here}/in",
    "../x/in": "{above}/x/in",
    "/data/in": "/data/in",
    "~/in": "{home}/in",
    "gs://bucket/in/": "gs://bucket/in",
    "gs://bucket/date=2026/in": "gs://bucket/date=2026/in",
    "/data/date=2026/in": "/data/date=2026/in",
    "date=2026/in": "{here}/date=2026/in",
    "date=2026": "{here}/date=2026",
    "with space/é": "{here}/with space/é",
}
NAMES = ("", "train", "validation", "my-split", "2026")
# How each option of [NAME=]PATH reads one text. An option that the parsers have and this has not fails the last test.
READERS = {
    "--input": lambda text: (source(text).split, source(text).path),
    "--label_list": lambda text: _label_list(text),
    "datasets": lambda text: tuple(named_datasets([text])[0]),
    "--dataset": lambda text: tuple(named_path(absolute_patterns(text))),
}


def _label_list(text: str) -> tuple[str, str]:
    split = named_path(text).name
    (read,) = with_label_lists([Source("/in", split)], [text])
    return read.split, read.label_list


@pytest.mark.parametrize("option", READERS)
@pytest.mark.parametrize(("name", "path"), list(itertools.product(NAMES, PATHS)))
def test_an_option_takes_every_name_with_every_path(option, name, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "date=2026").mkdir()
    places = {"here": tmp_path, "above": tmp_path.parent, "home": os.path.expanduser("~")}
    expected = (name, PATHS[path].format(**places))
    assert READERS[option](f"{name}={path}" if name else path) == expected


@pytest.mark.parametrize("option", READERS)
def test_what_can_be_two_things_is_refused_with_both(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train=in").mkdir()
    assert READERS[option]("train=in") == ("", f"{tmp_path}/train=in")
    (tmp_path / "in").mkdir()
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"write \./train=in for the first, and train=\./in for the se"
    ):
        READERS[option]("train=in")
    assert READERS[option]("./train=in") == ("", f"{tmp_path}/train=in")
    assert READERS[option]("train=./in") == ("train", f"{tmp_path}/in")


def test_globs_have_splits_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "date=2026").mkdir()
    assert shard_patterns("date=2026/train-*") == {"train": f"{tmp_path}/date=2026/train-*"}
    assert shard_patterns("train=date=2026/t-*,validation=date=2026/v-*") == {
        "train": f"{tmp_path}/date=2026/t-*",
        "validation": f"{tmp_path}/date=2026/v-*",
    }
    assert shard_patterns("train=gs://b/x=1/t*, test=~/t*") == {
        "train": "gs://b/x=1/t*",
        "test": f"{os.path.expanduser('~')}/t*",
    }
    assert named_path("date=2026/train-*") == NamedPath("", f"{tmp_path}/date=2026/train-*")


def test_every_option_of_a_named_path_is_among_these():
    options = set()
    for parser in (pipelines_parser(), app_parser()):
        (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        for command in commands.choices.values():
            for action in command._actions:
                takes_name = re.match(r"\[?(SPLIT|NAME)=\]?(PATH|FILE|DATASET|GLOB)", str(action.metavar))
                if takes_name or action.type is absolute_patterns:
                    options.add(action.option_strings[0] if action.option_strings else action.dest)
    assert options == set(READERS)
