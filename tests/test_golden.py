"""Bytes and figures that no move or rename may change; these values were taken before any file was moved."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import sklearn.datasets

from beam_pipelines.__main__ import main as beam_pipelines_main
from estimator_app.__main__ import main as estimator_app_main
from tpu_input import InputConfig, make_eval_input_fn, make_train_input_fn, read_manifest

COUNT = 12  # files of each of the two photographs that scikit-learn ships
SHARDS = {
    "train-00000-of-00003.tfrecord": "ccd9b27abf4c4a92",
    "train-00001-of-00003.tfrecord": "c826d5e9258ef828",
    "train-00002-of-00003.tfrecord": "8cb17f3b86a63442",
    "validation-00000-of-00002.tfrecord": "affc1e5544725995",
    "validation-00001-of-00002.tfrecord": "7afe71ed49c029e6",
}
LENGTHS = "5ec37e157c54ee4b"
INDEX, MANIFEST = "aa9806ca053097fd", "b22be14d67d6593a"
BATCHES = [  # the mean of three batches of training and one of evaluation, then a number for each image and its place
    [114.55184, 108489.46619, 580212.98486, 510681.08101, 2034466.76365],
    [95.20138, 231401.78384, 278362.51373, 513656.84989, 853003.8997],
    [109.77205, 118261.05786, 665826.32536, 1041947.65467, 828804.69915],
    [111.256872, 180715.40683, 367342.57957, 1064896.38925, 850286.04246],
]
SCALED = [  # the same with crops decoded at 1/2, 1/4 or 1/8, as all of them are at least twice 32 pixels
    [114.69673, 108063.29725, 577143.09371, 516583.17611, 2036209.26906],
    [95.70332, 229799.30029, 281052.70004, 521486.52785, 864022.36276],
    [111.01323, 120362.90392, 666766.27636, 1061911.45062, 838630.4907],
    [112.606542, 182419.194, 373417.67569, 1075396.60904, 864149.45108],
]
FIGURES = [[4, 0.22721, 0.59924], [8, 0.088151, 0.135067]]  # step, loss of the evaluation, loss of training


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    """Two classes of one photograph each, whose files differ by a comment, in two splits of several shards."""
    folder = tmp_path_factory.mktemp("golden")
    for name in ("china", "flower"):
        photograph = Path(sklearn.datasets.__file__).with_name("images").joinpath(f"{name}.jpg").read_bytes()
        (folder / "photographs" / name).mkdir(parents=True)
        for number in range(COUNT):
            comment = b"\xff\xfe\x00\x04%02d" % number
            (folder / "photographs" / name / f"{number}.jpg").write_bytes(photograph[:2] + comment + photograph[2:])
    argv = [f"--input={folder / 'photographs'}", f"--output={folder / 'dataset'}", "--shard_size=1MB", "--seed=3"]
    assert beam_pipelines_main(["convert", *argv, "--splits=train=75%,validation=25%"]) == 0
    return folder / "dataset"


def test_the_bytes_of_a_dataset(dataset):
    shards = {path.name: digest(path.read_bytes()) for path in sorted(dataset.glob("*.tfrecord"))}
    assert shards == SHARDS
    # These came later.
    later = ["source_bytes", "source_height", "source_width"]
    rows = {
        path.stem: pq.read_table(path).drop(["uri", *later]).to_pylist()
        for path in (dataset / "index").glob("*.parquet")
    }
    assert digest(json.dumps(rows, sort_keys=True).encode()) == INDEX
    assert digest(json.dumps(pq.read_table(dataset / "lengths.parquet").to_pydict()).encode()) == LENGTHS
    manifest = json.loads((dataset / "manifest.json").read_text())
    del manifest["sources"], manifest["written_by"]
    assert digest(json.dumps(manifest, sort_keys=True).encode()) == MANIFEST


def sums(batch) -> list[float]:
    """Returns numbers that tell the images of a batch, and their order, from others."""
    images = batch.astype(np.float64)
    return [
        float(images.mean()),
        *(float(x) for x in (images * np.arange(images.size).reshape(images.shape)).mean((1, 2, 3))),
    ]


@pytest.mark.parametrize(("scaled_decode", "expected"), [(False, BATCHES), (True, SCALED)])
def test_the_batches_of_training_and_evaluation(dataset, scaled_decode, expected):
    config = InputConfig(image_size=32, dtype="float32", layout="NHWC", seed=5, scaled_decode=scaled_decode)
    manifest = read_manifest(dataset)
    training = iter(make_train_input_fn(manifest, config)({"batch_size": 4}).take(3))
    evaluation = iter(make_eval_input_fn(manifest, config)({"batch_size": 4}).take(1))
    batch_sums = [sums(features["image"].numpy()) for features, _ in [*training, *evaluation]]
    np.testing.assert_allclose(batch_sums, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.core
def test_the_figures_of_a_training(dataset, tmp_path):
    flags = ("--image_size=32", "--train_batch_size=4", "--eval_batch_size=4", "--train_steps=8", "--steps_per_eval=4")
    argv = [
        f"--dataset={dataset}",
        f"--model_dir={tmp_path}/model",
        *flags,
        "--optimizer=adamw",
        "--learning_rate=0.001",
    ]
    assert estimator_app_main(["train", *argv]) == 0
    with (tmp_path / "model" / "history.csv").open() as file:
        rows = [[float(row[name]) for name in ("step", "loss", "train_loss")] for row in csv.DictReader(file)]
    np.testing.assert_allclose(rows, FIGURES, rtol=0.03)  # versions of TensorFlow differ by 0.02
