"""The order of training: every record once an epoch, the same on any number of hosts, begun at any step."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from support.numbered_dataset import write_numbered
from support.permutation import hashed, permuted
from tpu_input.dataset_format.manifest import Manifest, Shard, Split, shard_name
from tpu_input.pipeline import order as order_module
from tpu_input.pipeline.caching import Share, shuffled
from tpu_input.pipeline.lanes import lane_numbers, lane_records
from tpu_input.pipeline.order import Order, is_in_memory, mix

SHARDS = [(3940, 10), (1,) * 50, (547, 548, 548, 1), (5, 3), (300,) * 10, (700, 1, 2300)]
SHARD_COUNTS = [(3940, 10), (1,) * 50, (700, 1, 2300)]


def stream(num_examples: int, num_lanes: int, block: int, seed: int, epochs: int) -> list[int]:
    """The documented order, in the simplest way: blocks are permuted, put in a line, and the line is cut into lanes."""
    records = []
    for epoch in range(epochs):
        key = hashed((epoch + hashed(seed)) % 2**64)
        full = num_examples // block
        line = [permuted(slot, full, key) * block + place for slot in range(full) for place in range(block)]
        line += range(full * block, num_examples)
        turn = hashed(key) % num_examples
        line = line[turn:] + line[:turn]
        lengths = [num_examples // num_lanes + (lane < num_examples % num_lanes) for lane in range(num_lanes)]
        ends = list(itertools.accumulate(lengths))
        cut = [line[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        records += [record for row in itertools.zip_longest(*cut) for record in row if record is not None]
    return records


def read(manifest, order, positions, start, steps):
    """The records that a host reads, [steps, positions]."""
    dataset = lane_records(manifest, "train", order, positions, start).take(steps * len(positions))
    pairs = [(int(position), int(record.split(b":")[0])) for position, record in dataset.as_numpy_iterator()]
    assert all(position % order.num_examples == number for position, number in pairs)
    return np.array([number for _, number in pairs]).reshape(steps, len(positions))


def test_the_order_of_a_seed_is_that_of_every_version():
    # Else a run that is resumed by another version would leave out some records and repeat others.
    golden = "59c0924e97a3c41baa90afe3559bbb27413c95c656e24a91f6866dec941dae09"
    orders = [Order(*sizes) for sizes in ((5, 1), (191, 1), (1000, 8), (4096, 3), (20_001, 64))]
    numbers = [order.batches(start, 50).tolist() for order in orders for start in (0, 1000)]
    assert hashlib.sha256(json.dumps(numbers).encode()).hexdigest() == golden


@pytest.mark.parametrize("lanes", [1, 8, 48, 100])
def test_a_block_is_the_largest_that_lanes_and_split_have_several_of_and_that_divides_no_lane(lanes):
    for num_examples in range(lanes, 3000):
        length = num_examples // lanes
        sizes = [
            size
            for size in (17, 13, 11, 7, 5, 3, 1)
            if size == 1 or (2 * size <= length and 64 * size <= num_examples and length % size and (length + 1) % size)
        ]
        assert Order(num_examples, lanes).block_records == sizes[0]


@pytest.mark.parametrize(("num_bytes", "block"), [(2**26, 1), (2**26 + 1, 17), (2**26 - 1, 1)])
def test_records_of_at_most_64_mib_are_kept_in_memory_and_need_no_blocks(num_bytes, block):
    shard = Shard(shard_name("train", 0, 1), 10**6, num_bytes, "0" * 64)
    split = Split((shard,), (10**6,), (1, 1.0, 1), (1, 1.0, 1), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    manifest = Manifest("/nowhere", ("a",), 0, {"train": split}, 10**6, {}, {}, "0" * 64)
    assert Order.of(manifest, "train", 8, seed=3, most=17) == Order(10**6, 8, 3, block)
    assert is_in_memory(manifest, "train") == (block == 1)


@pytest.mark.parametrize(("num_examples", "lanes"), [(5000, 8), (3941, 48), (8, 1)])
def test_only_numbers_within_a_permutation_are_permuted(monkeypatch, num_examples, lanes):
    """Of another number, the cycle may never come back below the size, and then the walk along it would not end."""
    sizes, permute = list[int](), order_module.permutation

    def checked(numbers, size, key, ops):
        assert 0 <= numbers.min() <= numbers.max() == size - 1
        sizes.append(size)
        return permute(numbers, size, key, ops)

    monkeypatch.setattr(order_module, "permutation", checked)
    order = Order(num_examples, lanes, seed=3)
    order.batches(0, num_examples // lanes + 1)
    order.blocks(np.arange(order.num_blocks, dtype=np.uint64))
    assert sizes == [num_examples // order.block_records] * 2


def test_the_hash_is_splitmix64():
    # The first outputs of the generator with seed 0, as other implementations of it list them in their tests.
    steps = np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(x) for x in mix(steps).tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


@pytest.mark.parametrize("counts", SHARDS)
@pytest.mark.parametrize("num_lanes", [1, 8, 48])
def test_the_order_is_permuted_blocks_cut_into_lanes(counts, num_lanes):
    order = Order(sum(counts), num_lanes, seed=3)
    expected = stream(sum(counts), num_lanes, order.block_records, 3, epochs=2)
    steps = len(expected) // num_lanes
    assert order.batches(0, steps).ravel().tolist() == expected[: steps * num_lanes]


@pytest.mark.parametrize("counts", [(5, 3), *(pytest.param(sizes, marks=pytest.mark.long) for sizes in SHARD_COUNTS)])
def test_hosts_read_what_the_order_says_from_any_step_on(tmp_path, counts):
    manifest, order = write_numbered(tmp_path / "d", counts), Order(sum(counts), 24, seed=3)
    an_epoch = order.num_examples // 24
    for num_hosts, start in ((1, 0), (2, an_epoch), (4, 7), (3, 2 * an_epoch + 3)):
        steps = min(3 * an_epoch + 5, 60)
        expected = order.batches(start, steps)
        for host in range(num_hosts):
            positions = range(host * 24 // num_hosts, (host + 1) * 24 // num_hosts)
            actual = read(manifest, order, positions, start, steps)
            assert (actual == expected[:, positions.start : positions.stop]).all()


@pytest.mark.parametrize("num_hosts", [pytest.param(count, marks=pytest.mark.long) for count in (1, 2, 8)] + [64])
@pytest.mark.parametrize("counts", [(3940, 10), (1,) * 100, (10,) * 30])
def test_at_every_step_no_record_has_come_more_than_once_more_often_than_another(tmp_path, counts, num_hosts):
    manifest, order = write_numbered(tmp_path / "d", counts), Order(sum(counts), 64, seed=1)
    steps = min(2 * order.num_examples // 64 + 3, 80)
    per_host = 64 // num_hosts
    hosts = [
        read(manifest, order, range(host * per_host, (host + 1) * per_host), 0, steps)
        for host in sorted({0, num_hosts // 2, num_hosts - 1})
    ]
    expected = order.batches(0, steps)
    for host, actual in zip(sorted({0, num_hosts // 2, num_hosts - 1}), hosts, strict=True):
        assert (actual == expected[:, host * per_host : (host + 1) * per_host]).all()
    num_reads = np.zeros(order.num_examples, np.int64)
    for step in expected:
        np.add.at(num_reads, step, 1)
        assert num_reads.max() - num_reads.min() <= 1


def test_records_in_memory_come_in_the_same_order_as_from_files(tmp_path):
    counts = (7, 1, 40)
    manifest, order = write_numbered(tmp_path / "d", counts), Order(sum(counts), 8, seed=2, most=1)
    for positions, start in ((range(8), 0), (range(2, 6), 9)):
        from_files = lane_records(manifest, "train", order, positions, start).take(100)
        numbers = lane_numbers(order, positions, start).take(100)
        assert [int(number) for number, _ in from_files.as_numpy_iterator()] == [
            int(number) for number, _ in numbers.as_numpy_iterator()
        ]


@pytest.mark.parametrize(("num_examples", "num_hosts"), [(1464, 1), (1464, 3), (23, 5), (23, 8), (3, 8)])
def test_shares_of_a_cache_hold_every_record_equally_often_at_every_step(num_examples, num_hosts):
    shares = [Share(num_examples, host, num_hosts) for host in range(num_hosts)]
    steps = 3 * num_examples * num_examples // num_hosts if num_examples < 100 else 2000
    positions = [
        [int(position) % num_examples for position, _ in shuffled(share, 5, 0).take(steps).as_numpy_iterator()]
        for share in shares
    ]
    counts = np.zeros(num_examples, np.int64)
    for step in zip(*positions, strict=True):
        np.add.at(counts, list(step), 1)
        assert counts.max() - counts.min() <= 1


def test_two_records_that_two_hosts_keep_meet_in_few_epochs():
    shares = [Share(200, host, 2) for host in range(2)]
    positions = [
        [int(position) for position, _ in shuffled(share, 5, 0).take(2000).as_numpy_iterator()] for share in shares
    ]
    met = Counter((one % 200, other % 200) for one, other in zip(*positions, strict=True))
    assert max(met.values()) <= 4  # of 20 epochs; each of the 100 * 100 pairs meets in 0.2 of them on average


@pytest.mark.parametrize("start", [1, 4, 5, 100])
def test_a_share_begins_at_any_step(start):
    share = Share(23, 2, 5)
    expected = list(shuffled(share, 5, 0).take(start + 20).as_numpy_iterator())
    assert expected[start:] == list(shuffled(share, 5, start).take(20).as_numpy_iterator())


def epoch_records(order: Order, epoch: int) -> np.ndarray:
    """The numbers of an epoch's records in the order of training."""
    positions = np.arange(epoch * order.num_examples, (epoch + 1) * order.num_examples, dtype=np.uint64)
    return order.records(positions)[1].astype(np.int64)


