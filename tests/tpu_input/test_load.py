"""One call from a folder to batches of (image, label, weight): load()."""

from __future__ import annotations

import io
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tpu_input
from tpu_input import InputConfig, RecordSource, load, make_train_input_fn, read_manifest

# Every crop is the whole image as it is stored, so that an example is known by its pixels.
WHOLE: dict[str, Any] = {
    "image_size": 32,
    "crop_area": (1.0, 1.0),
    "crop_aspect": (1.0, 1.0),
    "flip": False,
    "eval_crop": 1.0,
}


def counted(dataset: tf.data.Dataset) -> Counter[tuple[bytes, int]]:
    """Returns how much each example weighs in all batches."""
    found: Counter[tuple[bytes, int]] = Counter()
    for images, labels, weights in dataset.as_numpy_iterator():
        for image, label, weight in zip(images, labels, weights, strict=True):
            found[image.tobytes(), int(label)] += int(weight)
    return +found  # without what weighs nothing


def every_example(manifest, split) -> Counter[tuple[bytes, int]]:
    return counted(load(manifest, split, training=False, **WHOLE))


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


@pytest.mark.parametrize("options", [{}, {"cache": "records"}, {"cache": "decoded"}])
def test_each_example_counts_once_in_each_of_so_many_epochs(digits_dataset, options):
    once = every_example(digits_dataset, "train")
    assert once.total() == 1464  # no multiple of the batch
    dataset = load(digits_dataset, batch_size=100, epochs=2, **WHOLE, **options)
    assert len(dataset) == 30
    assert counted(dataset) == once + once


def test_hosts_share_epochs_and_echoes_count_the_same(digits_dataset):
    hosts = [
        load(digits_dataset, batch_size=100, epochs=1, echo=2, host=host, num_hosts=3, **WHOLE) for host in range(3)
    ]
    assert [len(host) for host in hosts] == [10] * 3
    once = every_example(digits_dataset, "train")
    assert sum(map(counted, hosts), Counter()) == once + once


def test_a_resumed_epoch_is_the_rest_of_it(digits_dataset):
    whole = list(load(digits_dataset, batch_size=100, epochs=1, image_size=8).as_numpy_iterator())
    rest = load(digits_dataset, batch_size=100, epochs=1, image_size=8, start_step=9)
    assert len(rest) == len(whole) - 9 == 6
    for batch, expected in zip(rest.as_numpy_iterator(), whole[9:], strict=True):
        for values, expected_values in zip(batch, expected, strict=True):
            np.testing.assert_array_equal(values, expected_values)


def test_evaluation_is_every_example_once_and_nothing_else(digits_dataset):
    dataset = load(digits_dataset, "validation", batch_size=100, **WHOLE)
    batches = list(dataset.as_numpy_iterator())
    assert len(dataset) == 4
    assert [len(weight) for _, _, weight in batches] == [100, 100, 100, 33]
    images, labels, weights = (np.concatenate(values) for values in zip(*batches, strict=True))
    records = RecordSource(digits_dataset, "validation")
    assert labels.tolist() == [record.label for record in records]
    assert weights.tolist() == [1] * 333
    for image, record in zip(images, records, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(record.encoded)).convert("RGB"), float)
        assert abs(image - pixels).mean() < 3  # decoders differ by some levels


def test_evaluation_on_hosts_and_in_static_batches(digits_dataset):
    once = every_example(digits_dataset, "validation")
    hosts = [load(digits_dataset, "validation", batch_size=64, host=host, num_hosts=2, **WHOLE) for host in range(2)]
    assert sum(map(counted, hosts), Counter()) == once
    hosts = [
        load(digits_dataset, "validation", batch_size=64, host=host, num_hosts=2, static_batch=True, **WHOLE)
        for host in range(2)
    ]
    assert [len(host) for host in hosts] == [3, 3]
    assert hosts[0].element_spec[0].shape == [64, 32, 32, 3]
    assert sum(map(counted, hosts), Counter()) == once
    assert sum(float(weight.numpy().sum()) for host in hosts for _, _, weight in host) == 333


def test_a_batch_that_divides_the_examples_is_static(digits_dataset):
    dataset = load(digits_dataset, "validation", batch_size=111, image_size=8)
    assert dataset.element_spec[0].shape == [111, 8, 8, 3]
    assert len(list(dataset)) == 3


@pytest.mark.parametrize("split", ["train", "validation"])
def test_normalized_pixels_have_the_mean_and_deviation_of_the_training_split(digits_dataset, split):
    dataset = load(digits_dataset, split, training=False, normalize=True, **WHOLE)
    assert dataset.element_spec[0].dtype == tf.float32
    images = np.concatenate([image for image, _, _ in dataset.as_numpy_iterator()])
    raw = np.concatenate([image for image, _, _ in load(digits_dataset, split, training=False, **WHOLE)])
    train = digits_dataset.split("train")
    np.testing.assert_allclose(images, (raw - train.channel_mean) / np.array(train.channel_std), atol=1e-5)
    if split == "train":
        assert abs(images.mean()) < 0.02
        assert abs(images.std() - 1) < 0.02
    first = next(load(digits_dataset, epochs=1, normalize=True, layout="HWCN", **WHOLE).as_numpy_iterator())[0]
    expected = next(load(digits_dataset, epochs=1, normalize=True, **WHOLE).as_numpy_iterator())[0]
    np.testing.assert_array_equal(first, expected)


def test_options_are_those_of_the_input_and_of_the_dataset(digits_dataset):
    config = InputConfig.of(digits_dataset, seed=7)
    train = read_manifest(digits_dataset.path).split("train")
    assert (config.image_size, config.crop_area, config.seed) == (32, (0.6, 1.0), 7)
    assert (config.mean, config.std) == (train.channel_mean, train.channel_std)
    assert InputConfig.of(digits_dataset, image_size=16, mean=(0, 0, 0)).mean == (0, 0, 0)
    assert load(digits_dataset).element_spec[0].shape == [128, 32, 32, 3]


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
    ],
)
def test_a_mistake_is_named(digits_dataset, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load(digits_dataset, **arguments)


def test_a_folder_without_a_dataset_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no manifest\.json, so it is not a complete dataset"):
        tpu_input.load(tmp_path)


def test_skipped_records_weigh_nothing(dataset_copy):
    shard = dataset_copy / "validation-00000-of-00002.tfrecord"
    content = bytearray(shard.read_bytes())
    content[500:520] = bytes(20)  # in the first record
    shard.write_bytes(content)
    dataset = load(dataset_copy, "validation", image_size=8, on_corrupt="skip", max_corrupt=200)
    weights = np.concatenate([weight for _, _, weight in dataset.as_numpy_iterator()])
    assert len(weights) == 333
    assert 0 < 333 - weights.sum() < 333
