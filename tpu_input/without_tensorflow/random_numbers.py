"""The random numbers of TensorFlow's stateless ops on a CPU, bit by bit, for many seeds at once.

    seeds ──seed_for()──▶ seeds of one purpose ──uniform()──▶ float32 in [0, 1)

The generator is Philox4x32-10 of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3;
NumPy's own Philox has words of 64 bits. Key and first counter of a seed are Philox's output for that seed under a fixed
key, as in tensorflow/core/kernels/stateless_random_ops.cc.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]  # of 32 bits each, so that a product of two of them fits

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10
# Multipliers of the rounds, and what is added to the two words of the key after each: the paper's, section 3.3 and 4.3.
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
_SEED_KEY = np.array([[0x3EC8F720], [0x02461E29]], np.uint64)  # TensorFlow's, under which seeds are scrambled


def philox(counters: Words, keys: Words) -> Words:
    """Returns the output of Philox4x32-10, [4, N] of 32 bits.

    Args:
      counters: [4, N], the words of each counter, the lowest first.
      keys: [2, N] or [2, 1].
    """
    # The two products of a round are of words 0 and 2, and go with words 1 and 3.
    even, odd = counters[0::2], counters[1::2]
    for _ in range(_ROUNDS):
        product = even * _MULTIPLIERS
        even = (product[::-1] >> _HALF) ^ odd ^ keys
        odd = product[::-1] & _LOW
        keys = (keys + _WEYL) & _LOW
    return np.stack([even[0], odd[0], even[1], odd[1]])


def uniform(seeds: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float32]:
    """Returns [N, count] float32 in [0, 1): a row is tf.random.stateless_uniform([count], seed).

    Args:
      seeds: [N, 2].
      count: Numbers of each seed.
    """
    bits = _blocks(seeds, -(-count // 4))[:, :count].astype(np.uint32)
    # The lower 23 bits are the fraction of a float32 in [1, 2).
    return ((bits & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000)).view(np.float32) - np.float32(1)


def integers(seeds: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
    """Returns [N] integers in [0, limit): a number is tf.random.stateless_uniform([], seed, 0, limit, tf.int32).

    Args:
      seeds: [N, 2].
      limit: Above 0 and below 2^31.
    """
    return (_blocks(seeds, 1)[:, 0] % np.uint64(limit)).astype(np.int64)


def purpose_number(purpose: str) -> int:
    """Returns the number that stands for a purpose, such as "flip", in a seed: 63 bits of a hash of the name."""
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "big") >> 1


def seed_for(seeds: npt.NDArray[np.int64], purpose: str) -> npt.NDArray[np.int64]:
    """Returns the seeds for one purpose, [N, 2]: of each of [N, 2] seeds, what pipeline/seeds.py's function returns.

    That is tf.random.experimental.stateless_fold_in(seed, purpose_number(purpose)), whose data are int64.
    """
    low, high = _blocks(seeds, 1)[:, :2].T
    data = np.full(len(seeds), purpose_number(purpose), np.int64)
    return np.stack([(low | high << _HALF).astype(np.int64), data], axis=1)


def _blocks(seeds: npt.NDArray[np.int64], number: int) -> Words:
    """Returns the first `number` outputs of the generator of each seed, [N, 4 * number] of 32 bits."""
    words = np.ascontiguousarray(seeds, np.int64).view(np.uint32).astype(np.uint64).T  # the low half first
    mixed = philox(words, _SEED_KEY)
    keys, first = mixed[:2], np.concatenate([np.zeros_like(mixed[:2]), mixed[2:]])
    counters = np.repeat(first, number, axis=1)
    counters[0] = np.tile(np.arange(number, dtype=np.uint64), len(seeds))
    return philox(counters, np.repeat(keys, number, axis=1)).T.reshape(len(seeds), 4 * number)