def mates(orders, batch: int, num_examples: int) -> float:
    """The mean number of others with which an example has been in a batch, over some epochs."""
    met: list[set[int]] = [set() for _ in range(num_examples)]
    for order in orders:
        for step in order[: len(order) // batch * batch].reshape(-1, batch):
            for number in step:
                met[number].update(step)
    return float(np.mean([len(others) - 1 for others in met]))


@pytest.mark.parametrize(("counts", "batch"), [((1024,) * 4, 64), ((500,) * 8, 32), ((4000,), 128), ((1500,), 200)])
def test_examples_meet_in_batches_as_often_as_in_a_true_permutation(counts, batch):
    order, generator = Order(sum(counts), batch, seed=1), np.random.default_rng(0)
    ours = mates((epoch_records(order, epoch) for epoch in range(10)), batch, order.num_examples)
    true = mates((generator.permutation(order.num_examples) for _ in range(10)), batch, order.num_examples)
    assert order.block_records > 1
    assert ours == pytest.approx(true, rel=0.01)


def test_how_often_two_records_meet_is_spread_as_in_a_true_permutation():
    # A block size that divides the length of the lanes would let some pairs meet in each of 17 epochs, others never.
    order, generator = Order(4096, 64, seed=1), np.random.default_rng(0)

    def pairs(orders):
        together = Counter[int]()
        for permutation in orders:
            step = np.empty(len(permutation), np.int64)
            step[permutation] = np.arange(len(permutation)) // 64
            together.update(int(n) for n in np.flatnonzero(step[:2048] == step[2048:]))
        return np.var([together[n] for n in range(2048)])

    ours = pairs(epoch_records(order, epoch) for epoch in range(400))
    true = pairs(generator.permutation(4096) for _ in range(400))
    assert ours == pytest.approx(true, rel=0.15)


@pytest.mark.parametrize(("block_records", "least", "most"), [(1, 0.9, 1.1), (3, 1.4, 1.9), (17, 2.5, 3.8)])
def test_records_sorted_by_class_mix_as_well_as_their_blocks_are_small(block_records, least, most):
    order, generator = Order(64_000, 64, seed=1, most=block_records), np.random.default_rng(0)

    def spread(numbers):
        """The standard deviation of the share of the first of ten classes in 16 consecutive batches."""
        return np.std((numbers < 6400).reshape(-1, 16 * 64).mean(1))

    ours = [spread(epoch_records(order, epoch)[: 62 * 1024]) for epoch in range(8)]
    true = [spread(generator.permutation(64_000)[: 62 * 1024]) for _ in range(8)]
    assert least < np.mean(ours) / np.mean(true) < most


@pytest.mark.parametrize(("start", "end"), [(0, 7), (33, 34), (1_000_000, 1_000_600)])
def test_a_lane_that_ends_reads_what_the_order_says_and_nothing_else(tmp_path, start, end):
    counts = (300, 1, 999)
    manifest, order = write_numbered(tmp_path / "d", counts, payload_bytes=5000), Order(sum(counts), 8, seed=3)
    dataset = lane_records(manifest, "train", order, range(2, 6), start, end)
    before = read_so_far()
    records = [int(record.split(b":")[0]) for _, record in dataset.as_numpy_iterator()]
    assert np.array_equal(np.reshape(records, [-1, 4]), order.batches(start, end - start)[:, 2:6])
    # Where an epoch begins or ends, a lane reads the rest of a block; it has nine of them.
    most = sum(len(record) + 16 for _, record in dataset.as_numpy_iterator()) * 9 / 8 + 100_000
    assert read_so_far() - before <= 2 * most


def test_lanes_of_few_records_read_nothing_else_though_they_cut_blocks(tmp_path):
    counts = (300, 1, 999)
    manifest, order = write_numbered(tmp_path / "d", counts, payload_bytes=5000), Order(sum(counts), 100, seed=3)
    assert order.block_records == 5
    dataset = lane_records(manifest, "train", order, range(20, 60), 0, 39)  # three epochs of thirteen steps
    before = read_so_far()
    records = [record for _, record in dataset.as_numpy_iterator()]
    read = read_so_far() - before
    numbers = np.reshape([int(record.split(b":")[0]) for record in records], [-1, 40])
    assert np.array_equal(numbers, order.batches(0, 39)[:, 20:60])
    assert read <= 1.02 * sum(len(record) + 16 for record in records)


def read_so_far() -> int:
    """Returns the bytes that this process has read of files."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])  # type: ignore[index]


@pytest.mark.parametrize(("num_examples", "lanes", "block"), [(1000, 8, 13), (2000, 300, 1), (50, 24, 1), (250, 1, 3)])
def test_visits_of_a_service_hold_every_record_once_an_epoch(num_examples, lanes, block):
    order = Order(num_examples, lanes, seed=2)
    assert order.block_records == block
    visits = np.arange(order.num_blocks, 3 * order.num_blocks, dtype=np.uint64)
    blocks = zip(*(column.tolist() for column in order.blocks(visits)), strict=True)
    records = [(epoch, first + n) for epoch, first, count in blocks for n in range(count)]
    assert sorted(records) == [(epoch, number) for epoch in (1, 2) for number in range(num_examples)]
    assert records[:num_examples] != sorted(records[:num_examples])
