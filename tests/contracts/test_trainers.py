"""Contract over trainers and the commands that open a run: its files, its folder, and what it calls and prints."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import estimator_app
from beam_pipelines import ConvertOptions, Source, convert
from estimator_app.saved_model.find import find_export
from estimator_app.train import open_run
from support import small_network
from support.app_commands import FLAGS, refused, run
from support.app_fixtures import OPTIONS, keras_warns
from support.trainers import RUNNABLE
from tpu_input import read_manifest

pytestmark = keras_warns
SMALL: dict[str, Any] = OPTIONS | {
    "image_size": 4,
    "train_batch_size": 8,
    "steps_per_eval": 2,
    "network": small_network.NAME,
}


class Calls(estimator_app.Callback):
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def on_step(self, step: int, loss: float) -> None:
        self.events.append(("step", step))

    def on_checkpoint(self, step: int, path: str) -> None:
        self.events.append(("checkpoint", step))

    def on_evaluation(self, metrics: estimator_app.Metrics) -> None:
        self.events.append(("evaluation", metrics.step))


@pytest.mark.parametrize("trainer", RUNNABLE)
def test_each_call_is_made_once_and_a_moved_model_dir_goes_on(digits_dataset, tmp_path, trainer):
    lines: list[str] = []

    def train(folder: Path, steps: int) -> tuple[str, list[tuple[str, int]]]:
        calls = Calls()
        options: dict[str, Any] = SMALL | {
            "train_steps": steps,
            "keep_exports": 1,
            "save_seconds": 0,
            "trainer": trainer,
        }
        finished = estimator_app.train(digits_dataset, str(folder), callbacks=[calls], report=lines.append, **options)
        assert finished
        return finished.export, calls.events

    def expected(first: int, last: int) -> list[tuple[str, int]]:
        ends = [(name, step) for step in range(first, last) for name in ("step", "checkpoint", "evaluation")]
        return [(name, step) for name, step in ends if name == "step" or not step % 2]

    _, calls = train(tmp_path / "before", 4)
    assert calls == [("checkpoint", 0), *expected(1, 5)]
    (tmp_path / "before").rename(tmp_path / "after")
    lines.clear()
    export, calls = train(tmp_path / "after", 6)
    assert calls == expected(5, 7)
    assert not (tmp_path / "before").exists()
    assert not [line for line in lines if f"{tmp_path}/before" in line]
    exports = [path for path in (tmp_path / "after/export").iterdir() if path.name.isdigit()]
    assert [str(path) for path in exports] == [export]
    assert len(list((tmp_path / "after/export/best").iterdir())) == 1


PATTERN = "lr[0.1]"


@pytest.mark.parametrize("name", [PATTERN, "a\\b"])
@pytest.mark.parametrize("flag", ["--model_dir", "--export_dir"])
def test_a_folder_from_which_tensorflow_cannot_read_back_is_refused_before_the_first_step(
    capsys, digits_dataset, tmp_path, flag, name
):
    flags = {"--model_dir": tmp_path / "m", "--export_dir": tmp_path / "e"} | {flag: tmp_path / name}
    message = refused(
        capsys, "train", f"--dataset={digits_dataset.path}", *FLAGS, *(f"{name}={path}" for name, path in flags.items())
    )
    assert repr(str(tmp_path / name)) in message
    assert "choose a path without [ and \\" in message
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["watch", "evaluate", "export", "predict"])
def test_every_command_refuses_a_run_that_was_moved_into_one(capsys, finished, digits, tmp_path, command):
    folder = shutil.copytree(Path(finished.export).parents[1], tmp_path / PATTERN)
    flag = "--export_dir" if command == "predict" else "--model_dir"
    files = [str(min((digits / "3").iterdir()))] if command == "predict" else []
    assert "choose a path without [ and \\" in refused(capsys, command, f"{flag}={folder}", *files)


def test_train_and_preflight_open_the_version_that_a_run_began_with(few_digits, digits, tmp_path):
    options = ConvertOptions(sources=(Source(str(few_digits)),), output=str(tmp_path / "out"))
    convert(options)
    first = read_manifest(options.output)
    small: dict[str, Any] = SMALL | {"train_steps": 2, "split": "train"}
    model_dir = str(tmp_path / "m")
    estimator_app.train(options.output, model_dir, report=lambda line: None, **small)
    shutil.copy(sorted((digits / "0").iterdir())[12], few_digits / "0")
    convert(dataclasses.replace(options, extend=True))
    opened = open_run(options.output, model_dir, 1000, small)
    assert (opened.manifest.fingerprint, opened.is_extended) == (first.fingerprint, True)
    new = open_run(options.output, None, 1000, small)
    assert (new.manifest.fingerprint, new.is_extended) == (read_manifest(options.output).fingerprint, False)


def test_the_command_that_a_training_prints_for_its_watcher_runs(capsys, digits_dataset, tmp_path):
    folder = tmp_path / "my model"
    flags = (
        f"--dataset={digits_dataset.path}",
        f"--model_dir={folder}",
        "--image_size=4",
        f"--network={small_network.NAME}",
    )
    code, out, _ = run(capsys, "train", *flags, "--train_steps=2", "--steps_per_eval=2", "--eval=watch")
    assert code == 0
    command = shlex.split(out.splitlines()[-1].partition("to evaluate and export: jpeg2tpu ")[2])
    code, out, _ = run(capsys, *command)
    assert code == 0
    assert find_export(str(folder)).startswith(f"{folder}/export/")
