"""A dataset that is converted anew while a real process trains on it ends the training, and nothing is exported."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions, Source
from estimator_app.__main__ import main
from estimator_app.model.metrics import Metrics
from estimator_app.train import run
from estimator_app.trainers.registry import find_trainer
from support.app_fixtures import configured, keras_warns
from support.trainers import RUNNABLE
from tpu_input import read_manifest

pytestmark = keras_warns
ROOT = Path(__file__).parents[2]
CLASSES = tuple("3142567890")
# Trains; after the third step it says so, and waits for a line.
RUNNER = """
import sys
from estimator_app.runtime.tensorflow_startup import import_tensorflow
import_tensorflow(verbose=False)
from estimator_app.__main__ import main
from estimator_app.trainers.progress import Progress
add_step = Progress.add_step
def waits(self, *args):
    add_step(self, *args)
    if self.step == 3:
        print("waiting", flush=True)
        sys.stdin.readline()
Progress.add_step = waits
sys.exit(main(sys.argv[1:]))
"""


def converted(digits, output: Path, classes: tuple[str, ...]) -> None:
    options = ConvertOptions((Source(str(digits)),), str(output), labels=classes, shard_bytes=200_000, overwrite=True)
    convert(options)


@pytest.mark.parametrize("kind", RUNNABLE)
@pytest.mark.long
def test_a_training_whose_dataset_is_converted_anew_ends_in_a_line(digits, tmp_path, kind):
    dataset, model_dir = tmp_path / "dataset", tmp_path / "model"
    converted(digits, dataset, CLASSES)
    flags = ("--image_size=16", "--train_batch_size=16", "--train_steps=4", "--steps_per_eval=2", f"--trainer={kind}")
    train = ("train", f"--dataset={dataset}", f"--model_dir={model_dir}", *flags)
    command = [sys.executable, "-W", "ignore", "-c", RUNNER, *train]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as training:
        assert training.stdout
        assert "waiting\n" in iter(training.stdout.readline, "")
        converted(digits, dataset, CLASSES[::-1])
        output, errors = training.communicate("go on\n")
    assert training.returncode == 2
    assert errors.startswith(f"error: '{dataset}' was converted again during training, so this run ends: ")
    assert errors.count("\n") == 1
    assert "export" not in output
    # What was exported before is of the first dataset: its classes, in its order.
    (export,) = (model_dir / "export").rglob("saved_model.pb")
    assert (export.parent / "assets" / "classes.txt").read_text().split() == list(CLASSES)
    assert json.loads((export.parent / "assets.extra" / "metrics.json").read_text())["step"] == 2


@pytest.mark.long
@pytest.mark.parametrize("when", ["during the evaluation", "after the evaluation"])
def test_results_of_a_dataset_that_changes_around_the_last_evaluation_are_not_exported(
    few_digits, tmp_path, monkeypatch, when
):
    dataset, model_dir = tmp_path / "dataset", tmp_path / "model"
    converted(few_digits, dataset, ("0", "1", "2"))
    manifest = read_manifest(str(dataset))
    trainer = find_trainer("tf_distribute")

    def evaluate(*args: Any, **kwargs: Any) -> Metrics:
        metrics = trainer.evaluate(*args, **kwargs)
        if when == "during the evaluation":
            converted(few_digits, dataset, ("2", "1", "0"))
        return metrics

    def report(line: str) -> None:
        if line.startswith("step 1/1") and when == "after the evaluation":
            converted(few_digits, dataset, ("2", "1", "0"))

    changed = dataclasses.replace(trainer, evaluate=evaluate)
    monkeypatch.setattr(sys.modules["estimator_app.train"], "find_trainer", lambda name: changed)
    config = configured(manifest, trainer="tf_distribute", train_steps=1, train_batch_size=8, eval_batch_size=8)
    with pytest.raises(ValueError, match="was converted again during training, so this run ends"):
        run(manifest, config, str(model_dir), f"{model_dir}/export", report=report)
    exports = list((model_dir / "export").rglob("saved_model.pb"))
    assert len(exports) == (0 if when == "during the evaluation" else 1)  # that of the best, before the change
    assert not list((model_dir / "export").glob("[0-9]*"))


@pytest.mark.long
def test_an_export_says_the_classes_in_the_order_of_its_dataset(digits, tmp_path, capsys):
    converted(digits, tmp_path / "dataset", CLASSES)
    flags = ("--image_size=16", "--train_batch_size=64", "--train_steps=60", "--learning_rate=0.1", "--crop_area=0.6,1")
    paths = (f"--dataset={tmp_path}/dataset", f"--model_dir={tmp_path}/model")
    assert main(["train", *paths, *flags, "--no_flip", "--eval_crop=1"]) == 0
    images = [str(path) for label in CLASSES for path in sorted((digits / label).iterdir())[:10]]
    capsys.readouterr()
    assert main(["predict", f"--export_dir={tmp_path}/model", *images]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    right = [row["class"] == Path(row["file"]).parent.name for row in rows]
    assert len(right) == 100
    assert sum(right) > 80


@pytest.mark.long
def test_a_run_goes_on_with_the_version_that_it_began_with(digits, tmp_path, capsys):
    """With the metrics of an undisturbed run, although the dataset was extended between its two halves."""
    for label in "012":
        (tmp_path / "in" / label).mkdir(parents=True)
        for path in sorted((digits / label).iterdir())[:40]:
            (tmp_path / "in" / label / path.name).write_bytes(path.read_bytes())
    options = ConvertOptions((Source(f"{tmp_path}/in"),), f"{tmp_path}/dataset")
    convert(options)
    flags = ("--image_size=16", "--train_batch_size=16", "--steps_per_eval=2", "--trainer=tf_distribute")
    train = ("train", f"--dataset={tmp_path}/dataset", *flags, "--decay_steps=4")
    assert main([*train, f"--model_dir={tmp_path}/whole", "--train_steps=4"]) == 0
    assert main([*train, f"--model_dir={tmp_path}/model", "--train_steps=2"]) == 0
    for label in "012":
        for path in sorted((digits / label).iterdir())[40:80]:
            (tmp_path / "in" / label / path.name).write_bytes(path.read_bytes())
    assert convert(dataclasses.replace(options, extend=True)).manifest.version == 2
    capsys.readouterr()
    assert main([*train, f"--model_dir={tmp_path}/model", "--train_steps=4"]) == 0
    assert "the run continues with version 1 of 2" in capsys.readouterr().out
    assert main([*train, f"--model_dir={tmp_path}/other", "--train_steps=4", "--version=1"]) == 0
    metrics = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("whole", "model", "other")]
    assert metrics[0] | {"export": ""} == metrics[1] | {"export": ""} == metrics[2] | {"export": ""}
    assert main([*train, f"--model_dir={tmp_path}/none", "--train_steps=4", "--version=3"]) == 2
    assert "has no version 3; it has 1 to 2" in capsys.readouterr().err
    assert main(["evaluate", f"--model_dir={tmp_path}/model"]) == 0
    assert main(["evaluate", f"--model_dir={tmp_path}/model", f"--dataset={tmp_path}/dataset"]) == 0
    first, second = capsys.readouterr().out.strip().splitlines()[-2:]
    assert first != second  # of the version of the run, and of all images
