"""One call from a folder to batches of (image, label, weight): load()."""

from __future__ import annotations

import dataclasses
import io
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tpu_input
from support.app_fixtures import records_of
from tpu_input import InputConfig, load, make_train_input_fn, read_manifest

# Every crop is the whole image as it is stored, so that an example is known by its pixels.
UNCROPPED: dict[str, Any] = {
    "image_size": 32,
    "crop_area": (1.0, 1.0),
    "crop_aspect": (1.0, 1.0),
    "flip": False,
    "eval_crop": 1.0,
}


def counted(dataset: tf.data.Dataset) -> Counter[tuple[bytes, int]]:
    """Returns how much each example weighs in all batches."""
    counts: Counter[tuple[bytes, int]] = Counter()
    for images, labels, weights in dataset.as_numpy_iterator():
        for image, label, weight in zip(images, labels, weights, strict=True):
            counts[image.tobytes(), int(label)] += int(weight)
    return +counts  # without what weighs nothing


@pytest.fixture(scope="module")
def once(digits_dataset) -> Counter[tuple[bytes, int]]:
    """Every training example once; their number is no multiple of the tests' batches."""
    counts = counted(load(digits_dataset, training=False, **UNCROPPED))
    assert counts.total() == 1464
    return counts


def test_training_is_that_of_the_input_fn_and_endless(digits_dataset):
    dataset = load(digits_dataset.path, image_size=8, batch_size=48, seed=3, start_step=2)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert dataset.element_spec == (
        tf.TensorSpec([48, 8, 8, 3], tf.uint8),
        tf.TensorSpec([48], tf.int32),
        tf.TensorSpec([48], tf.float32),
    )
    config = InputConfig(image_size=8, crop_area=(0.6, 1.0), seed=3)  # the crops that fit images of 32 pixels
    expected = make_train_input_fn(digits_dataset, config, start_step=2)({"batch_size": 48})
    pairs = zip(dataset.take(3).as_numpy_iterator(), expected.take(3).as_numpy_iterator(), strict=True)
    for (image, label, weight), (features, expected_label) in pairs:
        np.testing.assert_array_equal(image, features["image"])
        np.testing.assert_array_equal(label, expected_label)
        assert weight.tolist() == [1] * 48


@pytest.mark.parametrize("options", [{}, {"cache": "decoded"}])
def test_each_example_counts_once_in_each_of_so_many_epochs(digits_dataset, once, options):
    dataset = load(digits_dataset, batch_size=100, epochs=2, **UNCROPPED, **options)
    assert len(dataset) == 30
    assert counted(dataset) == once + once


def test_hosts_share_epochs_and_echoes_count_the_same(digits_dataset, once):
    options = {"batch_size": 100, "epochs": 1, "echo": 2, **UNCROPPED}
    hosts = [load(digits_dataset, **options, host=host, num_hosts=2) for host in range(2)]
    assert [len(host) for host in hosts] == [16, 16]
    assert sum(map(counted, hosts), Counter()) == once + once


def test_a_resumed_epoch_is_the_rest_of_it(digits_dataset):
    epoch = list(load(digits_dataset, batch_size=100, epochs=1, image_size=8).as_numpy_iterator())
    rest = load(digits_dataset, batch_size=100, epochs=1, image_size=8, start_step=9)
    assert len(rest) == len(epoch) - 9 == 6
    for batch, expected in zip(rest.as_numpy_iterator(), epoch[9:], strict=True):
        for values, expected_values in zip(batch, expected, strict=True):
            np.testing.assert_array_equal(values, expected_values)


def test_evaluation_is_every_example_once_and_nothing_else(digits_dataset):
    dataset = load(digits_dataset, "validation", batch_size=100, **UNCROPPED)
    batches = list(dataset.as_numpy_iterator())
    assert len(dataset) == 4
    assert [len(weight) for _, _, weight in batches] == [100, 100, 100, 33]
    images, labels, weights = (np.concatenate(values) for values in zip(*batches, strict=True))
    records = records_of(digits_dataset, "validation")
    assert labels.tolist() == [record.label for record in records]
    assert weights.tolist() == [1] * 333
    for image, record in zip(images, records, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(record.encoded)).convert("RGB"), float)
        assert abs(image - pixels).mean() < 3  # decoders differ by some levels


