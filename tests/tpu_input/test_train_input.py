"""Training input: endless, each example once an epoch, and the same again from any step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from support.training_input import AUGMENTED, UNCROPPED, Context, batches, images, same
from tpu_input import InputConfig, RecordSource, make_train_input_fn, training_order
from tpu_input.pipeline import order


@pytest.mark.long
def test_the_order_is_the_seed_of_the_config_whatever_seed_the_program_has(digits_dataset):
    caches = [dataclasses.replace(UNCROPPED, cache=cache) for cache in (None, "records")]
    expected = [batches(digits_dataset, config, 2) for config in caches]
    for seed in (0, 5):
        tf.random.set_seed(seed)
        for config, first in zip(caches, expected, strict=True):
            assert same(batches(digits_dataset, config, 2), first)


def test_an_epoch_holds_every_example_once_and_the_next_comes_in_another_order(digits_dataset):
    total = digits_dataset.split("train").num_examples
    assert total % 48 == 24
    contents = images(batches(digits_dataset, UNCROPPED, 2 * total // 48))
    first, second = contents[:total], contents[total : 2 * total]
    assert len(set(first)) == total
    assert set(first) == set(second)
    assert first != second


@pytest.mark.parametrize("num_hosts", [2, 3, 12])
@pytest.mark.long
def test_hosts_see_disjoint_examples_that_make_the_whole_split(digits_dataset, num_hosts):
    split = digits_dataset.split("train")
    shares = []
    for index in range(num_hosts):
        dataset = make_train_input_fn(digits_dataset, UNCROPPED)(
            {"batch_size": 1, "context": Context(index, num_hosts)}
        )
        epoch = dataset.take(split.num_examples // num_hosts).as_numpy_iterator()
        shares.append({features["image"].tobytes() for features, _ in epoch})
    assert sum(map(len, shares)) == len(set().union(*shares)) == split.num_examples


def test_two_runs_give_the_same_batches_and_another_seed_others(digits_dataset):
    run = batches(digits_dataset, AUGMENTED, 5)
    assert same(run, batches(digits_dataset, AUGMENTED, 5))
    assert not same(run, batches(digits_dataset, InputConfig(image_size=8, seed=1), 5))


@pytest.mark.parametrize("start_step", [1, 29, 30, 31, 62])
def test_a_run_started_at_a_step_sees_what_the_uninterrupted_run_sees_from_there(digits_dataset, start_step):
    # 1,464 examples are 30.5 steps: the starts lie within an epoch, around its end, and in the third.
    straight = batches(digits_dataset, AUGMENTED, start_step + 3)
    assert same(straight[start_step:], batches(digits_dataset, AUGMENTED, 3, start_step=start_step))


def test_a_start_counts_one_batch_for_each_replica_of_the_host(digits_dataset):
    context = Context(1, 2, replicas_per_host=4)
    straight = batches(digits_dataset, AUGMENTED, 3 * 4 + 4, context=context)
    assert same(straight[12:], batches(digits_dataset, AUGMENTED, 4, start_step=3, context=context))


def test_crops_differ_between_epochs_and_flips_happen(digits_dataset):
    total = digits_dataset.split("train").num_examples
    cropped = InputConfig(image_size=8, flip=False)
    assert len(set(images(batches(digits_dataset, cropped, 2 * total // 48)))) > 1.9 * total
    flipped = InputConfig(image_size=8, crop_area=(1.0, 1.0), crop_aspect=(1.0, 1.0))
    unflipped, mirrored = batches(digits_dataset, UNCROPPED, 10), batches(digits_dataset, flipped, 10)
    share = np.mean(
        [
            np.array_equal(a, b[:, ::-1])
            for (x, _), (y, _) in zip(unflipped, mirrored, strict=True)
            for a, b in zip(x, y, strict=True)
        ]
    )
    assert 0.4 < share < 0.6


@pytest.mark.long
def test_labels_belong_to_their_images(digits, digits_dataset):
    from tpu_input.pipeline.images import decode_for_training

    true_labels = {}
    for path in digits.rglob("*.jpg"):
        image = decode_for_training(path.read_bytes(), [0, 0], UNCROPPED).numpy().tobytes()
        true_labels[image] = int(path.parent.name)
    for batch, labels in batches(digits_dataset, UNCROPPED, 10):
        assert [true_labels[image.tobytes()] for image in batch] == labels.tolist()


def test_more_hosts_than_examples_are_fed_all_the_same(digits_dataset):
    input_fn = make_train_input_fn(digits_dataset, UNCROPPED, split="validation")
    dataset = input_fn({"batch_size": 1, "context": Context(333, 334)}).take(2)
    assert sum(features["weight"].sum() for features, _ in dataset.as_numpy_iterator()) == 2


@pytest.mark.parametrize(
    ("options", "from_files"),
    [
        ({}, True),
        pytest.param({"cache": "records"}, False, marks=pytest.mark.long),
        pytest.param({}, False, marks=pytest.mark.long),
        pytest.param({"augment": lambda image, seed: image}, False, marks=pytest.mark.long),
        pytest.param({"augment": lambda image, seed: image}, True, marks=pytest.mark.long),
    ],
)
def test_a_step_holds_the_same_images_on_any_number_of_hosts_also_when_it_changes(
    digits_dataset, monkeypatch, options, from_files
):
    if from_files:
        monkeypatch.setattr(order, "_IN_MEMORY_BYTES", 0)
        options = {name: value for name, value in options.items() if name != "cache"}  # a cache keeps a share
    config = dataclasses.replace(AUGMENTED, **options)

    def steps(num_hosts, count, start_step=0):
        hosts = [
            batches(
                digits_dataset, config, count, start_step, host=host, num_hosts=num_hosts, batch_size=48 // num_hosts
            )
            for host in range(num_hosts)
        ]
        return [np.concatenate([images for images, _ in step]) for step in zip(*hosts, strict=True)]

    alone = steps(1, 40)
    for actual, expected in zip(steps(2, 25) + steps(4, 15, start_step=25), alone, strict=True):
        assert np.array_equal(actual, expected)


@pytest.mark.parametrize("block_records", [1, 5, 17])
def test_a_loader_of_its_own_follows_training_by_the_numbers_of_the_order(digits_dataset, monkeypatch, block_records):
    monkeypatch.setattr(order, "_IN_MEMORY_BYTES", 0)
    config = dataclasses.replace(UNCROPPED, block_records=block_records)
    follower = training_order(digits_dataset, batch_size=8, seed=config.seed, block_records=block_records)
    assert follower.block_records == block_records
    source = RecordSource(digits_dataset, "train")
    training = batches(digits_dataset, config, 20, 300, batch_size=8)
    for (_, labels), numbers in zip(training, follower.batches(300, 20), strict=True):
        assert labels.tolist() == [source[int(number)].label for number in numbers]
