"""A local path that is mistyped ends every command with one line, before TensorFlow or Beam is imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.parsers import PARSERS
from tpu_input.command_line.jpeg2tpu import COMMANDS

ROOT = Path(__file__).parents[2]

# Arguments of every command that reads a path; MISSING does not exist, the others do.
MISSING = {
    "convert": [
        "--input=MISSING --output=out",
        "--input=MISSING.csv --output=out",
        "--input=MISSING --record=imagenet --output=out",
        "--input=MISSING/train-* --record=imagenet --output=out",
        "--input=EMPTY --label_list=MISSING --output=out",
        "--input=LIST.csv --image_folder=MISSING --output=out",
        "--input=LIST.csv --label_names=MISSING --output=out",
        "--input=EMPTY --labels=MISSING --output=out",
    ],
    "verify": ["MISSING", "MISSING --repair"],
    "repair": ["MISSING"],
    "relabel": ["MISSING --labels=LIST.csv --output=out", "DATASET --labels=MISSING --output=out"],
    "merge": ["MISSING DATASET --output=out", "a=DATASET b=MISSING --output=out"],
    "filter": [
        "MISSING --without_keys=LIST.csv --output=out",
        "DATASET --without_keys=MISSING --output=out",
        "DATASET --only_keys=MISSING --output=out",
        "DATASET --only_classes=MISSING --output=out",
        "DATASET --without_classes=MISSING --output=out",
        "DATASET --near_duplicates=MISSING --output=out",
    ],
    "split": ["MISSING --folds=3 --output=out", "DATASET --folds=3 --near_duplicates=MISSING --output=out"],
    "reshard": ["MISSING --shard_size=1MB --output=out"],
    "export-dataset": ["MISSING --format=parquet --output=out"],
    "diff": ["MISSING DATASET", "DATASET MISSING"],
    "report": [
        "MISSING",
        "MISSING --pairs=pairs.parquet",
        "DATASET --predictions=MISSING",
        "DATASET --sources=MISSING",
    ],
    "benchmark": ["MISSING"],
    "idx": ["MISSING"],
    "tfds": ["MISSING"],
    "train": [
        "--dataset=MISSING --model_dir=m",
        "--dataset=MISSING/train-* --record=imagenet --model_dir=m",
        "--dataset=EMPTY/train-* --record=imagenet --model_dir=m",
        "--dataset=DATASET --model_dir=m --config=MISSING",
        "--dataset=DATASET --model_dir=m --init_from=MISSING",
        "--dataset=LIS* --record=imagenet --classes=MISSING --model_dir=m",
    ],
    "evaluate": [
        "--model_dir=MISSING",
        "--export_dir=MISSING",
        "--model_dir=EMPTY --dataset=MISSING",
        "--model_dir=EMPTY --checkpoint=MISSING",
    ],
    "export": ["--model_dir=MISSING", "--model_dir=EMPTY --checkpoint=MISSING"],
    "predict": [
        "--export_dir=MISSING LIST.csv",
        "--export_dir=EMPTY MISSING.jpg",
        "--export_dir=EMPTY MISSING/*.jpg MISSING.jpg",
        "--export_dir=MISSING --dataset=DATASET --output=p.parquet",
        "--model_dir=MISSING --dataset=DATASET --output=p.parquet",
        "--export_dir=EMPTY --dataset=MISSING --output=p.parquet",
    ],
    "folds": [
        "--dataset=MISSING --model_dir=m --output=p.parquet",
        "--dataset=DATASET --model_dir=m --output=p.parquet --init_from=MISSING",
        "--dataset=LIS* --record=imagenet --classes=MISSING --model_dir=m --output=p.parquet",
    ],
    "preflight": [
        "--dataset=MISSING --topology=v5e:2x2",
        "--dataset=DATASET --topology=v5e:2x2 --compiler=MISSING",
        "--dataset=DATASET --topology=v5e:2x2 --init_from=MISSING",
        "--dataset=LIS* --record=imagenet --classes=MISSING --topology=v5e:2x2",
    ],
}
# sample, dispatcher and worker read no path; a watcher waits for a run that has not begun.
WITHOUT = {"sample", "dispatcher", "worker", "watch"}
# Runs commands one after another, and prints a line for each: its code, stderr, and what is imported by then.
PROGRAM = """
import contextlib, io, json, sys
from tpu_input.command_line.jpeg2tpu import main
for argv in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(argv)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue(), sorted({"tensorflow", "apache_beam"} & {*sys.modules})]))
"""


# Options with a path that a command writes, or that need not exist; --shard is a name, --ignore a pattern.
OUTPUTS = {"--log_file", "--output", "--pairs", "--shard", "--ignore"}
OUTPUTS |= {f"{command} --model_dir" for command in ("train", "folds", "preflight")}
OUTPUTS |= {f"{command} --export_dir" for command in ("train", "export", "preflight")}
PATH = re.compile(r"PATH|FILE|FOLDER|DATASET|GLOB|DIR|MODEL|RUN|CHECKPOINT|IMAGE|PYTHON")


def test_the_table_has_every_command():
    assert {*MISSING} | WITHOUT == {*COMMANDS}


@pytest.mark.parametrize("command", MISSING)
def test_the_table_has_every_option_of_a_path(command):
    options = {
        action.option_strings[-1]
        for action in PARSERS[command]._actions
        if action.option_strings and isinstance(action.metavar, str) and PATH.search(action.metavar)
    }
    options -= OUTPUTS | {option for option in options if f"{command} {option}" in OUTPUTS}
    assert not {option for option in options if not any(f"{option}=MISSING" in line for line in MISSING[command])}


@pytest.mark.parametrize("command", MISSING)
def test_a_missing_path_is_one_line_before_a_framework_is_loaded(command, digits_dataset, tmp_path):
    (tmp_path / "DATASET").symlink_to(digits_dataset.path)
    (tmp_path / "MISSING\udcff").symlink_to(digits_dataset.path)  # it is there, but its name is not UTF-8
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "LIST.csv").write_text("image,label\nMISSING.jpg,0\n")
    commands = [[command, *arguments.split()] for arguments in MISSING[command]]
    # The path of a program may have any name.
    paths = [words for words in commands if not any(word.startswith("--compiler=") for word in words)]
    commands += [[word.replace("MISSING", "MISSING\udcff") for word in words] for words in paths]
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(commands)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    for argv, line in zip(commands, result.stdout.splitlines(), strict=True):
        code, message, imported = json.loads(line)
        assert (code, imported) == (2, []), (argv, message)
        assert message.startswith("error: "), argv
        assert message.count("\n") == 1, argv
        assert "MISSING" in message or "EMPTY/train-*" in message, argv
    assert sorted(path.name for path in tmp_path.iterdir()) == ["DATASET", "EMPTY", "LIST.csv", "MISSING\udcff"]
