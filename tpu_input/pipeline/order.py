"""The order of training: which record of a split is at which position of which step; arithmetic, TensorFlow-free.

    the split's records ──cut into blocks of consecutive ones, permuted──▶ sequence of an epoch
    sequence ──cut into as many lanes as a step has examples──▶ row t: record t of every lane ──▶ stream of all epochs

An epoch's sequence is a permutation of the split that depends on the dataset, the seed and the epoch alone. Two
records of one step are from two lanes, so from two different places of the dataset; no shuffle buffer is needed. The
stream has epoch after epoch without a gap: step s takes the records at its positions [s * lanes, (s + 1) * lanes), and
host h of H the h-th of H equal parts of them. A host therefore reads only its own lanes, and what a step sees does not
depend on the number of hosts. The record at a position is computed, not looked up, so that training begins at any step
at once. lanes.py reads the records.

BalancedOrder is the order in which rare classes come more often.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tpu_input.config import MOST_BLOCK_RECORDS, Sampling
from tpu_input.dataset_format.manifest import Manifest
from tpu_input.storage.labels import split_labels

# NumPy's arrays of uint64, or TensorFlow's tensors: both have the operators that this module uses. It shifts by
# dividing, and compares without ==, which a tensor of a TensorFlow 1 graph has only as a test of identity.
Numbers: TypeAlias = Any
_u = np.uint64

# Records of a block, tried in this order. To open a block takes 0.3 ms of CPU time, a record of a photograph 0.8 ms.
# All are odd primes, so that one of them divides neither of two consecutive lengths of lanes.
_BLOCK_RECORDS = (MOST_BLOCK_RECORDS, 13, 11, 7, 5, 3)
# A lane and the split have at least so many blocks: fewer of the split would hardly be a shuffle.
_BLOCKS_PER_LANE, _BLOCKS = 2, 64
# Training keeps a split of at most this size in memory on every host, as its encoded records: to read so few and so
# small records from their places in files would take longer than to decode them.
_IN_MEMORY_BYTES = 64 << 20
_ROUNDS = 8  # of the permutation; from 6 on, it cannot be told from a random one by how often records meet (test_order)


def is_in_memory(manifest: Manifest, split: str) -> bool:
    """Returns whether training keeps all records of a split in memory on every host, as they are few."""
    return manifest.split(split).num_bytes <= _IN_MEMORY_BYTES


@dataclasses.dataclass(frozen=True)
class Order:
    """Endless order of a split's records, without the records.

    Records have numbers from 0 in the order of the shards; positions count from 0 over all epochs.

    Attributes:
      num_examples: Number of records in the split.
      lanes: Number of examples that all hosts together take in a step.
      seed: Seed of the order.
      most: Largest number of records in a block.
    """

    num_examples: int
    lanes: int
    seed: int = 0
    most: int = MOST_BLOCK_RECORDS

    @classmethod
    def of(
        cls, manifest: Manifest, split: str, lanes: int, seed: int, most: int, sampling: Sampling = "equal"
    ) -> Order:
        """Returns the order of a dataset's split; the arguments are as the attributes and InputConfig.sampling.

        Raises:
          ValueError: sampling is "balanced", and the labels cannot be read: see split_labels().
        """
        num_examples = manifest.split(split).num_examples
        if sampling == "balanced":
            return BalancedOrder(num_examples, lanes, seed, 1, split_labels(manifest, split))
        return cls(num_examples, lanes, seed, 1 if is_in_memory(manifest, split) else most)

    @functools.cached_property
    def block_records(self) -> int:
        """Number of records in a block.

        It shares no divisor with the lengths of lanes. Otherwise all lanes would be at the same place of a block at the
        same time, and two records would meet in a batch too often, or never.
        """
        length = self.num_examples // self.lanes
        most = min(self.most, length // _BLOCKS_PER_LANE, self.num_examples // _BLOCKS)
        return next((size for size in _BLOCK_RECORDS if size <= most and math.gcd(length * (length + 1), size) == 1), 1)

    def records(self, positions: Numbers, ops: ModuleType = np) -> tuple[Numbers, Numbers]:
        """Returns (epoch, number of the record) at positions of the stream.

        Args:
          positions: uint64, of any shape but a scalar.
          ops: The module of the functions for `positions`: numpy, or tensorflow.
        """
        length, longer = divmod(self.num_examples, self.lanes)
        epoch, place = positions // _u(self.num_examples), positions % _u(self.num_examples)
        row, lane = place // _u(self.lanes), place % _u(self.lanes)
        in_sequence = lane * _u(length) + ops.minimum(lane, _u(longer)) + row
        return epoch, self._permuted(in_sequence, epoch, ops)

    def batches(self, first_step: int, num_steps: int) -> npt.NDArray[np.int64]:
        """Returns the numbers of the records of steps, [num_steps, lanes], in the order of their positions.

        Host h of H takes the h-th of H equal parts of a row.
        """
        positions = np.arange(first_step * self.lanes, (first_step + num_steps) * self.lanes, dtype=np.uint64)
        _, numbers = self.records(positions)
        return np.asarray(numbers, np.int64).reshape(num_steps, self.lanes)

    def blocks(self, visits: Numbers, ops: ModuleType = np) -> tuple[Numbers, Numbers, Numbers]:
        """Returns (epoch, number of the block's first record, number of its records) for each visit.

        Visit v is to block v % num_blocks of epoch v // num_blocks, in the order of the epoch. The last block
        may be shorter.

        Args:
          visits: uint64, of any shape but a scalar.
          ops: As in records().
        """
        epoch, block = visits // _u(self.num_blocks), visits % _u(self.num_blocks)
        size, full = self.block_records, self.num_examples // self.block_records
        first = permutation(ops.minimum(block, _u(full - 1)), full, epoch_key(self.seed, epoch), ops) * _u(size)
        is_full = block < _u(full)
        count = ops.where(is_full, ops.zeros_like(block) + _u(size), _u(self.num_examples - full * size))
        return epoch, ops.where(is_full, first, block * _u(size)), count

    @property
    def num_blocks(self) -> int:
        """Number of blocks in an epoch."""
        return -(-self.num_examples // self.block_records)

    def _permuted(self, places: Numbers, epoch: Numbers, ops: ModuleType) -> Numbers:
        """Returns the numbers of the records at places of an epoch's sequence.

        The sequence has the full blocks in random order, and then the records that make no full block; it is rotated
        by a random number of places, so that these come at any time.
        """
        size, full = self.block_records, self.num_examples // self.block_records
        key = epoch_key(self.seed, epoch)
        place = (places + mix(key) % _u(self.num_examples)) % _u(self.num_examples)
        block = permutation(ops.minimum(place // _u(size), _u(full - 1)), full, key, ops)
        return ops.where(place < _u(full * size), block * _u(size) + place % _u(size), place)


@dataclasses.dataclass(frozen=True, eq=False)
class BalancedOrder(Order):
    """Endless order of a split's records in which every class comes equally often.

        position ──divided by the number of classes──▶ turn ──permuted classes──▶ class ──permuted records──▶ record

    In each turn every class has one position, in an order of its own. A class takes its records one after another, in a
    new order whenever all of them have been taken. After any number of positions, the counts of two classes
    therefore differ by at most one, as do the counts of two records of a class. An epoch is still as many
    positions as there are records. Consecutive positions are of different classes, and so from different places: a
    block is a single record.

    The number of an example over all turns, turn * num_examples + record, has to fit 63 bits. It does for a billion
    records of 1,000 classes and 9,000 epochs; of two classes it does for 18 epochs.

    Attributes:
      labels: [num_examples] class of each record; classes without a record have no positions.
    """

    labels: npt.NDArray[np.int32] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32), repr=False)

    @functools.cached_property
    def _classes(self) -> _Classes:
        counts = np.bincount(self.labels)
        sizes = counts[counts > 0].astype(np.uint64)
        firsts = (np.cumsum(sizes) - sizes).astype(np.uint64)
        # As the smallest integers that can be, because they are a constant of the graph.
        members = np.argsort(self.labels, kind="stable").astype(np.min_scalar_type(-self.num_examples))
        rectangles = np.array([_rectangle(int(size)) for size in sizes], np.uint64)
        return _Classes(sizes, firsts, members, rectangles[:, 0], rectangles[:, 1])

    def records(self, positions: Numbers, ops: ModuleType = np) -> tuple[Numbers, Numbers]:
        """Returns (turn, number of the record) at positions of the stream; a record is in a turn once at most.

        Args:
          positions: uint64, of any shape but a scalar.
          ops: As in Order.records().
        """
        classes = self._classes
        turn, place = positions // _u(len(classes.counts)), positions % _u(len(classes.counts))
        number = permutation(place, len(classes.counts), mix(epoch_key(self.seed, turn)), ops)
        counts, firsts, heights, widths = (
            _gathered(column, number, ops)
            for column in (classes.counts, classes.firsts, classes.heights, classes.widths)
        )
        key = mix(epoch_key(self.seed, turn // counts) + number + _u(1))  # 0 is for the classes, above
        within = _permuted_within(turn % counts, counts, heights, widths, key, ops)
        members = _gathered(classes.members, firsts + within, ops)
        return turn, members.astype(np.uint64) if ops is np else ops.cast(members, ops.uint64)


@dataclasses.dataclass(frozen=True, eq=False)
class _Classes:
    """Classes that have records: [classes] uint64 each, but `members`.

    Attributes:
      counts: Number of records of each.
      firsts: Place in `members` of the first one of each.
      members: [records] numbers of the records, by class.
      heights: Numbers of rows of the permutations of their records: see _rectangle().
      widths: Numbers of columns.
    """

    counts: npt.NDArray[np.uint64]
    firsts: npt.NDArray[np.uint64]
    members: npt.NDArray[Any]
    heights: npt.NDArray[np.uint64]
    widths: npt.NDArray[np.uint64]


def turns(manifest: Manifest, split: str, sampling: Sampling) -> int:
    """Returns the number of turns that an epoch of a BalancedOrder begins; 1 for an Order."""
    if sampling == "equal":
        return 1
    split_info = manifest.split(split)
    return -(-split_info.num_examples // max(1, np.count_nonzero(split_info.class_counts)))


def _gathered(values: npt.NDArray[Any], places: Numbers, ops: ModuleType) -> Numbers:
    return values[places.astype(np.int64)] if ops is np else ops.gather(values, ops.cast(places, ops.int64))


def epoch_key(seed: int, epoch: Numbers) -> Numbers:
    """Returns the key of the permutation of an epoch."""
    return mix(epoch + mix(np.array(seed, np.uint64)))


def permutation(numbers: Numbers, size: int, key: Numbers, ops: ModuleType) -> Numbers:
    """Returns the images of numbers below `size` under a permutation of these, which a key chooses.

    A generalized Feistel network: a number is a pair (row, column), and in turn each is shifted by a hash of the other.
    Pairs that stand for no number below `size` are permuted again, which is a permutation too. J. Black, P. Rogaway
    2002, "Ciphers with arbitrary finite domains", sections 3 and 4.
    """
    height, width = _rectangle(size)
    return _permuted_within(numbers, _u(size), _u(height), _u(width), key, ops)


def _rectangle(size: int) -> tuple[int, int]:
    """Returns (height, width) of the pairs that stand for the numbers below `size`."""
    height = math.isqrt(size - 1) + 1
    return height, -(-size // height)


def _permuted_within(
    numbers: Numbers, size: Numbers, height: Numbers, width: Numbers, key: Numbers, ops: ModuleType
) -> Numbers:
    """Returns what permutation() does; size, height and width may differ for each number."""

    def two_rounds(number: Numbers, numbers: Numbers) -> tuple[Numbers, Numbers]:
        row, column = numbers // width, numbers % width
        row = (row + mix(key + number + column) % height) % height
        column = (column + mix(key + number + _u(1 << 32) + row) % width) % width
        return number + _u(2 << 32), row * width + column

    def permuted(numbers: Numbers, outside: Numbers) -> tuple[Numbers, Numbers]:
        end = _u(_ROUNDS << 32)
        _, images = _while(lambda number, _: number < end, two_rounds, (_u(0), numbers), ops)
        images = ops.where(outside, images, numbers)
        return images, images >= size

    some = np.any if ops is np else ops.reduce_any
    return _while(lambda _, outside: some(outside), permuted, (numbers, numbers >= _u(0)), ops)[0]


def _while(condition: Any, body: Any, values: tuple[Numbers, ...], ops: ModuleType) -> tuple[Numbers, ...]:
    """Applies `body` to `values` while `condition` holds of them; in TensorFlow, as a loop of the graph."""
    if ops is not np:
        last: tuple[Numbers, ...] = ops.while_loop(condition, body, values)
        return last
    while condition(*values):
        values = body(*values)
    return values


def mix(x: Numbers) -> Numbers:
    """Returns 64 well mixed bits for each number: the output of SplitMix64 for that state, modulo 2**64.

    Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", with the constants of Vigna's
    splitmix64.c. It is used because NumPy and TensorFlow can both compute it.
    """
    with np.errstate(over="ignore"):
        x = x + _u(0x9E3779B97F4A7C15)
        x = (x ^ (x // _u(2**30))) * _u(0xBF58476D1CE4E5B9)
        x = (x ^ (x // _u(2**27))) * _u(0x94D049BB133111EB)
        return x ^ (x // _u(2**31))
