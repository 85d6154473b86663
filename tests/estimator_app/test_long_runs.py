"""What weeks of training need: rare checkpoints, curves, a profile, figures of each class, callbacks."""

from __future__ import annotations

import csv
import functools
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import precision_recall_fscore_support
from tensorboard.backend.event_processing import event_accumulator

import estimator_app
from estimator_app.__main__ import main
from estimator_app.model_dir.history import read_history
from estimator_app.model_dir.run_files import read_config
from estimator_app.predictions.wrong_images import MOST_EXAMINED
from estimator_app.runtime.tensorflow_startup import has_estimator
from estimator_app.trainers.checkpointing import CheckpointSaver
from support.app_commands import FLAGS
from support.app_fixtures import OPTIONS, configured, held_out_records, keras_warns
from support.trainers import RUNNABLE
from tpu_input.predict import decode_files

pytestmark = keras_warns
LONG = {"train_steps": 12, "steps_per_eval": 6, "summary_steps": 2, "save_steps": 5, "save_seconds": 0}


class Noted(estimator_app.Callback):
    """Keeps what it is called with; of a checkpoint also whether its files are there."""

    def __init__(self) -> None:
        self.losses = dict[int, float]()
        self.checkpoints = list[int]()
        self.evaluations = list[estimator_app.Metrics]()

    def on_step(self, step, loss):
        self.losses[step] = loss

    def on_checkpoint(self, step, path):
        assert Path(f"{path}.index").exists()
        self.checkpoints.append(step)

    def on_evaluation(self, metrics):
        self.evaluations.append(metrics)


@pytest.fixture(scope="module", params=RUNNABLE)
def trained(request, digits_dataset, tmp_path_factory) -> tuple[Path, Noted]:
    """The model_dir of a run, and what it called."""
    model_dir, noted = tmp_path_factory.mktemp("long"), Noted()
    options: dict[str, Any] = OPTIONS | LONG | {"trainer": request.param, "profile": (8, 9), "wrong_images": 16}
    dataset = digits_dataset.path
    estimator_app.train(dataset, str(model_dir), report=lambda line: None, callbacks=[noted], **options)
    return model_dir, noted


