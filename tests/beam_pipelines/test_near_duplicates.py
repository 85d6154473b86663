"""Near-duplicates: every pair within the distance is found, once, without comparing all with all."""

from __future__ import annotations

import numpy as np
import pytest

from beam_pipelines.images import near_duplicates
from beam_pipelines.images.near_duplicates import alike, common_hashes, count_bits, group, is_plain, near_pairs


def random_hashes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def flipped(value: int, bits) -> np.uint64:
    return np.uint64(value ^ sum(1 << int(bit) for bit in bits))


def brute_force(hashes: np.ndarray, distance: int) -> set[tuple[int, int]]:
    first, second = np.triu_indices(len(hashes), 1)
    near = count_bits(hashes[first] ^ hashes[second]) <= distance
    return set(zip(first[near].tolist(), second[near].tolist(), strict=True))


@pytest.mark.parametrize(
    ("value", "bits"), [(0, 0), (1, 1), (2**63, 1), (0xFF, 8), (2**64 - 1, 64), (0x5555555555555555, 32)]
)
def test_bits_are_counted(value, bits):
    assert count_bits(np.array([value], np.uint64)).tolist() == [bits] == [bin(value).count("1")]


@pytest.mark.parametrize("distance", range(8))
def test_all_pairs_within_the_distance_are_found_each_once(distance):
    hashes, generator = random_hashes(300, distance), np.random.default_rng(distance)
    near = [
        flipped(int(value), generator.choice(64, generator.integers(0, 10), replace=False))
        for value in generator.choice(hashes, 700)
    ]
    hashes = generator.permutation(np.concatenate([hashes, near]))
    result = near_pairs(hashes, distance)
    pairs = [(first, second) for first, second in result.pairs.tolist()]
    assert len(pairs) == len(set(pairs)) == sum(result.counts)
    assert set(pairs) == brute_force(hashes, distance)
    assert result.distances.tolist() == sorted(result.distances.tolist())
    assert count_bits(hashes[result.pairs[:, 0]] ^ hashes[result.pairs[:, 1]]).tolist() == result.distances.tolist()
    assert result.num_crowded == 0


def test_whichever_five_bits_differ_the_pair_is_found():
    generator = np.random.default_rng(0)
    for value in random_hashes(500):
        other = flipped(int(value), generator.choice(64, 5, replace=False))
        assert near_pairs(np.array([value, other])).pairs.tolist() == [[0, 1]]


def test_a_few_pairs_are_found_among_a_hundred_thousand():
    hashes, generator = random_hashes(100_000), np.random.default_rng(1)
    for row in range(50):
        hashes[99_999 - row] = flipped(int(hashes[row]), generator.choice(64, row % 6, replace=False))
    result = near_pairs(hashes)
    assert {tuple(pair) for pair in result.pairs.tolist()} == {(row, 99_999 - row) for row in range(50)}


@pytest.mark.parametrize(
    ("hashes", "pairs"), [([], []), ([7], []), ([7, 7], [[0, 1]]), ([7] * 3, [[0, 1], [0, 2], [1, 2]])]
)
def test_few_and_equal_hashes(hashes, pairs):
    result = near_pairs(np.array(hashes, np.uint64))
    assert result.pairs.tolist() == pairs
    assert result.counts == (len(pairs), 0, 0, 0, 0, 0)


def test_beyond_the_limit_pairs_are_counted_but_not_kept():
    result = near_pairs(np.full(20, 7, np.uint64), limit=30)
    assert result.counts[0] == 190
    assert len(result.pairs) == len(result.distances) == 30


def test_what_the_budget_leaves_out_is_told():
    hashes = np.concatenate([np.full(1000, 7, np.uint64), random_hashes(2)])
    hashes[-1] = flipped(int(hashes[-2]), [3])
    result = near_pairs(hashes, budget=5000)
    assert result.num_crowded == 1000
    assert result.counts[0] < 499_500
    assert [1000, 1001] in result.pairs.tolist()  # a crowd costs nobody else


@pytest.mark.parametrize(
    ("bits", "expected"), [(0, True), (7, True), (8, False), (32, False), (56, False), (57, True), (64, True)]
)
def test_hashes_of_flat_pictures_and_gradients_are_plain(bits, expected):
    assert is_plain(np.array([(1 << bits) - 1], np.uint64)).tolist() == [expected]


def test_common_hashes_come_with_their_number_the_most_common_first():
    hashes = np.array([5] * 60 + [9] * 70 + [3] * near_duplicates.MAX_SHARED + [8], np.uint64)
    assert common_hashes(hashes) == [(9, 70), (5, 60)]


@pytest.mark.parametrize(("count", "common"), [(0, []), (1, []), (24, []), (50, []), (51, [(7, 51)])])
def test_of_few_images_no_hash_is_common(count, common):
    assert common_hashes(np.full(count, 7, np.uint64)) == common


def test_pictures_are_alike_whatever_their_brightness_and_contrast():
    picture, noise = np.random.default_rng(0).uniform(50, 200, (2, 1024)).astype(np.float32)
    samples = np.stack([picture, picture * 0.6 + 30, picture + 0.1 * noise, noise, 255 - picture, np.full(1024, 7)])
    pairs = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [0, 5], [5, 5]])
    assert alike(samples.astype(np.float32), pairs).tolist() == [True, True, False, False, False, False]
    assert alike(samples.astype(np.float32), np.zeros((0, 2), int)).tolist() == []


def test_more_pairs_than_are_compared_at_once():
    samples = random_hashes(64).view(np.uint8).reshape(2, -1).astype(np.float32)
    pairs = np.array([[0, 0], [0, 1]] * 5000)
    assert alike(samples, pairs).tolist() == [True, False] * 5000


@pytest.mark.parametrize(
    ("pairs", "groups"),
    [
        ([], []),
        ([(1, 2)], [[1, 2]]),
        ([(3, 4), (1, 2)], [[1, 2], [3, 4]]),
        ([(1, 2), (2, 3), (9, 8)], [[1, 2, 3], [8, 9]]),
        ([(1, 2), (3, 4), (2, 3), (1, 4)], [[1, 2, 3, 4]]),
    ],
)
def test_pairs_become_groups(pairs, groups):
    assert group(pairs) == groups


def test_a_long_chain_is_one_group():
    assert group((number, number + 1) for number in range(100_000)) == [list(range(100_001))]
