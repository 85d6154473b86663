"""Metrics: what NumPy counts by hand, however the examples are cut into batches, and padding that is never seen."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.model.metrics import batch_sums, results, streaming

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
    logits, labels, losses, found = logits[real], labels[real], losses[real], logits[real].argmax(1)
    confusion = np.zeros([logits.shape[1]] * 2, int)
    np.add.at(confusion, (labels, found), 1)
    with np.errstate(invalid="ignore"):
        recall = np.diag(confusion) / confusion.sum(1)
    expected = {
        "num_examples": len(labels),
        "accuracy": (found == labels).mean(),
        "cross_entropy": losses.mean(),
        "recall": recall,
        "mean_recall": np.nanmean(recall),
        "confusion_matrix": confusion,
    }
    if logits.shape[1] > 5:
        expected["top_5_accuracy"] = (logits.argsort(1)[:, -5:] == labels[:, None]).any(1).mean()
    return expected


@pytest.mark.parametrize("num_classes", [3, 12])
@pytest.mark.parametrize("batch_size", [64, 16])
def test_sums_of_batches_add_up_to_what_is_counted_by_hand(num_classes, batch_size):
    arrays = examples(num_classes)
    batches = [batch_sums(*(tf.constant(array[at : at + batch_size]) for array in arrays)) for at in range(0, 64, 16)]
    batches = batches[:: batch_size // 16]
    found = results({name: sum(batch[name] for batch in batches) for name in batches[0]})
    expected = by_hand(*arrays)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


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
    found = {name: float(results(total)[name]) for name in names}
    assert found["num_examples"] == 12 * 2**24 + 2 * 60
    assert found["accuracy"] * found["num_examples"] == pytest.approx(
        12 * 2**24 + 2 * int(sum(batch["correct"])), abs=0.1
    )
    assert found["top_5_accuracy"] * found["num_examples"] == pytest.approx(
        2**24 + 2 * int(batch["among_top"]), abs=0.1
    )


def test_the_estimators_way_gives_the_same():
    arrays = examples(num_classes=12)
    with tf.Graph().as_default(), v1.Session() as session:
        fed = [v1.placeholder(array.dtype, [16, *array.shape[1:]]) for array in arrays]
        metrics = streaming(*fed)
        session.run(v1.local_variables_initializer())
        for at in range(0, 64, 16):
            session.run(
                next(iter(metrics.values()))[1],
                {one: array[at : at + 16] for one, array in zip(fed, arrays, strict=True)},
            )
        found = session.run({name: value for name, (value, _) in metrics.items()})
        assert not v1.global_variables()  # no checkpoint holds them
    for name, value in by_hand(*arrays).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


def test_more_than_a_thousand_classes_have_recalls_but_no_confusion_matrix():
    arrays = examples(num_classes=1001)
    found = results(batch_sums(*map(tf.constant, arrays)))
    assert "confusion_matrix" not in found
    np.testing.assert_allclose(found["recall"], by_hand(*arrays)["recall"])
