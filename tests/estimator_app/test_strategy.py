"""--trainer=tf_distribute: what --trainer=tpu_estimator does, on tf.distribute, under every TensorFlow 2."""

from __future__ import annotations

import dataclasses
import importlib
import json
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.config import TrainConfig, default_trainer
from estimator_app.evaluate import evaluate_checkpoint, evaluate_export
from estimator_app.model_dir.checkpoints import VARIABLE_SUFFIX
from estimator_app.model_dir.history import read_history
from estimator_app.saved_model.classifier import load_classifier
from estimator_app.saved_model.find import find_checkpoint, read_origin
from estimator_app.trainers.interruption import Stopped
from estimator_app.trainers.registry import find_trainer
from estimator_app.trainers.tf_distribute import train as strategy_training
from estimator_app.trainers.tf_distribute.state import make_state
from support.app_fixtures import OPTIONS, configured, happening, held_out_records, keras_warns, step_losses

training = importlib.import_module("estimator_app.train")

pytestmark = keras_warns
HAS_ESTIMATOR = default_trainer() == "tpu_estimator"


def train(manifest, model_dir, lines=None, **options):
    config = configured(manifest, trainer="tf_distribute", **options)
    report = (lines if lines is not None else []).append
    return training.run(manifest, config, str(model_dir), f"{model_dir}/export", report=report)


def weights(model_dir) -> dict[str, np.ndarray]:
    """Returns all variables of the last checkpoint: TensorFlow's own count of saves is none."""
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    names = [name for name in checkpoint.get_variable_to_shape_map() if name.endswith(VARIABLE_SUFFIX)]
    return {name: checkpoint.get_tensor(name) for name in names if not name.startswith("save_counter")}


def assert_same_weights(model_dir, other) -> None:
    actual, expected = weights(model_dir), weights(other)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


@pytest.fixture(scope="module")
def straight(digits_dataset, tmp_path_factory):
    """The model_dir of a run that nothing stopped, its batches laid out for a TPU; not to be changed."""
    model_dir = tmp_path_factory.mktemp("straight")
    train(digits_dataset, model_dir, layout="HWCN", steps_per_eval=10, summary_steps=5)
    return model_dir


@pytest.mark.skipif(not HAS_ESTIMATOR, reason="TPUEstimator ends with TensorFlow 2.15")
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.long
@pytest.mark.core
def test_the_first_twenty_losses_of_both_loops_agree(digits_dataset, tmp_path, monkeypatch, optimizer):
    losses = step_losses(monkeypatch)
    rate = 0.05 if optimizer == "momentum" else 0.001
    for name in ("tpu_estimator", "tf_distribute"):
        config = configured(digits_dataset, trainer=name, optimizer=optimizer, learning_rate=rate, weight_decay=0.01)
        training.run(
            digits_dataset, config, str(tmp_path / name), f"{tmp_path}/{name}/export", report=lambda line: None
        )
    assert len(losses) == 40
    np.testing.assert_allclose(losses[:20], losses[20:], atol=1e-3)
    estimator_metrics, strategy_metrics = (
        read_history(str(tmp_path / name))[-1].values for name in ("tpu_estimator", "tf_distribute")
    )
    assert estimator_metrics.keys() == strategy_metrics.keys()
    assert strategy_metrics["loss"] == pytest.approx(estimator_metrics["loss"], abs=1e-3)


