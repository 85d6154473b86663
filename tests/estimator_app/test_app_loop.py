"""What the loop decides, and that a run which is killed between any two of its writes decides the same again."""

from __future__ import annotations

import dataclasses
import importlib
import json
import threading
from pathlib import Path

import pytest
import tensorflow as tf

pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ends with TensorFlow 2.15")

from beam_pipelines.verify import verify
from estimator_app.export import export_model
from estimator_app.model_dir.exports import read_exports
from estimator_app.model_dir.history import best, read_history, write_history
from estimator_app.model_dir.lock import locked
from estimator_app.model_dir.run_files import read_finished
from estimator_app.trainers.tpu_estimator import train as estimator_training
from estimator_app.trainers.tpu_estimator.model_fn import make_estimator
from support.app_fixtures import configured, keras_warns
from tpu_input import read_manifest
from tpu_input.dataset_format import records as record_format

training = importlib.import_module("estimator_app.train")
run_module = importlib.import_module("estimator_app.run")

pytestmark = keras_warns
# Too small a rate to learn: soon no evaluation is better than those before it.
STALE = {"steps_per_eval": 2, "early_stop_patience": 2, "learning_rate": 1e-12, "keep_exports": 1}


def train(manifest, model_dir, report=None, **options):
    config = configured(manifest, **options)
    return training.run(manifest, config, str(model_dir), f"{model_dir}/export", report=report or (lambda line: None))


def evaluated(model_dir) -> list[int]:
    return [row.step for row in read_history(str(model_dir))]


@pytest.mark.long
def test_a_run_that_gets_no_better_stops_early_and_a_killed_one_at_the_same_step(digits_dataset, tmp_path):
    def kill(line):
        if line.startswith("step 4/20"):
            raise KeyboardInterrupt

    straight, killed = tmp_path / "straight", tmp_path / "killed"
    lines: list[str] = []
    step = train(digits_dataset, straight, lines.append, **STALE).metrics.step
    assert step < 20
    early = "stopped early: the last 2 evaluations did not improve accuracy; to continue, rerun the command"
    assert any(line.startswith(early) for line in lines)
    with pytest.raises(KeyboardInterrupt):
        train(digits_dataset, killed, kill, **STALE)
    assert train(digits_dataset, killed, **STALE).metrics.step == step
    assert evaluated(killed) == evaluated(straight) == list(range(2, step + 1, 2))
    lines.clear()
    train(digits_dataset, killed, lines.append, **STALE)
    assert lines[0].startswith(f"nothing to train: step {step} is done")
    assert lines[1].startswith(early)
    exports = read_exports(str(killed))
    exported_steps = {kind: [entry["step"] for entry in exports[kind]] for kind in exports}
    highest = best(read_history(str(killed)), "accuracy")
    assert highest
    assert exported_steps == {"best": [highest.step], "last": [step]}
    # More patience goes on, and the export of the step before, which was this run's, gives way.
    assert train(digits_dataset, killed, **STALE | {"early_stop_patience": 3}).metrics.step > step
    assert len([path for path in (killed / "export").iterdir() if path.name.isdigit()]) == 1


@pytest.mark.long
def test_a_run_killed_between_its_best_export_and_its_history_evaluates_again(digits_dataset, tmp_path, monkeypatch):
    def kill(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "write_history", kill)
    with pytest.raises(KeyboardInterrupt):
        train(digits_dataset, tmp_path, steps_per_eval=2, train_steps=4)
    monkeypatch.setattr(run_module, "write_history", write_history)
    finished = read_finished(str(tmp_path))
    assert finished
    assert (evaluated(tmp_path), finished.export) == ([], "")
    train(digits_dataset, tmp_path, steps_per_eval=2, train_steps=4)
    assert evaluated(tmp_path) == [2, 4]
    steps = [entry["step"] for entry in read_exports(str(tmp_path))["best"]]
    assert steps == sorted(set(steps))


@pytest.mark.long
def test_weights_that_the_last_step_before_an_evaluation_ruins_are_said_and_never_exported(digits_dataset, tmp_path):
    for _ in range(2):  # the same command again says the same
        with pytest.raises(
            ValueError, match=r"is NaN or infinite at step 2, with a learning rate of .*; use a smaller --"
        ):
            train(digits_dataset, tmp_path, train_steps=2, steps_per_eval=2, learning_rate=1e30)
    assert read_finished(str(tmp_path)) is None
    assert not list(tmp_path.glob("export/**/saved_model.pb"))


TRAINERS = pytest.mark.parametrize("kind", ["tpu_estimator", "tf_distribute"])


@TRAINERS
@pytest.mark.long
def test_another_split_in_between_leaves_one_row_a_step_and_patience_alone(digits_dataset, tmp_path, kind):
    options = {"trainer": kind, "decay_steps": 20, "early_stop_patience": 2, "steps_per_eval": 2}
    for split in ("validation", "train", "validation", "train", "validation"):
        train(digits_dataset, tmp_path, train_steps=2, split=split, **options)
    assert [(row.step, row.split) for row in read_history(str(tmp_path))] == [(2, "train"), (2, "validation")]
    assert train(digits_dataset, tmp_path, train_steps=4, **options).metrics.step == 4


