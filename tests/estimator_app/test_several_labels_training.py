"""Several labels an image in training: metrics against scikit-learn's, both trainers, exports, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import average_precision_score, f1_score, recall_score

import tpu_input
from beam_pipelines.__main__ import main
from estimator_app.model.losses import cross_entropy
from estimator_app.model.tasks import task
from estimator_app.model.tensorflow_metrics import added, average_precision, batch_sums, results, streaming
from support.app_commands import refused, run
from support.app_fixtures import configured
from tpu_input.dataset_format.records import Manifest, Record, encode, frame

v1 = tf.compat.v1
TRAINERS = ["tf_distribute", *["tpu_estimator"] * hasattr(tf, "estimator")]
KINDS = ("even", "odd", "small", "large")


def kinds(digit: int) -> list[str]:
    """The two classes of a digit."""
    return [("even", "odd")[digit % 2], ("small", "large")[digit > 4]]


@pytest.fixture(scope="module")
def dataset(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("several")
    with (folder / "list.csv").open("w", newline="") as file:
        lines = [(path, ";".join(kinds(int(path.parent.name)))) for path in sorted(digits.rglob("*.jpg"))]
        csv.writer(file).writerows([("image", "label"), *lines])
    args = ("convert", f"--input={folder}/list.csv", "--label_type=classes", f"--output={folder}/dataset")
    assert main([*args, "--splits=train=80%,validation=20%"]) == 0
    return tpu_input.read_manifest(f"{folder}/dataset")


def examples(num_classes: int, count: int, padding: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(num_classes)
    labels = (rng.random([count + padding, num_classes]) < 0.3).astype(np.float32)
    labels[:, -1] = 0  # no example of the last class
    # Few different scores, so that many are tied.
    logits = np.round(rng.normal(size=labels.shape) + labels, 1).astype(np.float32)
    weight = (np.arange(count + padding) < count).astype(np.float32)
    losses = rng.random(count + padding).astype(np.float32)
    return logits, labels, losses, weight


@pytest.mark.parametrize(("num_classes", "count"), [(3, 40), (7, 488)])
def test_metrics_are_those_of_scikit_learn_over_any_batches(num_classes, count):
    logits, labels, losses, weight = examples(num_classes, count, padding=24)
    totals: dict[str, tf.Tensor] = {}
    for start in range(0, len(logits), 16):
        batch = [tf.constant(array[start : start + 16]) for array in (logits, labels, losses, weight)]
        totals = added(totals, batch_sums(*batch))
    actual = {name: np.asarray(value) for name, value in results(totals).items()}
    scores, truth = logits[:count], labels[:count]
    expected = [average_precision_score(truth[:, column], scores[:, column]) for column in range(num_classes - 1)]
    np.testing.assert_allclose(actual["average_precision"], [*expected, np.nan], rtol=1e-12)
    np.testing.assert_allclose(actual["mean_average_precision"], np.mean(expected), rtol=1e-12)
    f1 = [f1_score(truth[:, column], scores[:, column] >= 0) for column in range(num_classes - 1)]
    np.testing.assert_allclose(actual["f1"], [*f1, np.nan], rtol=1e-12)
    np.testing.assert_allclose(actual["mean_f1"], np.mean(f1), rtol=1e-12)
    recall = [recall_score(truth[:, column], scores[:, column] >= 0) for column in range(num_classes - 1)]
    np.testing.assert_allclose(actual["recall"], [*recall, np.nan], rtol=1e-12)
    np.testing.assert_allclose(actual["mean_recall"], np.mean(recall), rtol=1e-12)
    np.testing.assert_allclose(actual["accuracy"], ((scores >= 0) == (truth > 0)).mean(), rtol=1e-12)
    np.testing.assert_allclose(actual["cross_entropy"], losses[:count].mean(), rtol=1e-5)
    assert actual["num_examples"] == count
    with tf.Graph().as_default(), v1.Session() as session:
        feeds = [v1.placeholder(tf.float32, [16, *array.shape[1:]]) for array in (logits, labels, losses, weight)]
        metrics = streaming(*feeds)
        session.run(v1.local_variables_initializer())
        add = next(iter(metrics.values()))[1]
        for start in range(0, len(logits), 16):
            arrays = (logits, labels, losses, weight)
            session.run(add, dict(zip(feeds, (array[start : start + 16] for array in arrays), strict=True)))
        values = session.run({name: value for name, (value, _) in metrics.items()})
    for name, value in actual.items():
        np.testing.assert_array_equal(values[name], value, name)


def test_average_precision_of_one_example_and_of_none():
    scores, targets = tf.constant([[1.0]]), tf.constant([[True]])
    assert average_precision(scores, targets, tf.constant([True])).numpy() == [1.0]
    assert np.isnan(average_precision(scores, targets, tf.constant([False])).numpy()).all()


def test_the_loss_is_the_mean_over_the_classes():
    logits, labels, _, _ = examples(5, 20)
    expected = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")(labels, logits)
    np.testing.assert_allclose(cross_entropy(tf.constant(logits), tf.constant(labels)), expected, rtol=1e-5)
    smooth = tf.keras.losses.BinaryCrossentropy(True, label_smoothing=0.2, reduction="none")(labels, logits)
    np.testing.assert_allclose(cross_entropy(tf.constant(logits), tf.constant(labels), 0.2), smooth, rtol=1e-5)
    weights = task("classes").balanced((5, 0, 20, 10, 1), 20)
    assert weights == (3.0, 1.0, 1.0, 1.0, 19.0)
    terms = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits) * (1 + labels * (np.array(weights, np.float32) - 1))
    losses = cross_entropy(tf.constant(logits), tf.constant(labels), 0.0, weights)
    np.testing.assert_allclose(losses, tf.reduce_mean(terms, axis=1), rtol=1e-5)


def test_batches_have_a_row_of_classes_for_each_example(dataset):
    config = tpu_input.InputConfig(image_size=16)
    train = tpu_input.make_train_input_fn(dataset, config)({"batch_size": 32})
    assert train.element_spec[1] == tf.TensorSpec([32, 4], tf.float32)
    evaluated = tpu_input.make_eval_input_fn(dataset, config)({"batch_size": 50})
    steps = tpu_input.eval_steps(dataset, "validation", 50)
    labels, weights = [], []
    for features, label in evaluated.take(steps).as_numpy_iterator():
        labels.append(label)
        weights.append(features["weight"])
    targets, weight = np.concatenate(labels), np.concatenate(weights)
    assert set(targets[weight > 0].sum(axis=1)) == {2.0}
    assert not targets[weight == 0].any()
    assert tuple(targets.sum(axis=0).astype(int)) == dataset.split("validation").class_counts


@pytest.mark.parametrize("on_corrupt", ["error", "skip"])
def test_a_label_that_is_no_class_is_corrupt(dataset, tmp_path, on_corrupt):
    encoded = tf.io.encode_jpeg(np.zeros([16, 16, 3], np.uint8)).numpy()
    records = [Record(f"k{n}", encoded, 16, 16, 3, (n,), ("x",), "0" * 64) for n in range(6)]
    (tmp_path / "train-00000-of-00001.tfrecord").write_bytes(b"".join(frame(encode(record)) for record in records))
    split = dataclasses.replace(
        dataset.split("train"),
        shards=(
            dataclasses.replace(
                dataset.split("train").shards[0],
                name="train-00000-of-00001.tfrecord",
                num_examples=6,
                num_bytes=(tmp_path / "train-00000-of-00001.tfrecord").stat().st_size,
            ),
        ),
    )
    manifest = dataclasses.replace(dataset, path=str(tmp_path), splits={"train": split})
    config = tpu_input.InputConfig(image_size=16, on_corrupt=on_corrupt, max_corrupt=2)
    batches = tpu_input.make_eval_input_fn(manifest, config, "train")({"batch_size": 6})
    if on_corrupt == "error":
        with pytest.raises(tf.errors.InvalidArgumentError, match="has a label on disk that is none of the 4 classes"):
            next(iter(batches))
        return
    features, label = next(iter(batches))
    assert features["weight"].numpy().tolist() == [1, 1, 1, 1, 0, 0]
    assert label.numpy().tolist() == [*np.eye(4).tolist(), [0] * 4, [0] * 4]


@pytest.mark.long
@pytest.mark.parametrize("trainer", TRAINERS)
def test_digits_with_two_labels_each_are_learnt(capsys, dataset, digits, tmp_path, trainer):
    """A mean average precision of at least 98 %, the same by the run, its export and scikit-learn."""
    model = tmp_path / "model"
    args = ("--image_size=24", "--train_batch_size=64", "--crop_area=0.8,1", "--no_flip", "--train_steps=400")
    command = ("train", f"--dataset={dataset.path}", f"--model_dir={model}", f"--trainer={trainer}", *args)
    code, out, err = run(capsys, *command, "--steps_per_eval=200", "--class_weights=balanced")
    assert code == 0, err
    assert "mean average precision" in out
    metrics = json.loads((model / "metrics.json").read_text())
    assert metrics["others"]["mean_average_precision"] > 0.98
    assert list(metrics["average_precision"]) == list(metrics["f1"]) == sorted(KINDS)
    code, out, err = run(capsys, "evaluate", f"--export_dir={model}", "--json")
    assert code == 0, err
    again = json.loads(out)
    assert again["num_examples"] == metrics["num_examples"]
    for name in sorted(KINDS):
        np.testing.assert_allclose(again["average_precision"][name], metrics["average_precision"][name], atol=1e-3)
    code, out, err = run(capsys, "predict", f"--export_dir={model}", digits / "7", digits / "2", "--top=4")
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    right = 0
    for line in lines:
        assert line["classes"] == [entry["class"] for entry in line["top"] if entry["probability"] >= 0.5]
        right += set(line["classes"]) == set(kinds(int(Path(line["file"]).parts[-2])))
    assert right > 0.9 * len(lines)
    out = run(capsys, "predict", f"--export_dir={model}", digits / "7")[1]  # as many as it has, without --top
    default_lines = [json.loads(line) for line in out.splitlines()]
    assert [line["classes"] for line in default_lines] == [line["classes"] for line in lines[: len(default_lines)]]
    assert all(len(line.get("top", [1])) == max(1, len(line["classes"])) for line in default_lines)
    assert "has one label each" not in err
    probabilities = {entry["class"]: entry["probability"] for entry in lines[0]["top"]}
    assert sum(probabilities.values()) > 1.2  # of several classes


@pytest.mark.long
def test_a_run_of_one_label_is_not_resumed_or_evaluated_with_several(capsys, dataset, digits_dataset, tmp_path):
    config = configured(dataset)
    assert (config.label_type, config.early_stop_metric) == ("classes", "mean_average_precision")
    with pytest.raises(ValueError, match="early_stop_metric must be one of accuracy, loss, mean_recall, mean_average"):
        configured(dataset, early_stop_metric="top_5_accuracy")
    with pytest.raises(ValueError, match="early_stop_metric must be one of accuracy, loss, mean_recall, top_5"):
        configured(digits_dataset, early_stop_metric="mean_average_precision")
    flags = (f"--model_dir={tmp_path}/m", "--trainer=tf_distribute", "--image_size=16", "--train_steps=1")
    assert run(capsys, "train", f"--dataset={digits_dataset.path}", *flags)[0] == 0
    assert "with 10 classes, but" in refused(capsys, "train", f"--dataset={dataset.path}", *flags)
    args = ("evaluate", f"--export_dir={tmp_path}/m", f"--dataset={dataset.path}")
    assert "has classes ('even', 'large', 'odd', 'small'), but the export needs" in refused(capsys, *args)
