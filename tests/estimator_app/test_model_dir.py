"""config.json and metrics.json: what later commands read instead of asking, and what keeps two runs apart."""

from __future__ import annotations

import dataclasses
import json

import pytest
import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model.metrics import Metrics
from estimator_app.model_dir.run_files import (
    Finished,
    read_command,
    read_config,
    read_finished,
    read_started,
    remove_unfinished,
    write_finished,
    write_run_config,
)
from support.app_fixtures import OPTIONS
from tpu_input import InputConfig

CONFIG = TrainConfig(
    dataset="/data/digits",
    fingerprint="f1",
    classes=("no", "ünï"),
    train_examples=40,
    class_counts=(30, 10),
    network="cnn",
    input=InputConfig(16, crop_area=(0.5, 1.0)),
    split="validation",
    train_batch_size=8,
    eval_batch_size=8,
    train_steps=20,
    steps_per_eval=10,
    iterations_per_loop=5,
    learning_rate=0.1,
    warmup_steps=1,
    decay_steps=20,
    decay="cosine",
    weight_decay=0.0,
    trainer="tpu_estimator",
)


def begin(model_dir, step=1) -> None:
    tf.train.Checkpoint(global_step=tf.Variable(step)).save(f"{model_dir}/model.ckpt")


def changed(**fields) -> TrainConfig:
    return dataclasses.replace(CONFIG, **fields)


def test_what_was_told_is_read_back_with_the_versions_beside_it(tmp_path):
    write_run_config(str(tmp_path / "new" / "model"), CONFIG)
    assert read_config(str(tmp_path / "new" / "model")) == CONFIG
    fields = json.loads((tmp_path / "new" / "model" / "config.json").read_text())
    assert set(fields["versions"]) == {"python", "tensorflow", "jpeg2tpu"}
    assert [path.name for path in (tmp_path / "new" / "model").iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "fields",
    [
        {"train_steps": 21},
        {"steps_per_eval": 3, "eval_batch_size": 5, "iterations_per_loop": 1, "split": "test"},
        {"dataset": "/moved/digits"},
    ],
)
def test_a_run_goes_on_with_options_that_leave_its_weights_alone(tmp_path, fields):
    write_run_config(str(tmp_path), CONFIG)
    begin(tmp_path)
    write_run_config(str(tmp_path), changed(**fields))
    assert read_config(str(tmp_path)) == changed(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train_batch_size": 16}, "its --train_batch_size is 8, not 16; use"),
        ({"learning_rate": 0.2}, "its --learning_rate is 0.1, not 0.2; use"),
        (
            {"input": InputConfig(16, seed=3)},
            r"its --crop_area is \(0.5, 1.0\), not \(0.08, 1.0\); its --seed is 0, not 3;",
        ),
        ({"input": InputConfig(28, crop_area=(0.5, 1.0))}, "its --image_size is 16, not 28; use"),
        (
            {"fingerprint": "f2"},
            "its --dataset is '/data/digits', whose content has changed since; use another --model_dir$",
        ),
        ({"dataset": "/data/more", "fingerprint": "f2"}, "'/data/digits', and '/data/more' has other content; use"),
        (
            {"dataset": "/data/cats", "fingerprint": "f2", "classes": ("a", "b", "c")},
            "its --dataset is '/data/digits' with 2 classes, but '/data/cats' has 3; use",
        ),
    ],
)
def test_another_run_is_refused_and_every_difference_named(tmp_path, fields, message):
    write_run_config(str(tmp_path), CONFIG)
    begin(tmp_path)
    with pytest.raises(ValueError, match=message):
        write_run_config(str(tmp_path), changed(**fields))
    assert read_config(str(tmp_path)) == CONFIG


def test_a_run_can_end_earlier_than_was_said_but_not_before_what_is_done(tmp_path):
    write_run_config(str(tmp_path), CONFIG)
    begin(tmp_path, step=7)
    write_run_config(str(tmp_path), changed(train_steps=7))
    with pytest.raises(
        ValueError, match="its --train_steps must be at least 7, the number of completed steps, got 6; use another"
    ):
        write_run_config(str(tmp_path), changed(train_steps=6))


def test_a_run_that_never_began_gives_way(tmp_path):
    write_run_config(str(tmp_path), CONFIG)
    write_run_config(str(tmp_path), changed(learning_rate=0.2))
    assert read_config(str(tmp_path)).learning_rate == 0.2


def test_a_run_that_is_extended_keeps_the_learning_rates_that_it_began_with(digits_dataset, tmp_path):
    options = OPTIONS | {"dataset": digits_dataset.path, "learning_rate": None, "decay_steps": None}
    first = TrainConfig.of(digits_dataset, options, read_started(str(tmp_path)))
    assert (first.decay_steps, first.warmup_steps, first.learning_rate) == (20, 1, 0.1 * 16 / 256)
    write_run_config(str(tmp_path), first)
    assert read_started(str(tmp_path)) is None  # told, but nothing is trained yet
    begin(tmp_path)
    longer = TrainConfig.of(digits_dataset, options | {"train_steps": 50}, read_started(str(tmp_path)))
    write_run_config(str(tmp_path), longer)
    assert longer.schedule == first.schedule
    other = TrainConfig.of(
        digits_dataset, options | {"train_steps": 50, "decay_steps": 50}, read_started(str(tmp_path))
    )
    with pytest.raises(ValueError, match="its --decay_steps is 20, not 50"):
        write_run_config(str(tmp_path), other)


