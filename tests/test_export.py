"""The exported model: loads without tags, and says of raw files what evaluation says of records."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ends with TensorFlow 2.15")

from app_fixtures import configured, keras_warns

from estimator_app import loop
from estimator_app.export import classify_file, find_export, load_classifier
from tpu_input import schema

pytestmark = keras_warns


@pytest.fixture(scope="module")
def finished(digits_dataset, tmp_path_factory):
    """A run whose training batches are laid out for a TPU; serving's never are."""
    model_dir = str(tmp_path_factory.mktemp("model"))
    config = configured(digits_dataset, layout="HWCN", train_steps=60, train_batch_size=64, learning_rate=0.1)
    return loop.run(digits_dataset, config, model_dir, f"{model_dir}/export")


def held_out_records(manifest) -> list[schema.Record]:
    records = []
    for shard in manifest.split("validation").shards:
        with open(f"{manifest.path}/{shard.name}", "rb") as file:
            records += [schema.decode(payload) for _, payload in schema.read_frames(file)]
    return records


def test_one_signature_takes_files_and_gives_probabilities_label_and_class(finished, digits_dataset):
    signature = tf.saved_model.load(finished.export).signatures["serving_default"]
    records = held_out_records(digits_dataset)
    outputs = signature(image_bytes=tf.constant([record.encoded for record in records]))
    probabilities, labels = outputs["probabilities"].numpy(), outputs["label"].numpy()
    assert set(outputs) == {"probabilities", "label", "class"}
    assert probabilities.shape == (len(records), 10)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(labels, probabilities.argmax(axis=1))
    assert [name.decode() for name in outputs["class"].numpy()] == [digits_dataset.classes[label] for label in labels]
    truth = np.array([record.label for record in records])
    assert (labels == truth).mean() == pytest.approx(finished.metrics.accuracy)
    loss = -np.log(probabilities[np.arange(len(truth)), truth]).mean()
    assert loss == pytest.approx(finished.metrics.loss, rel=1e-4)


def test_a_file_is_classified(finished, digits):
    classify = load_classifier(finished.export)
    files = [path for label in "0123456789" for path in sorted((digits / label).iterdir())[:5]]
    predictions = [classify_file(classify, str(path)) for path in files]
    right = [prediction.class_name == path.parent.name for prediction, path in zip(predictions, files, strict=True)]
    assert sum(right) > 40
    assert all(0.1 <= prediction.probability <= 1 for prediction in predictions)


def test_what_is_no_jpeg_is_told_apart(finished, digits, tmp_path):
    whole = next((digits / "3").iterdir()).read_bytes()
    png = io.BytesIO()
    Image.new("RGB", (8, 8)).save(png, "PNG")
    classify = load_classifier(finished.export)
    for data, reason in [
        (b"", "the file is empty"),
        (png.getvalue(), "not a JPEG file"),
        (b"hello", "not a JPEG file"),
        (whole[: len(whole) // 2], "a damaged JPEG file"),
        (whole[:20], "a damaged JPEG file"),
    ]:
        (tmp_path / "image.jpg").write_bytes(data)
        with pytest.raises(ValueError, match=f"^{reason}$"):
            classify_file(classify, str(tmp_path / "image.jpg"))
    with pytest.raises(ValueError, match=r"^No such file or directory$"):
        classify_file(classify, str(tmp_path / "nowhere.jpg"))
    with pytest.raises(ValueError, match=r"^Is a directory$"):
        classify_file(classify, str(tmp_path))


def test_the_newest_complete_export_is_taken(tmp_path):
    for name in ("999", "1763596800", "temp-1763596999"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "saved_model.pb").touch()
    assert find_export(f"{tmp_path}/") == f"{tmp_path}/1763596800"
    assert find_export(f"{tmp_path}/999") == f"{tmp_path}/999"
    for empty in (tmp_path / "nowhere", tmp_path / "999" / "saved_model.pb"):
        with pytest.raises(ValueError, match="holds no SavedModel"):
            find_export(str(empty))
