"""Metrics: what NumPy counts by hand, however the examples are cut into batches, and padding that is never seen."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.model.metrics import Metrics
from estimator_app.model.tasks import task
from estimator_app.model.tensorflow_metrics import batch_sums, results, streaming

v1 = tf.compat.v1


def examples(num_classes, count=60, padding=4):
    random = np.random.default_rng(0)
    labels = random.integers(0, num_classes - 1, count + padding).astype(np.int32)  # the last class has no example
    logits = random.normal(size=[count + padding, num_classes]).astype(np.float32)
    logits[np.arange(count + padding), labels] += 1  # right more often than not
    losses = random.random(count + padding).astype(np.float32)
    weight = np.float32(np.arange(count + padding) < count)
    losses[count:] = 1e9
    return logits, labels, losses, weight


def by_hand(logits, labels, losses, weight):
    real = weight > 0
    logits, labels, losses, predicted = logits[real], labels[real], losses[real], logits[real].argmax(1)
    confusion = np.zeros([logits.shape[1]] * 2, int)
    np.add.at(confusion, (labels, predicted), 1)
    with np.errstate(invalid="ignore"):
        recall = np.diag(confusion) / confusion.sum(1)
    expected = {
        "num_examples": len(labels),
        "accuracy": (predicted == labels).mean(),
        "cross_entropy": losses.mean(),
        "recall": recall,
        "mean_recall": np.nanmean(recall),
        "confusion_matrix": confusion,
    }
    if logits.shape[1] > 5:
        expected["top_5_accuracy"] = (logits.argsort(1)[:, -5:] == labels[:, None]).any(1).mean()
    return expected


@pytest.mark.parametrize("num_classes", [3, 5, 6, 12])
@pytest.mark.parametrize("batch_size", [64, 16])
def test_sums_of_batches_add_up_to_what_is_counted_by_hand(num_classes, batch_size):
    arrays = examples(num_classes)
    batches = [
        batch_sums(*(tf.constant(array[start : start + batch_size]) for array in arrays)) for start in range(0, 64, 16)
    ]
    batches = batches[:: batch_size // 16]
    metrics = results({name: sum(batch[name] for batch in batches) for name in batches[0]})
    expected = by_hand(*arrays)
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)


def test_classes_that_are_tied_for_the_fifth_place_are_not_found():
    labels = np.array([0, 7, 7, 7, 2], np.int32)
    logits = np.zeros([5, 8], np.float32)
    logits[2, :4] = 1  # four are above the label, and three are tied with it
    logits[3, [0, 1, 2, 3, 7]] = [5, 4, 3, 2, 1]  # the label is the fifth, and nothing is tied with it
    logits[4, 2] = np.nan
    sums = batch_sums(logits=tf.constant(logits), labels=tf.constant(labels), losses=tf.zeros(5), weight=tf.ones(5))
    # Of the first, all are tied, but it is the one that counts as found for the accuracy as well.
    assert sums["among_top"].numpy() == 2


def test_examples_are_counted_beyond_what_a_float32_can_count():
    batch = batch_sums(*map(tf.constant, examples(num_classes=12)))
    before = {name: value + tf.cast(2**24, value.dtype) for name, value in batch.items()}
    total = {name: value + batch[name] for name, value in before.items()}
    names = ("num_examples", "accuracy", "top_5_accuracy")
    metrics = {name: float(results(total)[name]) for name in names}
    assert metrics["num_examples"] == 12 * 2**24 + 2 * 60
    assert metrics["accuracy"] * metrics["num_examples"] == pytest.approx(
        12 * 2**24 + 2 * int(sum(batch["correct"])), abs=0.1
    )
    assert metrics["top_5_accuracy"] * metrics["num_examples"] == pytest.approx(
        2**24 + 2 * int(batch["among_top"]), abs=0.1
    )


def test_the_estimators_way_gives_the_same():
    arrays = examples(num_classes=12)
    with tf.Graph().as_default(), v1.Session() as session:
        fed = [v1.placeholder(array.dtype, [16, *array.shape[1:]]) for array in arrays]
        metrics = streaming(*fed)
        session.run(v1.local_variables_initializer())
        for start in range(0, 64, 16):
            session.run(
                next(iter(metrics.values()))[1],
                {one: array[start : start + 16] for one, array in zip(fed, arrays, strict=True)},
            )
        values = session.run({name: value for name, (value, _) in metrics.items()})
        assert not v1.global_variables()  # no checkpoint holds them
        assert not v1.trainable_variables()
        assert {variable.op.type for variable in v1.local_variables()} == {"VarHandleOp"}  # a TPU has no others
    for name, value in by_hand(*arrays).items():
        np.testing.assert_allclose(values[name], value, rtol=1e-5, err_msg=name)


def test_a_class_of_a_single_example_counts_like_the_others():
    logits = tf.eye(3)  # of classes 0, 1 and 2
    labels = tf.constant([0, 0, 1])
    metrics = results(batch_sums(logits, labels, losses=tf.zeros(3), weight=tf.ones(3)))
    np.testing.assert_array_equal(metrics["recall"], [0.5, 0.0, np.nan])
    assert metrics["mean_recall"].numpy() == 0.25


def test_a_thousand_classes_have_a_confusion_matrix():
    arrays = examples(num_classes=1000)
    metrics = results(batch_sums(*map(tf.constant, arrays)))
    np.testing.assert_array_equal(metrics["confusion_matrix"], by_hand(*arrays)["confusion_matrix"])


def test_more_than_a_thousand_classes_have_recalls_but_no_confusion_matrix():
    arrays = examples(num_classes=1001)
    metrics = results(batch_sums(*map(tf.constant, arrays)))
    assert "confusion_matrix" not in metrics
    np.testing.assert_allclose(metrics["recall"], by_hand(*arrays)["recall"])


# What Estimator.evaluate() returns: NumPy's scalars and arrays, its own unweighted loss among them.
EVALUATED = {
    "loss": np.float32(9),
    "global_step": np.int64(600),
    "num_examples": np.float64(7),
    "accuracy": np.float64(0.5),
    "cross_entropy": np.float64(1.25),
    "mean_recall": np.float64(0.75),
    "recall": np.array([1.0, 0.5, np.nan]),
    "confusion_matrix": np.array([[3, 0, 0], [1, 1, 2], [0, 0, 0]]),
}
METRICS = Metrics(
    step=600,
    split="validation",
    num_examples=7,
    accuracy=0.5,
    loss=1.25,
    others={"mean_recall": 0.75},
    recall=(1.0, 0.5, None),
    confusion=((3, 0, 0), (1, 1, 2), (0, 0, 0)),
)
FIELDS = {
    "step": 600,
    "split": "validation",
    "num_examples": 7,
    "accuracy": 0.5,
    "loss": 1.25,
    "others": {"mean_recall": 0.75},
    "recall": {"ant": 1.0, "bee": 0.5, "cat": None},
    "confusion": [[3, 0, 0], [1, 1, 2], [0, 0, 0]],
}


def test_metrics_are_the_scalars_and_arrays_of_an_evaluation():
    assert Metrics.of(EVALUATED, "validation") == METRICS
    assert METRICS.scalars() == {"accuracy": 0.5, "loss": 1.25, "mean_recall": 0.75}
    without = {name: value for name, value in EVALUATED.items() if name not in ("recall", "confusion_matrix")}
    assert (Metrics.of(without, "test").recall, Metrics.of(without, "test").confusion) == ((), ())


def test_what_was_measured_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        METRICS.accuracy = 1.0  # type: ignore[misc]


def test_metrics_are_written_by_class_name_and_come_back():
    fields = METRICS.to_fields(("ant", "bee", "cat"))
    assert {name: fields[name] for name in FIELDS if name != "confusion"} == {
        name: value for name, value in FIELDS.items() if name != "confusion"
    }
    assert Metrics.from_fields(FIELDS) == METRICS
    assert fields.keys().isdisjoint({"f1", "average_precision"})  # which are of several labels
    several = dataclasses.replace(METRICS, f1=(0.5, None, 1.0), average_precision=(0.25, None, 1.0))
    stored = json.loads(json.dumps(several.to_fields(("ant", "bee", "cat"))))
    assert stored["f1"] == {"ant": 0.5, "bee": None, "cat": 1.0}
    assert Metrics.from_fields(stored) == several
    assert Metrics(1, "test", 0, 0.0, 0.0).to_fields(("ant", "bee"))["recall"] == {}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("others", [], "others must be a dict"),
        ("recall", [1.0], "recall must be a dict"),
        ("confusion", {}, "confusion must be a list"),
        ("split", 3, "a metric is not a number"),
        ("accuracy", "0.5", "a metric is not a number"),
        ("loss", None, "a metric is not a number"),
        ("others", {"mean_recall": True}, "a metric is not a number"),
        ("recall", {"ant": "1"}, "a metric is not a number"),
        ("step", -1, "a count is not a non-negative integer"),
        ("num_examples", 7.0, "a count is not a non-negative integer"),
        ("confusion", [[1, -1], [0, 0]], "a count is not a non-negative integer"),
        ("confusion", [[1], [0]], "the confusion matrix is not square"),
        ("confusion", [[1, 2]], "the confusion matrix is not square"),
    ],
)
def test_damaged_metrics_are_refused(name, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Metrics.from_fields(FIELDS | {name: value})


@pytest.mark.parametrize("num_classes", [3, 5, 6, 12])
def test_what_can_be_watched_is_what_an_evaluation_computes(num_classes):
    metrics = results(batch_sums(*map(tf.constant, examples(num_classes))))
    scalars = {name for name, value in metrics.items() if not value.shape.rank}
    assert {*task("class").watchable(num_classes)} == scalars - {"num_examples", "cross_entropy"} | {"loss"}