@pytest.mark.parametrize(("optimizer", "rate", "decay"), [("momentum", 0.1, 1e-4), ("adamw", 0.00025, 0.05)])
def test_rates_grow_with_the_batch_from_where_each_optimizer_starts(digits_dataset, optimizer, rate, decay):
    options = OPTIONS | {"learning_rate": None, "optimizer": optimizer, "train_batch_size": 512}
    config = TrainConfig.of(digits_dataset, options | {"dataset": "d"})
    assert config.learning_rate == pytest.approx(2 * rate)
    assert config.weight_decay == decay


def test_classes_cannot_be_balanced_without_their_counts():
    with pytest.raises(ValueError, match="class_weights='balanced' needs class counts"):
        changed(class_weights="balanced", class_counts=())


def test_checkpoints_without_a_config_are_somebody_elses(tmp_path):
    begin(tmp_path)
    with pytest.raises(
        ValueError, match=r"has no config.json but contains checkpoint, model.ckpt-1.data-.*, so it is not a"
    ):
        write_run_config(str(tmp_path), CONFIG)
    assert not (tmp_path / "config.json").exists()


def test_a_folder_of_foreign_files_is_refused_with_the_first_of_their_names(tmp_path):
    for name in "gecbadf":
        (tmp_path / f"{name}.jpg").touch()
    with pytest.raises(
        ValueError, match=r"but contains a.jpg, b.jpg, c.jpg, d.jpg, e.jpg and 2 more, so it is not a training run"
    ):
        write_run_config(str(tmp_path), CONFIG)


def test_hidden_files_are_nobodys(tmp_path):
    (tmp_path / ".DS_Store").touch()
    write_run_config(str(tmp_path), CONFIG, "jpeg2tpu train --dataset=d")
    assert read_command(str(tmp_path)) == "jpeg2tpu train --dataset=d"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format_version": 99}', '{"format_version": 1, "versions": {}}'])
def test_a_damaged_config_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config.json' is not a training run's config: "):
        read_config(str(tmp_path))


def test_a_run_of_an_earlier_build_is_refused_and_what_helps_is_said(tmp_path):
    fields = json.loads(CONFIG.to_json({}))
    (tmp_path / "config.json").write_text(json.dumps(fields | {"format_version": 2}))
    with pytest.raises(
        ValueError,
        match=r"format_version must be 6, got 2; .*, or use another --model_",
    ):
        read_config(str(tmp_path))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write to"):
        write_run_config(str(tmp_path / "file" / "model"), CONFIG)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train_batch_size", 0),
        ("eval_batch_size", 0),
        ("train_steps", 0),
        ("steps_per_eval", -1),
        ("iterations_per_loop", 0),
        ("keep_exports", 0),
        ("save_steps", -1),
        ("early_stop_patience", -1),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("network", "resnet9000"),
        ("optimizer", "sgd"),
        ("decay", "linear"),
        ("label_smoothing", 1.0),
        ("warmup_steps", 20),
        ("summary_steps", 0),
    ],
)
def test_impossible_options_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} must be .*, got {value!r}"):
        changed(**{field: value})


def test_metrics_are_read_back_and_damaged_ones_are_none(tmp_path):
    assert read_finished(str(tmp_path)) is None
    metrics = Metrics(
        20, "validation", 359, 351 / 359, 0.0812, {"top_5_accuracy": 0.9}, (200 / 208, None), ((200, 8), (0, 0))
    )
    finished = Finished(metrics, "/model/export/1763596800")
    write_finished(str(tmp_path), finished, CONFIG.classes)
    assert json.loads((tmp_path / "metrics.json").read_text())["recall"] == {"no": 200 / 208, "ünï": None}
    assert read_finished(str(tmp_path)) == finished
    assert str(finished.metrics) == "accuracy 97.8 % on 359 validation images, loss 0.081"
    (tmp_path / "metrics.json").write_text("{")
    assert read_finished(str(tmp_path)) is None


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path):
    part = "part-00000-of-00001.data-00000-of-00001"
    remnants = [f".history.csv.{'0f' * 16}.tmp", f"model.ckpt-8_temp/{part}.tempstate115", "model.ckpt-8_temp/" + part]
    files = ["history.csv", ".lock", "notes.tmp", "model.ckpt-9_temp/notes.txt", "model.ckpt-8.index", "other_temp/x"]
    for name in (*remnants, *files, f"model.ckpt-9_temp/{part}"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "model.ckpt-9_temp" / f"{part}.tempstate1").symlink_to(tmp_path / "history.csv")
    remove_unfinished(str(tmp_path))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(files)
    assert not (tmp_path / "model.ckpt-8_temp").exists()
