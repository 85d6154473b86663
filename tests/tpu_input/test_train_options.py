"""Training's options: augmentation, echoes, caches, a bounded shuffle, order given up for speed."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from support.training_input import AUGMENTED, UNCROPPED, Context, batches, images, same
from tpu_input import InputConfig, augment, make_eval_input_fn, make_train_input_fn, read_manifest
from tpu_input.pipeline import order
from tpu_input.pipeline.caching import cache_bytes, check_memory
from tpu_input.pipeline.decoding import parallel_decodes
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.memory import input_bytes
from tpu_input.storage.gcs_filesystem import set_up


def changed(config=AUGMENTED, **options):
    return dataclasses.replace(config, **options)


@pytest.fixture(
    scope="module", params=[{"cache": "records"}, {"cache": "decoded"}, {"echo": 3}, {"cache": "decoded", "echo": 2}]
)
def straight(digits_dataset, request):
    """Options and the batches of a run that is not interrupted."""
    return request.param, batches(digits_dataset, changed(**request.param), 62 + 3)


@pytest.mark.parametrize("start_step", [1, pytest.param(31, marks=pytest.mark.long), 62])
def test_a_resumed_run_is_exact_with_caches_and_echoes(digits_dataset, straight, start_step):
    options, run = straight
    resumed = batches(digits_dataset, changed(**options), 3, start_step=start_step)
    assert same(run[start_step : start_step + 3], resumed)


@pytest.mark.parametrize("cache", ["records", "decoded"])
def test_a_cache_keeps_every_example_once_an_epoch_in_another_order_and_freezes_no_crop(digits_dataset, cache):
    total = digits_dataset.split("train").num_examples
    contents = images(batches(digits_dataset, changed(UNCROPPED, cache=cache), 2 * total // 48))
    assert set(contents[:total]) == set(contents[total : 2 * total])
    assert len(set(contents)) == total
    assert contents[:total] != contents[total : 2 * total]
    cropped = InputConfig(image_size=8, flip=False, cache=cache)
    assert len(set(images(batches(digits_dataset, cropped, 2 * total // 48)))) > 1.9 * total


def test_a_cache_that_does_not_fit_is_refused_with_its_size(digits_dataset):
    config = InputConfig(8, cache="decoded")
    split = digits_dataset.split("train")
    needed = cache_bytes(digits_dataset, "train", Host(), config)
    assert needed == int(split.num_examples * split.height[1] * split.width[1] * 3)
    assert cache_bytes(digits_dataset, "train", Host(), InputConfig(8, cache="records")) == pytest.approx(
        split.num_bytes, rel=0.01
    )
    check_memory(8 * 10**9, config, available=10 * 10**9 + 1)
    with pytest.raises(ValueError, match=r'"decoded" needs 9.0 GB .* 10.0 GB available; use cache=None or "rec'):
        check_memory(9 * 10**9, config, available=10**10)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"cache": "decoded"}, {"echo": 2}, {"cache": "records"}])
def test_skipping_goes_with_caches_and_echoes(dataset_copy, options):
    for shard in ("train-00001-of-00009.tfrecord", "train-00002-of-00009.tfrecord"):
        data = (dataset_copy / shard).read_bytes()
        (dataset_copy / shard).write_bytes(data[:-20])
    manifest = read_manifest(dataset_copy)
    config = InputConfig(8, on_corrupt="skip", max_corrupt=2, **options)
    dataset = make_train_input_fn(manifest, config)({"batch_size": 24}).take(3 * 61 * config.echo)
    assert sum(features["weight"].sum() for features, _ in dataset.as_numpy_iterator()) == 3 * 1462 * config.echo


def test_echoes_are_other_crops_of_the_same_examples_in_consecutive_batches(digits_dataset):
    echoed = batches(digits_dataset, changed(echo=2), 6)
    assert all(np.array_equal(echoed[n][1], echoed[n + 1][1]) for n in (0, 2, 4))
    assert not np.array_equal(echoed[0][0], echoed[1][0])
    unechoed = batches(digits_dataset, AUGMENTED, 3)
    assert [labels.tolist() for _, labels in unechoed] == [labels.tolist() for _, labels in echoed[::2]]


@pytest.mark.long
def test_the_union_of_windows_is_decoded_as_each_alone(digits_dataset):
    echoed = batches(digits_dataset, changed(UNCROPPED, echo=2), 2)
    assert np.array_equal(echoed[0][0], echoed[1][0])
    assert np.array_equal(echoed[0][0], batches(digits_dataset, UNCROPPED, 1)[0][0])


@pytest.mark.parametrize("cache", [None, "decoded"])
def test_the_crops_of_an_image_are_in_different_steps_also_where_a_step_takes_several_batches(digits_dataset, cache):
    config = changed(UNCROPPED, echo=2, cache=cache)
    echoed = batches(digits_dataset, config, 12, context=Context(0, 1, replicas_per_host=3), batch_size=16)
    steps = [images(echoed[begin : begin + 3]) for begin in range(0, 12, 3)]
    assert [len(set(step)) for step in steps] == [48] * 4
    assert steps[0] == steps[1] != steps[2] == steps[3]


def test_no_number_is_left_for_tf_data_to_tune(digits_dataset):
    for make in (make_train_input_fn, make_eval_input_fn):
        options = make(digits_dataset, InputConfig(8))({"batch_size": 4}).options()
        assert options.autotune.enabled is False


def test_memory_is_a_sum_of_buffers_that_do_not_grow_with_the_dataset(digits_dataset, monkeypatch):
    split = digits_dataset.split("train")
    record, image = split.num_bytes // split.num_examples, 224 * 224 * 3
    config, host = InputConfig(224), Host(batches_per_step=8)
    small = input_bytes(digits_dataset, "train", config, 64, host)
    assert small == {
        "read": split.num_bytes,
        "decode": parallel_decodes() * (record + image),
        "crop": os.cpu_count() * (split.height[1] * split.width[1] * 3 + 5 * image * 4),
        "batches": 18 * 64 * image,
        "cache": 0,
    }
    monkeypatch.setattr(order, "_IN_MEMORY_BYTES", 0)
    lane = 150 * 2**10 + record
    assert input_bytes(digits_dataset, "train", config, 64, host) == small | {"read": 512 * (128 * 2**10 + lane)}
    larger = dataclasses.replace(split, shards=split.shards * 100)
    hundredfold = dataclasses.replace(digits_dataset, splits={"train": larger})
    assert input_bytes(hundredfold, "train", config, 64, host) == input_bytes(digits_dataset, "train", config, 64, host)
    bucket = dataclasses.replace(digits_dataset, path="gs://bucket/digits")
    monkeypatch.delenv("GCS_READ_CACHE_BLOCK_SIZE_MB", raising=False)
    monkeypatch.delenv("GCS_READAHEAD_BUFFER_SIZE_BYTES", raising=False)
    lane += 512 * 2**10 + 3 * record
    assert input_bytes(bucket, "train", config, 64, host)["read"] == 512 * (lane + 64 * 2**20)
    set_up()
    assert input_bytes(bucket, "train", config, 64, host)["read"] == 512 * (lane + 64 * 2**10)


def test_without_order_every_example_still_comes_once_an_epoch(digits_dataset):
    total = digits_dataset.split("train").num_examples
    contents = images(batches(digits_dataset, changed(UNCROPPED, deterministic=False), 61))
    # Where an epoch ends, images that are decoded at the same time overtake each other.
    counts = Counter(contents)
    assert len(counts) == total
    assert set(counts.values()) <= {1, 2, 3}
    assert sum(count != 2 for count in counts.values()) <= 2 * parallel_decodes()


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (augment.color_jitter(), "uint8"),
        (augment.color_jitter(), "float32"),
        (augment.rand_augment(), "float32"),
        pytest.param(augment.rand_augment(), "uint8", marks=pytest.mark.long),
        pytest.param(augment.rand_augment(3, 28), "uint8", marks=pytest.mark.long),
        pytest.param(augment.rand_augment(3, 28), "float32", marks=pytest.mark.long),
    ],
)
def test_augmentation_is_random_by_the_seed_alone(digits_dataset, function, dtype):
    config = changed(UNCROPPED, augment=function, dtype=dtype)
    run = batches(digits_dataset, config, 3)
    assert same(run, batches(digits_dataset, config, 3))
    assert not same(run, batches(digits_dataset, changed(UNCROPPED, dtype=dtype), 3))
    assert run[0][0].dtype == dtype
    assert 0 <= run[0][0].min() < run[0][0].max() <= 255


def test_an_augmentation_that_changes_the_shape_is_refused(digits_dataset):
    with pytest.raises(
        ValueError, match=r"augment must keep dtype and shape, got uint8 \(4, 8, 3\) for an image of uint8 \(8, 8, 3\)"
    ):
        batches(digits_dataset, changed(augment=lambda image, seed: image[:4]), 1)


@pytest.mark.parametrize("mix", [augment.mixup, augment.cutmix])
def test_a_mixed_loss_is_that_of_both_examples_each_by_its_share_and_its_weight(mix):
    random = np.random.default_rng(0)
    images = np.zeros([4, 8, 8, 3], np.float32)
    images[:2] = 1  # so that each is mixed with another of which it can be told
    labels, weight = random.dirichlet(np.ones(5), 4).astype(np.float32), np.array([1, 0, 0.5, 0], np.float32)
    logs = np.log(random.dirichlet(np.ones(5), 4))
    for step in range(5):
        mixed, new_labels, new_weight = mix(images, labels, tf.constant([0, step]), weight=tf.constant(weight))
        share = np.mean(mixed, axis=(1, 2, 3))
        share[2:] = 1 - share[2:]
        entropy, other = -np.sum(labels * logs, 1), -np.sum(labels[::-1] * logs, 1)
        expected = share * weight * entropy + (1 - share) * weight[::-1] * other
        np.testing.assert_allclose(new_weight * -np.sum(new_labels * logs, 1), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(new_weight, share * weight + (1 - share) * weight[::-1], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(np.sum(new_labels, 1), 1, rtol=1e-5)  # also where both weigh nothing


@pytest.mark.parametrize("mix", [augment.mixup, augment.cutmix])
@pytest.mark.parametrize(
    ("images_", "labels", "message"),
    [
        (
            tf.zeros([2, 8, 8, 3]),
            tf.constant([0, 1]),
            r"labels must be floating point, \[N, classes\], got int32 \(2,\)",
        ),
        (tf.zeros([2, 8, 8, 3]), tf.constant([0.0, 1.0]), r"got float32 \(2,\); integer labels cannot be mixed; use"),
        (tf.zeros([2, 8, 8, 3]), tf.constant([[0.0], [1.0]]), r"got float32 \(2, 1\); integer labels cannot"),
        (tf.zeros([2, 8, 8, 3]), tf.eye(2, dtype=tf.int32), r"got int32 \(2, 2\)"),
        (tf.zeros([2, 8, 8, 3], tf.uint8), tf.eye(2), r"images must be floating point.*got uint8 .*from_infeed"),
    ],
)
def test_what_cannot_be_mixed_is_refused(mix, images_, labels, message):
    with pytest.raises(ValueError, match=message):
        mix(images_, labels, tf.constant([0, 0]))


@pytest.mark.parametrize("mix", [augment.mixup, augment.cutmix])
@pytest.mark.parametrize("compiled", [False, True])
def test_mixing_weighs_labels_as_it_weighs_images(mix, compiled):
    batch = tf.stack([tf.zeros([8, 8, 3]), tf.ones([8, 8, 3])])
    shares, mixed = [], tf.function(mix, jit_compile=compiled)
    for step in range(20):
        images_, labels = mixed(batch, tf.eye(2), tf.constant([0, step]))
        np.testing.assert_allclose(tf.reduce_mean(images_[0]), labels[0, 1], atol=1e-5)
        np.testing.assert_allclose(tf.reduce_sum(labels, 1), [1, 1], atol=1e-5)
        shares.append(float(labels[0, 1]))
    assert len(set(shares)) > 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache": "crops"}, "cache must be one of records, decoded, got 'crops'"),
        ({"echo": 0}, "echo must be at least 1, got 0"),
        ({"block_records": 0}, "block_records must be at least 1, got 0"),
        ({"on_corrupt": "ignore"}, "on_corrupt must be one of error, skip, got 'ignore'"),
        ({"max_corrupt": -1}, "max_corrupt must be non-negative, got -1"),
    ],
)
def test_an_option_that_cannot_work_says_what_is_needed(change, message):
    with pytest.raises(ValueError, match=message):
        InputConfig(8, **change)