def summaries(folder: Path):
    for path in sorted(folder.glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                yield event.step, value


def test_callbacks_see_each_step_checkpoint_and_evaluation(trained):
    model_dir, noted = trained
    assert [*noted.losses] == list(range(1, 13))
    assert sorted(set(noted.checkpoints)) == [0, 5, 6, 10, 12]
    rows = read_history(str(model_dir))
    assert [(one.step, one.accuracy) for one in noted.evaluations] == [
        (row.step, row.values["accuracy"]) for row in rows
    ]


def test_curves_have_a_point_every_summary_steps(trained):
    model_dir, noted = trained
    points = {
        step: float(np.mean(tf.make_ndarray(value.tensor)))
        for step, value in summaries(model_dir)
        if value.tag == "train/loss"
    }
    assert points == {step: pytest.approx(noted.losses[step], rel=1e-6) for step in range(2, 13, 2)}


def test_hyperparameters_are_read_by_tensorboards_plugin(trained):
    from tensorboard.plugins.hparams import metadata

    model_dir, _ = trained
    plugin = metadata.PLUGIN_NAME
    (started,) = [
        metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
        for _, value in summaries(model_dir / "pictures")
        if value.metadata.plugin_data.plugin_name == plugin and value.tag == metadata.SESSION_START_INFO_TAG
    ]
    assert started.hparams["learning_rate"].number_value == 0.05
    assert started.hparams["network"].string_value == "cnn"
    assert started.hparams["flip"].bool_value is False


def test_tensorboard_shows_the_surest_mistakes_by_their_keys(trained, digits_dataset):
    model_dir, _ = trained
    events = event_accumulator.EventAccumulator(str(model_dir / "pictures"), {"tensors": 0})
    events.Reload()
    pictures = {tag: events.Tensors(tag) for tag in events.Tags()["tensors"] if tag.startswith("wrong/")}
    records, classes = held_out_records(digits_dataset), digits_dataset.classes
    assert len(records) < MOST_EXAMINED
    files = [record.encoded for record in records]
    probabilities = np.array(estimator_app.load_classifier(str(model_dir))(files))
    best, labels = probabilities.argmax(axis=1), np.array([record.label for record in records])
    surest = sorted(np.flatnonzero(best != labels), key=lambda number: -probabilities[number, best[number]])[:16]
    assert len(surest) == 16
    config = read_config(str(model_dir)).input
    for number in surest:
        predicted, probability = classes[best[number]], probabilities[number, best[number]]
        tag = f"wrong/{records[number].key}: {classes[labels[number]]}, not {predicted} ({probability:.1%})"
        (event,) = pictures.pop(tag)
        assert event.step == 12
        png = tf.make_ndarray(event.tensor_proto)[2]  # after width and height
        (crop,) = decode_files(tf.constant([files[number]]), config)
        np.testing.assert_array_equal(tf.image.decode_png(png), crop)
    assert not pictures


def test_each_evaluation_has_the_figures_of_each_class(trained):
    model_dir, _ = trained
    assert sorted(path.name for path in (model_dir / "by_class").iterdir()) == ["12.csv", "6.csv"]
    counts = json.loads((model_dir / "metrics.json").read_text())["confusion"]
    pairs = [(true, predicted) for true, row in enumerate(counts) for predicted, n in enumerate(row) for _ in range(n)]
    precision, recall, f1, examples = precision_recall_fscore_support(*zip(*pairs, strict=True), zero_division=np.nan)
    with (model_dir / "by_class" / "12.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [str(digit) for digit in range(10)]
    for name, expected in {"examples": examples, "precision": precision, "recall": recall, "f1": f1}.items():
        np.testing.assert_allclose([float(row[name] or "nan") for row in rows], expected, rtol=1e-6)


def test_a_profile_has_the_steps_that_were_asked_for(trained):
    model_dir, _ = trained
    (profile,) = (model_dir / "plugins" / "profile").glob("*/*.xplane.pb")
    assert b"/host:CPU" in profile.read_bytes()


def test_a_profile_covers_no_step_before_or_after():
    from estimator_app.trainers.profile import Profile

    calls: list[str] = []
    profile = Profile("model", 3, 4, lambda folder: calls.append("start"), lambda: calls.append("stop"))
    counts = []
    for step in range(6):
        profile.reached(step)
        counts.append(len(calls))
    assert (calls, counts) == (["start", "stop"], [0, 0, 1, 1, 2, 2])
    profile.close()
    assert calls == ["start", "stop"]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, [0, 20]), (10, [0, *range(1, 21)]), (25, [0, 3, 6, 9, 12, 15, 18, 20])]
)
def test_checkpoints_are_as_rare_as_asked_for(digits_dataset, seconds, expected, monkeypatch):
    saved: list[int] = []
    clock = iter(range(0, 100_000, 10))
    config = configured(digits_dataset, trainer="tf_distribute", save_seconds=seconds)
    monkeypatch.setattr(time, "monotonic", clock.__next__)
    saver = CheckpointSaver(config, -1, saved.append)
    writes: list[int] = []
    for step in range(21):
        saver.reached(step, functools.partial(writes.append, step))
    assert saved == writes == expected


@pytest.mark.skipif(not has_estimator(), reason="TPUEstimator ends with TensorFlow 2.15")
@pytest.mark.parametrize("seconds", [0, 7])
def test_the_estimator_saves_at_the_same_times(digits_dataset, tmp_path, seconds):
    from estimator_app.trainers.tpu_estimator.model_fn import make_estimator

    config = configured(digits_dataset, trainer="tpu_estimator", save_seconds=seconds)
    interval = make_estimator(config, str(tmp_path)).config.save_checkpoints_secs
    assert interval == seconds if seconds else interval > 1e9


def test_the_command_takes_the_flag_for_a_profile_as_the_guide_has_it(digits_dataset, tmp_path):
    guide = (Path(__file__).parents[2] / "docs" / "train.md").read_text()
    (flag,) = set(re.findall(r"--profile=[\d,]+", guide))
    flags = [f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}", *FLAGS, "--train_steps=1"]
    assert main(["train", *flags, flag.replace("100,110", "1,1")]) == 0
    assert read_config(str(tmp_path)).profile == (1, 1)
    assert list((tmp_path / "plugins" / "profile").glob("*/*.xplane.pb"))


@pytest.mark.parametrize("profile", [(5, 4), (0, 4), (-1, 3)])
def test_a_profile_needs_a_first_and_a_last_step(digits_dataset, profile):
    with pytest.raises(ValueError, match="profile must be the first and the last step, such as 100,110, got"):
        configured(digits_dataset, profile=profile)