@pytest.mark.long
@pytest.mark.core
def test_a_run_that_is_killed_stopped_out_of_disk_and_extended_ends_with_the_same_weights(digits_dataset, tmp_path):
    options = {"optimizer": "adamw", "learning_rate": 0.01, "decay_steps": 20, "steps_per_eval": 12, "save_steps": 4}
    train(digits_dataset, tmp_path / "straight", **options)
    flags = [f"--{name}={value}" for name, value in options.items()]
    flags += [
        f"--dataset={digits_dataset.path}",
        f"--model_dir={tmp_path}/model",
        "--train_steps=16",
        "--trainer=tf_distribute",
    ]
    flags += ["--image_size=16", "--train_batch_size=16", "--crop_area=0.6,1", "--no_flip"]
    command = ["train", *flags]
    full = happening(command, "FULL", 3)
    assert full.returncode == 2
    assert weights(tmp_path / "model")[f"global_step{VARIABLE_SUFFIX}"] == 0
    (line,) = full.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path}/model/model.ckpt-4")
    assert line.endswith(
        "File too large; raise the limit of file sizes (ulimit -f), or use a file system without it; then rerun "
        "the same command to resume from the last checkpoint"
    )
    for event, step, code, saved in [("SIGKILL", 6, -signal.SIGKILL, 4), ("SIGTERM", 7, 143, 7)]:
        process = happening(command, event, step)
        assert process.returncode == code, process.stderr
        assert weights(tmp_path / "model")[f"global_step{VARIABLE_SUFFIX}"] == saved
    assert process.stdout.startswith("resuming cnn at step 4/16")
    go_on = f"resume with: jpeg2tpu train {' '.join(flags)}"
    assert process.stdout.splitlines()[-1] == f"stopped and saved at step 7/16; {go_on}"
    for train_steps in (16, 20):
        assert train(digits_dataset, tmp_path / "model", train_steps=train_steps, **options).metrics.step == train_steps
    assert_same_weights(tmp_path / "model", tmp_path / "straight")


