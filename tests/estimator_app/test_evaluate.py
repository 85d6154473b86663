"""Evaluation of any checkpoint and any export gives the loop's numbers, and leaves the model_dir as it was."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf

from estimator_app.evaluate import evaluate_checkpoint, evaluate_export
from estimator_app.model.tasks import task
from estimator_app.saved_model.classifier import load_classifier
from estimator_app.saved_model.find import find_checkpoint
from estimator_app.train import run as run_training
from support.app_fixtures import configured, held_out_records, keras_warns
from support.trainers import RUNNABLE
from tpu_input import read_manifest
from tpu_input.dataset_format import records as record_format

pytestmark = keras_warns


@pytest.mark.long
@pytest.mark.core
def test_a_checkpoint_and_its_export_have_the_metrics_of_the_loop(finished, digits_dataset):
    model_dir = Path(finished.export).parent.parent
    before = {path: path.stat().st_mtime_ns for path in model_dir.rglob("*")}
    classifier = load_classifier(finished.export)
    metrics_by_split = {}
    for split in ("validation", "train"):
        config = configured(digits_dataset, split=split, eval_batch_size=77)
        checkpoint = find_checkpoint(str(model_dir), step=60)
        metrics = metrics_by_split[split] = evaluate_checkpoint(config, digits_dataset, checkpoint)
        exported = evaluate_export(classifier, digits_dataset, split, batch_size=50)
        assert (exported.step, exported.split, exported.num_examples) == (60, split, metrics.num_examples)
        assert metrics.num_examples == digits_dataset.split(split).num_examples
        assert exported.accuracy == pytest.approx(metrics.accuracy, abs=1e-6)
        assert exported.loss == pytest.approx(metrics.loss, rel=1e-4)
        assert set(metrics.scalars()) == set(task("class").watchable(10))
        assert exported.scalars() == pytest.approx(metrics.scalars(), rel=1e-4)
        assert exported.recall == pytest.approx(metrics.recall)
        assert exported.confusion == metrics.confusion
        assert sum(map(sum, metrics.confusion)) == metrics.num_examples
    assert metrics_by_split["validation"].accuracy == pytest.approx(finished.metrics.accuracy, abs=1e-6)
    assert metrics_by_split["validation"].loss == pytest.approx(finished.metrics.loss, rel=1e-5)
    assert {path: path.stat().st_mtime_ns for path in model_dir.rglob("*")} == before


def test_an_earlier_checkpoint_has_metrics_of_its_own(finished, digits_dataset):
    model_dir = str(Path(finished.export).parent.parent)
    first = evaluate_checkpoint(configured(digits_dataset), digits_dataset, find_checkpoint(model_dir, step=0))
    assert first.step == 0
    assert first.loss > 2 * finished.metrics.loss


def test_a_damaged_record_is_named_and_gives_no_number(finished, dataset_copy):
    classifier, manifest = load_classifier(finished.export), read_manifest(dataset_copy)
    shard = dataset_copy / manifest.split("validation").shards[0].name
    with open(shard, "rb") as file:
        payloads = [payload for _, payload in record_format.read_frames(file)]
    image = record_format.decode(payloads[3]).encoded
    payloads[3] = payloads[3].replace(image, b"\xff\xd8" + bytes(len(image) - 2))
    shard.write_bytes(b"".join(map(record_format.frame, payloads)))
    with pytest.raises(ValueError, match=rf"record 3 of '{shard}' cannot be decoded: the JPEG file is damaged"):
        evaluate_export(classifier, manifest, "validation", 32)
    payloads[3] = b"no Example"
    shard.write_bytes(b"".join(map(record_format.frame, payloads)))
    with pytest.raises(ValueError, match=rf"record 3 of '{shard}' has .* \(Could not parse example input\); find"):
        evaluate_export(classifier, manifest, "validation", 32)
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ValueError, match="record 3 of"):
        evaluate_export(classifier, manifest, "validation", 32)


def test_a_shard_that_is_gone_is_told_as_such_and_not_as_an_error_of_tensorflow(finished, dataset_copy):
    manifest = read_manifest(dataset_copy)
    shard = dataset_copy / manifest.split("validation").shards[0].name
    shard.unlink()
    message = f"1 of the 2 shards of split 'validation' of '{dataset_copy}' are missing, such as '{shard.name}'"
    with pytest.raises(ValueError, match=message):
        evaluate_checkpoint(configured(manifest), manifest, find_checkpoint(str(Path(finished.export).parent.parent)))
    with pytest.raises(ValueError, match=message):
        evaluate_export(load_classifier(finished.export), manifest, "validation", 32)


def test_classes_of_another_dataset_are_no_result(finished, digits_dataset):
    other = dataclasses.replace(digits_dataset, classes=("cat", "dog"))
    with pytest.raises(ValueError, match=r"has classes \('cat', 'dog'\), but the export needs \('0', '1'"):
        evaluate_export(load_classifier(finished.export), other, "validation", 32)


def test_an_export_of_weights_that_are_no_numbers_is_said(finished, digits_dataset):
    def diverged(image_bytes):
        return {"probabilities": tf.fill([len(image_bytes), 10], math.nan)}

    classifier = dataclasses.replace(load_classifier(finished.export), signature=diverged, logits_signature=None)
    with pytest.raises(
        ValueError, match=r"the loss of '.*' is NaN or infinite on split 'validation': its training div"
    ):
        evaluate_export(classifier, digits_dataset, "validation", 32)


def sure(images, num_classes, training):
    """A network whose probabilities underflow: its logits lie thousands apart."""
    return 1e5 * tf.keras.layers.Dense(num_classes)(tf.keras.layers.GlobalAveragePooling2D()(images))


@pytest.mark.parametrize("kind", RUNNABLE)
@pytest.mark.long
def test_an_export_whose_probabilities_underflow_has_the_figures_that_scikit_learn_finds(
    digits_dataset, tmp_path, kind
):
    model_dir = str(tmp_path)
    config = configured(digits_dataset, trainer=kind, network="test_evaluate:sure", train_steps=1, learning_rate=1e-9)
    finished = run_training(digits_dataset, config, model_dir, f"{model_dir}/export", report=lambda line: None)
    assert finished
    classifier = load_classifier(finished.export)
    records = held_out_records(digits_dataset)
    files, labels = [record.encoded for record in records], np.array([record.label for record in records])
    logits, probabilities = np.array(classifier.logits(files), np.float64), np.array(classifier(files), np.float64)
    assert (probabilities[np.arange(len(labels)), labels] == 0).mean() > 0.5
    below = logits - logits.max(axis=1, keepdims=True)
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(labels, logits.argmax(axis=1)),
        "mean_recall": sklearn.metrics.balanced_accuracy_score(labels, logits.argmax(axis=1)),
        "top_5_accuracy": sklearn.metrics.top_k_accuracy_score(labels, logits, k=5),
        "loss": (np.log(np.exp(below).sum(axis=1)) - below[np.arange(len(labels)), labels]).mean(),
    }
    assert expected["accuracy"] < expected["top_5_accuracy"] < 1
    checkpoint_metrics = evaluate_checkpoint(config, digits_dataset, find_checkpoint(model_dir))
    export_metrics = evaluate_export(classifier, digits_dataset, "validation", 100)
    assert checkpoint_metrics.scalars() == pytest.approx(expected, rel=1e-3)
    assert export_metrics.scalars() == pytest.approx(expected, rel=1e-3)
    # An export of an earlier version has probabilities alone: what is tied for the fifth place is not found.
    earlier_classifier = dataclasses.replace(classifier, logits_signature=None)
    above = (probabilities >= probabilities[np.arange(len(labels)), labels][:, None]).sum(axis=1)
    earlier_metrics = evaluate_export(earlier_classifier, digits_dataset, "validation", 100)
    assert earlier_metrics.scalars()["top_5_accuracy"] == pytest.approx((above <= 5).mean())
    assert earlier_metrics.accuracy == pytest.approx(expected["accuracy"])