def test_evaluation_on_hosts_and_in_static_batches(digits_dataset):
    options = {"batch_size": 64, "num_hosts": 2, **UNCROPPED}
    hosts = [load(digits_dataset, "validation", host=host, static_batch=bool(host), **options) for host in range(2)]
    assert [len(host) for host in hosts] == [3, 3]
    assert [host.element_spec[0].shape[0] for host in hosts] == [None, 64]
    weights = [np.concatenate([weight for _, _, weight in host.as_numpy_iterator()]) for host in hosts]
    assert [(len(weight), weight.sum()) for weight in weights] == [(166, 166), (192, 167)]
    labels = np.concatenate([label for host in hosts for _, label, _ in host.as_numpy_iterator()])[:333]
    assert labels.tolist() == [record.label for record in records_of(digits_dataset, "validation")]


def test_normalized_pixels_have_the_mean_and_deviation_of_the_training_split(digits_dataset):
    # 366 divides the examples, so that the shape of each batch is known.
    dataset = load(digits_dataset, training=False, batch_size=366, layout="HWCN", normalize=True, **UNCROPPED)
    assert dataset.element_spec[0] == tf.TensorSpec([366, 32, 32, 3], tf.float32)
    images = np.concatenate([image for image, _, _ in dataset.as_numpy_iterator()])
    assert len(images) == 1464
    assert abs(images.mean()) < 0.02
    assert abs(images.std() - 1) < 0.02


def test_further_features_come_beside_the_image(digits_dataset):
    manifest = dataclasses.replace(digits_dataset, options={"features": {"image/height": "int"}})
    dataset = load(manifest, "validation", batch_size=300, image_size=8, features=("image/height",))
    first, last = ((*inputs.values(), weight) for inputs, _, weight in dataset.as_numpy_iterator())
    assert list(dataset.element_spec[0]) == ["image", "image/height"]
    assert [len(values) for values in (*first, *last)] == [300] * 3 + [33] * 3
    assert next(iter(dataset))[0]["image/height"].numpy().tolist() == [32] * 300


def test_options_are_those_of_the_input_and_of_the_dataset(digits_dataset):
    config = InputConfig.of(digits_dataset, seed=7)
    train = read_manifest(digits_dataset.path).split("train")
    assert (config.image_size, config.crop_area, config.seed) == (32, (0.6, 1.0), 7)
    assert (config.mean, config.std) == (train.channel_mean, train.channel_std)
    assert InputConfig.of(digits_dataset, image_size=16, mean=(0, 0, 0)).mean == (0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"imagesize": 8}, "there is no option 'imagesize'; did you mean image_size?"),
        ({"epoch": 8}, "there is no option 'epoch'; did you mean epochs?"),
        ({"batch_size": "8"}, "batch_size must be an integer, got '8'"),
        ({"split": "test"}, "has no split 'test'; it has 'train', 'validation'"),
        ({"split": "validation", "epochs": 1}, "evaluation of 'validation' is one pass; leave them out"),
        ({"split": "validation", "layout": "HWCN"}, "set static_batch=True for evaluation"),
        ({"epochs": 0}, "epochs must be at least 1, or None for an endless dataset, got 0"),
        ({"epochs": 1, "start_step": 12}, "start_step must be below the 12 steps of epochs=1, got 12"),
        ({"epochs": 1, "deterministic": False}, "epochs needs deterministic=True and no service"),
        ({"epochs": 1, "cache": "records", "num_hosts": 2}, "epochs with a cache needs a single host"),
        ({"host": 2}, "host must be at least 0 and below num_hosts 1, got 2"),
        ({"batch_size": 10**9}, "batch_size=1000000000 with images of"),
        ({"class_weight": {0: "2"}}, "class_weight of class 0 must be a number, got '2'"),
    ],
)
def test_a_mistake_is_named(digits_dataset, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load(digits_dataset, **arguments)


def test_a_folder_without_a_dataset_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no manifest\.json, so it is not a complete dataset"):
        tpu_input.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("manifest.json", "is a file, but a dataset is a folder"), ("train-*", "is a pattern, but a dataset is a folder")],
)
def test_a_file_or_a_pattern_is_no_dataset(digits_dataset, name, message):
    with pytest.raises(ValueError, match=message):
        tpu_input.load(f"{digits_dataset.path}/{name}")


def test_skipped_records_weigh_nothing(dataset_copy):
    shard = dataset_copy / "validation-00000-of-00002.tfrecord"
    content = bytearray(shard.read_bytes())
    content[500:520] = bytes(20)  # in the first record
    shard.write_bytes(content)
    dataset = load(dataset_copy, "validation", image_size=8, on_corrupt="skip", max_corrupt=200)
    weights = np.concatenate([weight for _, _, weight in dataset.as_numpy_iterator()])
    assert len(weights) == 333
    assert 0 < 333 - weights.sum() < 333