def test_a_finished_run_holds_what_the_other_loop_leaves(digits_dataset, straight):
    names = {path.name for path in straight.iterdir()}
    assert {"config.json", "history.csv", "metrics.json", "exports.json", "curves.png", "confusion.png"} <= names
    assert {"checkpoint", "model.ckpt-0.index", "model.ckpt-20.index", "pictures", "export", "eval"} <= names
    assert json.loads((straight / "config.json").read_text())["trainer"] == "tf_distribute"
    rows = read_history(str(straight))
    assert [row.step for row in rows] == [10, 20]
    assert 0 <= rows[0].values["input_wait"] < 1
    steps_by_tag: dict[str, list[int]] = {}
    for path in sorted(straight.glob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                steps_by_tag.setdefault(value.tag, []).append(event.step)
    for tag in ("train/loss", "train/learning_rate", "train/epoch", "examples/sec"):
        assert sorted(steps_by_tag[tag]) == [5, 10, 15, 20], tag
    lines: list[str] = []
    train(digits_dataset, straight, lines, layout="HWCN", steps_per_eval=10, summary_steps=5)
    assert lines[0].startswith("nothing to train: step 20 is done")


@pytest.mark.parametrize("batch_size", [7, 1000])
def test_every_example_counts_once_whatever_the_batch(digits_dataset, straight, batch_size):
    config = configured(digits_dataset, trainer="tf_distribute", layout="HWCN", eval_batch_size=batch_size)
    metrics = evaluate_checkpoint(config, digits_dataset, find_checkpoint(str(straight)))
    (row,) = (row for row in read_history(str(straight)) if row.step == 20)
    assert (metrics.step, metrics.num_examples) == (20, digits_dataset.split("validation").num_examples)
    assert metrics.accuracy == pytest.approx(row.values["accuracy"])
    assert metrics.loss == pytest.approx(row.values["loss"], abs=1e-5)


def test_an_export_says_of_files_what_evaluation_says_of_records(digits_dataset, straight):
    classifier = load_classifier(f"{straight}/export")
    config, step = read_origin(classifier.path)
    assert (config.trainer, step, classifier.classes) == ("tf_distribute", 20, digits_dataset.classes)
    assert (Path(classifier.path) / "assets.extra" / "tf_serving_warmup_requests").is_file()
    record = held_out_records(digits_dataset)[0]
    outputs = classifier.signature(image_bytes=tf.constant([record.encoded]))
    assert {name: tensor.dtype for name, tensor in outputs.items()} == {
        "probabilities": tf.float32,
        "label": tf.int64,
        "class": tf.string,
    }
    assert outputs["class"][0].numpy().decode() == digits_dataset.classes[int(outputs["label"][0])]
    metrics = evaluate_export(classifier, digits_dataset, "validation", 100)
    (row,) = (row for row in read_history(str(straight)) if row.step == 20)
    assert metrics.loss == pytest.approx(row.values["loss"], abs=1e-4)


def test_a_loss_that_is_no_number_says_where_and_at_what_rate(digits_dataset, tmp_path):
    with pytest.raises(
        ValueError, match=r"is NaN or infinite at step \d, with a learning rate of \S+ \(its peak is 1e\+30\)"
    ):
        train(digits_dataset, tmp_path, learning_rate=1e30)


@pytest.mark.long
def test_weights_that_the_last_step_before_an_evaluation_ruins_are_said_and_never_exported(digits_dataset, tmp_path):
    diverging = {"train_steps": 2, "steps_per_eval": 2, "learning_rate": 1e30}
    for _ in range(2):  # the same command again says the same
        with pytest.raises(
            ValueError, match=r"is NaN or infinite at step 2, with a learning rate of .*; use a smaller --"
        ):
            train(digits_dataset, tmp_path, **diverging)
    assert not (tmp_path / "metrics.json").exists()
    assert not list(tmp_path.glob("export/**/saved_model.pb"))


def test_a_stop_that_comes_while_a_step_is_looked_at_loses_no_step(digits_dataset, tmp_path):
    class Late(threading.Event):
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            if self.looks == 2:  # set between the first look after a step and the next
                self.set()
            return super().is_set()

    config = configured(digits_dataset, trainer="tf_distribute")
    trainer, stop = make_state(config, str(tmp_path)), Late()
    with pytest.raises(Stopped):
        strategy_training.train(trainer, digits_dataset, config, 0, 5, stop)
    saved = max(int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("*.index"))
    assert saved == trainer.global_step.numpy()


def test_checkpoints_of_other_classes_and_of_the_other_loop_are_refused_in_a_line(digits_dataset, straight, tmp_path):
    two = dataclasses.replace(configured(digits_dataset, trainer="tf_distribute", layout="HWCN"), classes=("a", "b"))
    with pytest.raises(
        ValueError, match=r"has weights/\d+_(bias|kernel)\S* with shape .*: it is not of network 'cnn' with 2 cl"
    ):
        make_state(two, str(straight)).restore(find_checkpoint(str(straight)))
    config = configured(digits_dataset, trainer="tf_distribute", layout="HWCN")
    assert dataclasses.replace(config, trainer="tpu_estimator").differences(config) == [
        "--trainer is 'tpu_estimator', not 'tf_distribute'"
    ]


def test_a_run_goes_on_with_the_loop_that_it_began_with(digits_dataset):
    earlier = configured(digits_dataset, trainer="tf_distribute")
    again = TrainConfig.of(digits_dataset, OPTIONS | {"dataset": digits_dataset.path}, earlier=earlier)
    assert again.trainer == "tf_distribute"
    assert configured(digits_dataset).trainer == default_trainer()


def test_a_run_says_on_which_devices(digits_dataset, tmp_path):
    lines: list[str] = []
    train(digits_dataset, tmp_path, lines, train_steps=1, steps_per_eval=1)
    num_devices = len(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU"))
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    assert lines[0].endswith(f" classes, on {num_devices} {kind}")


def test_a_batch_that_does_not_divide_by_the_replicas_is_refused(digits_dataset, tmp_path):
    class Two:
        num_replicas_in_sync = 2

    trainer = make_state(configured(digits_dataset, trainer="tf_distribute"), str(tmp_path))
    with pytest.raises(ValueError, match="batch_size must be a multiple of the number of replicas, 2, got 15"):
        dataclasses.replace(trainer, strategy=Two()).batches(lambda params: None, 15)


def test_a_graph_for_tpus_is_refused_where_there_is_none(digits_dataset, straight, tmp_path):
    config = configured(digits_dataset, trainer="tf_distribute")
    with pytest.raises(ValueError, match="--export_to_tpu needs a run with --trainer=tpu_estimator"):
        find_trainer("tf_distribute").save(config, find_checkpoint(str(straight)), str(tmp_path), "", {}, True)


@pytest.mark.long
def test_sixty_steps_learn_most_digits(digits_dataset, tmp_path):
    options = {"train_steps": 60, "train_batch_size": 64, "learning_rate": 0.1, "eval_crop": 1.0, "steps_per_eval": 60}
    assert train(digits_dataset, tmp_path, **options, precision="bfloat16").metrics.accuracy > 0.8


def test_a_loop_saves_at_once_each_save_steps_and_at_its_end(digits_dataset, tmp_path):
    config = configured(digits_dataset, trainer="tf_distribute", save_steps=2)
    strategy_training.train(make_state(config, str(tmp_path)), digits_dataset, config, 0, 5, threading.Event())
    assert sorted(path.stem for path in tmp_path.glob("*.index")) == [f"model.ckpt-{step}" for step in (0, 2, 4, 5)]
