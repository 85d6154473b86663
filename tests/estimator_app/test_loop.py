"""The loop on real digits: exact resume, exact evaluation, nothing done twice."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ends with TensorFlow 2.15")

from estimator_app.trainers.tpu_estimator import train as estimator_training
from estimator_app.trainers.tpu_estimator.model_fn import make_estimator
from support.app_fixtures import configured, keras_warns
from tpu_input import make_eval_input_fn
from tpu_input.dataset_format.records import Split

training = importlib.import_module("estimator_app.train")

pytestmark = keras_warns
v1 = tf.compat.v1


def train(manifest, model_dir, lines=None, **options):
    report = (lines if lines is not None else []).append
    return training.run(manifest, configured(manifest, **options), str(model_dir), f"{model_dir}/export", report=report)


def weights(model_dir) -> dict[str, np.ndarray]:
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    return {name: checkpoint.get_tensor(name) for name in checkpoint.get_variable_to_shape_map()}


def assert_same_weights(model_dir, other) -> None:
    actual, expected = weights(model_dir), weights(other)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


@pytest.fixture(scope="module")
def straight(digits_dataset, tmp_path_factory):
    """The model_dir of a run that nothing stopped; not to be changed."""
    model_dir = tmp_path_factory.mktemp("straight")
    train(digits_dataset, model_dir)
    return model_dir


@pytest.mark.parametrize(
    ("step", "steps_per_eval", "train_steps", "stop"),
    [
        (0, 1250, 112_590, 1250),
        (1249, 1250, 112_590, 1250),
        (1250, 1250, 112_590, 2500),
        (1700, 1250, 112_590, 2500),  # stopped between evaluations
        (112_500, 1250, 112_590, 112_590),
        (0, 500, 20, 20),
    ],
)
def test_the_next_stop_is_a_multiple_of_steps_per_eval_or_the_end(step, steps_per_eval, train_steps, stop):
    assert training.next_stop(step, steps_per_eval, train_steps) == stop


@pytest.mark.long
@pytest.mark.core
def test_a_run_stopped_after_7_of_20_steps_ends_with_the_same_weights(digits_dataset, straight, tmp_path):
    def stop_at_the_first_evaluation(line):
        if line.startswith("step 7/20"):
            raise KeyboardInterrupt

    config = configured(digits_dataset, steps_per_eval=7)
    with pytest.raises(KeyboardInterrupt):
        training.run(digits_dataset, config, str(tmp_path), f"{tmp_path}/export", report=stop_at_the_first_evaluation)
    assert weights(tmp_path)["global_step"] == 7
    lines: list[str] = []
    train(digits_dataset, tmp_path, lines)
    assert lines[0].startswith("resuming cnn at step 7/20")
    assert_same_weights(tmp_path, straight)


def test_training_moves_the_statistics_of_every_batch_normalisation(straight):
    means = [value for name, value in weights(straight).items() if name.endswith("moving_mean")]
    assert len(means) == 6
    assert all(np.abs(mean).min() > 0 for mean in means)


def test_a_complete_run_is_not_repeated(digits_dataset, straight):
    before = {path: path.stat().st_mtime_ns for path in straight.rglob("*.ckpt*")}
    (exported,) = (straight / "export").glob("[0-9]*")
    lines: list[str] = []
    finished = train(digits_dataset, straight, lines)
    assert lines == [f"nothing to train: step 20 is done, {finished.metrics}", f"export: {exported}"]
    assert {path: path.stat().st_mtime_ns for path in straight.rglob("*.ckpt*")} == before
    assert list((straight / "export").glob("[0-9]*")) == [exported]


@pytest.mark.long
def test_a_run_that_is_extended_ends_with_the_weights_of_one_that_was_as_long_at_first(
    digits_dataset, straight, tmp_path
):
    assert train(digits_dataset, tmp_path, train_steps=7, decay_steps=20).metrics.step == 7
    lines: list[str] = []
    finished = train(digits_dataset, tmp_path, lines, train_steps=20, decay_steps=20)
    assert lines[0].startswith("resuming cnn at step 7/20")
    assert finished.metrics.step == 20
    assert_same_weights(tmp_path, straight)


def events(model_dir) -> dict[str, dict[int, float]]:
    """Returns tag -> step -> value of what TensorBoard would show."""
    curves: dict[str, dict[int, float]] = {}
    for path in sorted(model_dir.glob("events*")):
        for event in v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor) if value.HasField("tensor") else value.simple_value
                curves.setdefault(value.tag, {})[event.step] = float(np.mean(number))
    return curves


@pytest.mark.long
def test_curves_of_training_are_written_every_summary_steps(digits_dataset, tmp_path):
    train(digits_dataset, tmp_path, summary_steps=5, decay="steps")
    curves = events(tmp_path)
    rates = configured(digits_dataset, decay="steps").schedule.learning_rate(np.arange(20))
    assert curves["train/learning_rate"] == {step: pytest.approx(rates[step - 1], rel=1e-6) for step in (5, 10, 15, 20)}
    examples = digits_dataset.split("train").num_examples
    assert curves["train/epoch"] == {step: pytest.approx(step * 16 / examples) for step in (5, 10, 15, 20)}
    assert 0 < curves["train/loss"][20] < curves["train/loss"][5]
    assert min(curves["examples/sec"].values()) > 0


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "lars", "learning_rate": 2.0, "class_weights": "balanced", "label_smoothing": 0.1},
        {"optimizer": "adamw", "learning_rate": 0.003, "precision": "bfloat16"},
    ],
    ids=str,
)
@pytest.mark.long
def test_other_ways_of_training_learn_as_well(digits_dataset, tmp_path, options):
    usual = {"train_steps": 60, "train_batch_size": 64, "learning_rate": 0.1, "eval_crop": 1.0, "steps_per_eval": 60}
    assert train(digits_dataset, tmp_path, **usual | options).metrics.accuracy > 0.7
    assert {value.dtype for name, value in weights(tmp_path).items() if name != "global_step"} == {np.dtype("float32")}


def test_evaluation_tells_recalls_and_confusion_of_every_example(digits_dataset, straight):
    config = configured(digits_dataset, eval_batch_size=50)
    estimator = make_estimator(config, str(straight))
    counts = digits_dataset.split("validation").class_counts
    metrics = estimator.evaluate(make_eval_input_fn(digits_dataset, config.input), -(-sum(counts) // 50))
    np.testing.assert_array_equal(metrics["confusion_matrix"].sum(axis=1), counts)
    np.testing.assert_allclose(metrics["recall"], np.diag(metrics["confusion_matrix"]) / counts)
    assert metrics["accuracy"] == pytest.approx(np.trace(metrics["confusion_matrix"]) / sum(counts))
    assert metrics["mean_recall"] == pytest.approx(metrics["recall"].mean())
    assert metrics["accuracy"] < metrics["top_5_accuracy"] <= 1


@pytest.mark.long
def test_another_split_and_a_lost_export_are_made_good_without_training(digits_dataset, tmp_path):
    train(digits_dataset, tmp_path, train_steps=1)
    lines: list[str] = []
    finished = train(digits_dataset, tmp_path, lines, train_steps=1, split="train")
    assert finished.metrics.num_examples == digits_dataset.split("train").num_examples
    assert [line.partition(":")[0] for line in lines] == [
        "step 1/1",
        "curves and confusion matrix",
        "export with the best accuracy, step 1",
        "export",
    ]


@pytest.mark.parametrize(("batch_size", "layout"), [(7, "NHWC"), (64, "HWNC"), (1000, "HWCN")])
def test_every_example_counts_once_whatever_the_batch(digits_dataset, straight, batch_size, layout):
    expected = train(digits_dataset, straight).metrics
    config = configured(digits_dataset, eval_batch_size=batch_size, layout=layout)
    metrics = estimator_training.evaluate(make_estimator(config, str(straight)), digits_dataset, config)
    assert metrics.num_examples == digits_dataset.split("validation").num_examples
    assert metrics.accuracy == pytest.approx(expected.accuracy, abs=1e-6)
    assert metrics.loss == pytest.approx(expected.loss, rel=1e-4)


def test_shards_that_hold_less_than_promised_are_no_result(digits_dataset, straight):
    split = digits_dataset.split("validation")
    shards = (dataclasses.replace(split.shards[0], num_examples=split.shards[0].num_examples + 1), *split.shards[1:])
    splits = digits_dataset.splits | {"validation": dataclasses.replace(split, shards=shards)}
    promising = dataclasses.replace(digits_dataset, splits=splits)
    config = configured(promising)
    missing = f"record {split.shards[0].num_examples} of .*{split.shards[0].name} cannot be read; .* fewer records than"
    with pytest.raises(tf.errors.InvalidArgumentError, match=missing):
        estimator_training.evaluate(make_estimator(config, str(straight)), promising, config)


def test_classes_of_another_dataset_are_no_result(digits_dataset, straight):
    config = configured(digits_dataset)
    other = dataclasses.replace(digits_dataset, classes=("cat", "dog"))
    with pytest.raises(ValueError, match=r"has classes \('cat', 'dog'\), but the model needs \('0', '1'"):
        estimator_training.evaluate(make_estimator(config, str(straight)), other, config)


def test_a_split_without_examples_is_refused_before_anything_is_written(digits_dataset, tmp_path):
    empty = Split((), (0,) * 10, (0, 0.0, 0), (0, 0.0, 0), (0.0,) * 3, (0.0,) * 3)
    splits = digits_dataset.splits | {"validation": empty}
    with pytest.raises(ValueError, match=r"'validation' of .* has no examples"):
        train(dataclasses.replace(digits_dataset, splits=splits), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_loss_that_is_no_number_says_where_and_at_what_rate(digits_dataset, tmp_path):
    # It is the processor's rounding that decides which of the two steps is the first with such a loss.
    step_and_rate = r"(step 2, with a learning rate of 1e\+30|step 3, with a learning rate of 9.93e\+29)"
    with pytest.raises(ValueError, match=rf"is NaN or infinite at {step_and_rate} \(its peak is 1e\+30\)"):
        train(digits_dataset, tmp_path, learning_rate=1e30)


@pytest.mark.long
@pytest.mark.core
def test_sixty_steps_learn_most_digits(digits_dataset, tmp_path):
    options = {"train_steps": 60, "train_batch_size": 64, "learning_rate": 0.1, "eval_crop": 1.0, "steps_per_eval": 60}
    assert train(digits_dataset, tmp_path, **options).metrics.accuracy > 0.8
