"""The order of training with sampling="balanced": every class equally often, and every record of a class."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from support.dataset_writer import write_dataset
from support.numbered_dataset import write_numbered
from support.permutation import hashed, permuted
from support.training_input import AUGMENTED, UNCROPPED, batches, images, same
from tpu_input import InputConfig, make_train_input_fn, training_order
from tpu_input.pipeline import order as order_module
from tpu_input.pipeline.caching import cache_bytes
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.lanes import lane_numbers, lane_records
from tpu_input.pipeline.order import BalancedOrder, Order, turns

# Records of each class: one class with a single record, one without any, one of each size between.
COUNTS = (40, 1, 0, 7, 100, 2)
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(6), COUNTS)).tolist()
BALANCED = dataclasses.replace(UNCROPPED, sampling="balanced")


def stream(labels: list[int], seed: int, positions: int) -> list[int]:
    """The documented order, in the simplest way: a turn after the other, in each a record of each class."""
    members = [[n for n, label in enumerate(labels) if label == class_label] for class_label in sorted(set(labels))]
    records: list[int] = []
    for turn in itertools.count():
        if len(records) >= positions:
            return records[:positions]
        key = hashed(hashed((turn + hashed(seed)) % 2**64))
        for place in range(len(members)):
            number = permuted(place, len(members), key)
            group = members[number]
            within = hashed((hashed((turn // len(group) + hashed(seed)) % 2**64) + number + 1) % 2**64)
            records.append(group[permuted(turn % len(group), len(group), within)])
    raise AssertionError


def order(lanes: int, seed: int = 3, labels: list[int] | None = None) -> BalancedOrder:
    labels = LABELS if labels is None else labels
    return BalancedOrder(len(labels), lanes, seed, 1, np.array(labels, np.int32))


@pytest.mark.parametrize("lanes", [1, 8, 48])
def test_the_order_is_turns_of_classes_and_rounds_of_their_records(lanes):
    steps = 600 // lanes
    assert order(lanes).batches(0, steps).ravel().tolist() == stream(LABELS, 3, steps * lanes)
    far = order(lanes).batches(steps - 2, 2).ravel().tolist()
    assert far == stream(LABELS, 3, steps * lanes)[(steps - 2) * lanes :]


def test_an_epoch_begins_as_many_turns_as_its_positions_need(tmp_path):
    manifest = write_numbered(tmp_path, [len(LABELS)], labels=LABELS)  # 150 records of 5 classes that have some
    assert [turns(manifest, "train", sampling) for sampling in ("equal", "balanced")] == [1, 30]
    more = write_numbered(tmp_path / "more", [151], labels=[*LABELS, 0])
    assert turns(more, "train", "balanced") == 31
    assert turns(write_numbered(tmp_path / "few", [3], labels=[0, 0, 0]), "train", "balanced") == 3
    balanced = Order.of(manifest, "train", 8, seed=3, most=17, sampling="balanced")
    assert balanced.batches(0, 9).tolist() == order(8).batches(0, 9).tolist()


@pytest.mark.parametrize("lanes", [1, 24])
def test_at_every_step_classes_and_records_of_a_class_have_come_equally_often_or_once_more(lanes):
    counts, labels = np.zeros(len(LABELS), np.int64), np.array(LABELS)
    for step in order(lanes).batches(0, 1500 // lanes):
        np.add.at(counts, step, 1)
        by_class = np.bincount(labels, weights=counts)[[0, 1, 3, 4, 5]]
        assert by_class.max() - by_class.min() <= 1
        for label in set(LABELS):
            assert np.ptp(counts[labels == label]) <= 1
    assert counts[labels == 1] > 20 * counts[labels == 4].max()


def test_classes_and_records_come_in_a_new_random_order_each_time():
    numbers = order(1).batches(0, 5 * 4000).ravel()
    # Which class comes at which place of a turn: 5 x 5 counts of 800 each. 55.0 is the 0.9999 quantile of chi² with 16
    # degrees of freedom, those of a table of permutations, and then some.
    classes = np.array(LABELS)[numbers].reshape(-1, 5)
    table = np.array([[(classes[:, place] == label).sum() for place in range(5)] for label in (0, 1, 3, 4, 5)])
    assert ((table - 800) ** 2 / 800).sum() < 55
    # In which of seven turns a record of class 3 comes: 7 x 7 counts of 4000 / 7 / 7.
    rounds = numbers[np.array(LABELS)[numbers] == 3][: 7 * 571].reshape(-1, 7)
    records = np.flatnonzero(np.array(LABELS) == 3)
    table = np.array([[(rounds[:, place] == record).sum() for place in range(7)] for record in records])
    assert ((table - 571 / 7) ** 2 / (571 / 7)).sum() < 80
    assert not (order(1, seed=4).batches(0, 100) == order(1).batches(0, 100)).all()


@pytest.mark.parametrize("num_hosts", [1, *(pytest.param(count, marks=pytest.mark.long) for count in range(2, 9))])
def test_hosts_read_what_the_order_says_from_any_step_on(tmp_path, num_hosts):
    manifest = write_numbered(tmp_path / "d", (60, 1, 89), labels=LABELS)
    lanes = 24 if 24 % num_hosts == 0 else num_hosts * 3
    expected = order(lanes).batches(5, 9)
    record_order = training_order(manifest, lanes, seed=3, sampling="balanced")
    for host in {0, num_hosts - 1}:
        positions = range(host * lanes // num_hosts, (host + 1) * lanes // num_hosts)
        read = lane_records(manifest, "train", record_order, positions, 5, 14)
        pairs = [(int(number), int(record.split(b":")[0])) for number, record in read.as_numpy_iterator()]
        assert [record for _, record in pairs] == expected[:, positions.start : positions.stop].ravel().tolist()
        assert all(number % len(LABELS) == record for number, record in pairs)
        in_memory = lane_numbers(record_order, positions, 5).take(len(pairs))
        assert [tuple(map(int, pair)) for pair in in_memory.as_numpy_iterator()] == pairs
    assert len(pairs) == 9 * lanes // num_hosts


@pytest.fixture(scope="module")
def rare(digits, tmp_path_factory):
    """65 digits in three shards, of class 0 thirteen times as many as of class 2."""
    folder = tmp_path_factory.mktemp("rare")
    for label, count in enumerate((39, 23, 3)):
        (folder / "in" / str(label)).mkdir(parents=True)
        for source in sorted((digits / str(label)).iterdir())[:count]:
            (folder / "in" / str(label) / source.name).write_bytes(source.read_bytes())
    return write_dataset(folder / "in", folder / "out", {"train": (65, 3)})


@pytest.fixture(
    params=["files", *(pytest.param(cache, marks=pytest.mark.long) for cache in ("memory", "records", "decoded"))]
)
def cache_options(request, monkeypatch):
    """Where the records are read from, as options of InputConfig."""
    if request.param != "memory":
        monkeypatch.setattr(order_module, "_IN_MEMORY_BYTES", 0)
    return {"cache": request.param} if request.param in ("records", "decoded") else {}


@pytest.mark.parametrize("num_hosts", [2, *(pytest.param(count, marks=pytest.mark.long) for count in (1, 3, 4, 6, 8))])
def test_the_batches_of_any_number_of_hosts_from_any_step_on_are_those_of_one(rare, cache_options, num_hosts):
    config = dataclasses.replace(BALANCED, **cache_options)
    expected = batches(rare, config, 4, batch_size=24)
    assert [np.bincount(labels).tolist() for _, labels in expected] == [[8, 8, 8]] * 4
    hosts = [
        batches(rare, config, 2, start_step=2, batch_size=24 // num_hosts, host=host, num_hosts=num_hosts)
        for host in range(num_hosts)
    ]
    parts = [
        (np.concatenate([part[step][0] for part in hosts]), np.concatenate([part[step][1] for part in hosts]))
        for step in (0, 1)
    ]
    assert same(parts, expected[2:])


def test_wherever_records_are_kept_the_batches_are_the_same(rare, monkeypatch):
    config = dataclasses.replace(AUGMENTED, sampling="balanced", scaled_decode=False)  # decoded images are not scaled
    results = [batches(rare, config, 3, batch_size=24)]
    monkeypatch.setattr(order_module, "_IN_MEMORY_BYTES", 0)
    for cache in (None, "records", "decoded"):
        results.append(batches(rare, dataclasses.replace(config, cache=cache), 3, batch_size=24))
    assert all(same(one, results[0]) for one in results[1:])


def test_an_example_gets_another_crop_each_time_it_comes(rare):
    config = dataclasses.replace(AUGMENTED, crop_area=(0.1, 1.0), sampling="balanced")
    steps = batches(rare, config, 3, batch_size=24)
    assert len(set(images(steps))) > 70  # of 72, of which 24 show three digits


def test_a_cache_takes_the_memory_of_the_whole_split_on_each_host(rare):
    num_bytes = cache_bytes(rare, "train", Host(0, 4), InputConfig(8, cache="records", sampling="balanced"))
    assert num_bytes == rare.split("train").num_bytes


def test_corrupt_records_are_counted_by_epoch(rare):
    """Those of a class that comes 22 times an epoch; a turn has one, and the run 48."""
    config = dataclasses.replace(BALANCED, on_corrupt="skip", max_corrupt=30)
    config_of_labels = dataclasses.replace(rare, classes=("0", "1"))  # so that class 2 is outside the classes
    dataset = make_train_input_fn(config_of_labels, config)({"batch_size": 24})
    weights = np.concatenate([features["weight"] for features, _ in dataset.take(6).as_numpy_iterator()])
    assert weights.sum() == 2 * 6 * 24 / 3
    fewer = make_train_input_fn(config_of_labels, dataclasses.replace(config, max_corrupt=15))({"batch_size": 24})
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_corrupt=15"):
        list(fewer.take(6))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"options": {"label_type": "classes"}},
            "one class for each image, and the images of .* have several labels each",
        ),
        ({"options": {"label_type": "none"}}, "one class for each image, and the images of .* have no labels"),
        ({"fingerprint": ""}, "convert them with: jpeg2tpu convert"),
    ],
)
def test_a_dataset_without_one_class_for_each_image_in_an_index_is_refused(rare, changes, message):
    for make in (
        lambda manifest: make_train_input_fn(manifest, BALANCED),
        lambda manifest: training_order(manifest, 8, sampling="balanced"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            make(dataclasses.replace(rare, **changes))
        assert "\n" not in str(caught.value)


def test_an_index_that_the_manifest_does_not_count_is_refused(rare):
    split = rare.split("train")
    other = dataclasses.replace(split, class_counts=(39, 22, 4))
    with pytest.raises(ValueError, match="repair it with: jpeg2tpu verify --repair"):
        training_order(dataclasses.replace(rare, splits={"train": other}), 8, sampling="balanced")


def test_a_service_is_refused():
    with pytest.raises(ValueError, match="sampling must be 'equal' with a service"):
        InputConfig(8, service="grpc://a:1", deterministic=False, sampling="balanced")