@TRAINERS
@pytest.mark.long
def test_a_complete_run_is_exported_where_it_is_asked_for_and_earlier_exports_stay(digits_dataset, tmp_path, kind):
    config = configured(digits_dataset, trainer=kind, train_steps=1, keep_exports=1)
    exports = []
    for name in ("a", "b", "b", "a"):
        lines: list[str] = []
        exports.append(
            training.run(digits_dataset, config, str(tmp_path), str(tmp_path / name), report=lines.append).export
        )
        assert lines[-1] == f"export: {exports[-1]}"
    assert [Path(path).parent.name for path in exports] == ["a", "b", "b", "a"]
    assert (exports[0], exports[1]) == (exports[3], exports[2])
    assert all((Path(path) / "saved_model.pb").exists() for path in exports)


@pytest.mark.long
def test_exports_that_this_run_has_not_made_are_never_removed(digits_dataset, tmp_path):
    foreign = tmp_path / "export" / "1"
    foreign.mkdir(parents=True)
    (tmp_path / "model").mkdir()
    for train_steps in (1, 2):
        config = configured(digits_dataset, train_steps=train_steps, decay_steps=2, keep_exports=1)
        training.run(
            digits_dataset, config, str(tmp_path / "model"), str(tmp_path / "export"), report=lambda line: None
        )
    assert foreign.is_dir()
    assert len(list((tmp_path / "export").glob("1?*"))) == 1


@pytest.mark.long
def test_a_model_dir_holds_what_a_person_and_tensorboard_look_at(digits_dataset, tmp_path):
    train(digits_dataset, tmp_path, train_steps=4, steps_per_eval=2)
    rows = read_history(str(tmp_path))
    assert {"accuracy", "loss", "learning_rate", "train_loss", "train_seconds", "eval_seconds"} <= rows[0].values.keys()
    assert rows[0].values["images_per_second"] > 0
    assert 0 <= rows[0].values["input_wait"] < 1
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    files = [str(path) for path in (tmp_path / "pictures").iterdir()]
    events = [event for path in files for event in tf.compat.v1.train.summary_iterator(path)]
    tags = {value.tag for event in events for value in event.summary.value}
    assert {"inputs", "curves"} <= tags
    assert "command" in json.loads((tmp_path / "config.json").read_text())


def test_a_second_training_is_told_of_the_first(digits_dataset, tmp_path):
    with (
        locked(str(tmp_path)),
        pytest.raises(ValueError, match=f"another process is training in '{tmp_path}' and holds"),
    ):
        train(digits_dataset, tmp_path)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.long
def test_a_checkpoint_of_another_number_of_classes_is_said_before_tensorflow_fails(digits_dataset, tmp_path):
    train(digits_dataset, tmp_path, train_steps=1)
    two = dataclasses.replace(configured(digits_dataset, train_steps=2), classes=("a", "b"))
    estimator = make_estimator(two, str(tmp_path))  # as if one run's checkpoints had been copied to another's config
    message = (
        r"model.ckpt-1' has \d+_\w+ with shape \[(128, )?10\], not \[(128, )?2\]: it is not of network 'cnn' with 2"
    )
    with pytest.raises(ValueError, match=message):
        estimator_training.train(estimator, digits_dataset, two, 1, 2, threading.Event())
    with pytest.raises(ValueError, match=message):
        estimator_training.evaluate(estimator, dataclasses.replace(digits_dataset, classes=("a", "b")), two)


@pytest.mark.parametrize("where", ["training", "evaluation"])
@pytest.mark.long
def test_an_image_that_only_the_decoder_refuses_is_named(dataset_copy, tmp_path, where):
    split = "validation" if where == "evaluation" else "train"
    for path in dataset_copy.glob(f"{split}-*.tfrecord"):
        with path.open("rb") as file:
            records = [record_format.decode(payload) for _, payload in record_format.read_frames(file)]
        # Begins and ends as a JPEG does.
        records[0] = records[0]._replace(encoded=b"\xff\xd8\xff" + bytes(200) + b"\xff\xd9")
        path.write_bytes(b"".join(record_format.frame(record_format.encode(record)) for record in records))
    steps = 25 if where == "training" else 1  # of 64 images: an epoch
    place = f"record 0 of '{dataset_copy}/{split}-00000-of-"
    with pytest.raises(ValueError, match=rf"^{place}.*' has an image .* \(Invalid JPEG data, size 205\); find all"):
        train(read_manifest(dataset_copy), tmp_path / "model", train_steps=steps, train_batch_size=64)
    assert any(f"{split}-00000" in problem for problem in verify(str(dataset_copy)).problems)


@pytest.mark.long
def test_the_last_step_s_export_is_the_best_s_copied_where_it_is_the_best(digits_dataset, tmp_path, monkeypatch):
    calls = []

    def make(*args, **options):
        calls.append(args)
        return export_model(*args, **options)

    monkeypatch.setattr(run_module, "export_model", make)
    finished = train(digits_dataset, tmp_path)
    (best,) = (tmp_path / "export" / "best").iterdir()
    assert len(calls) == 1

    def read(folder):
        return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}

    assert read(finished.export) == read(best)
    assert not list(tmp_path.rglob("temp-*"))
