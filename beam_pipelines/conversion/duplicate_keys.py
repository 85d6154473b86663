"""Keys that occur more than once in a dataset, found by their hashes, of eight bytes each.

    [keys] of a shard ──hash_keys──▶ sorted hashes ──in_band──▶ parts of all shards ──repeated──▶ (shard, hash)
    the keys with these hashes are read again ──all occurrences but the first──▶ (shard, key)

A band is a range of hashes, small enough to be compared in memory; on workers, each band is an element. Different keys
may have the same hash: of 100 million keys, one time in 2,000. Therefore the keys themselves decide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.int64]

_BAND_KEYS = 1 << 20  # of a band, on average; to compare them takes 80 MB
_HASH_BITS = 63  # integers of Beam have a sign


def hash_keys(keys: Iterable[str]) -> Hashes:
    """Returns the first 63 bits of the SHA-256 of each key, sorted."""
    digests = b"".join(hashlib.sha256(key.encode()).digest()[:8] for key in keys)
    return np.sort((np.frombuffer(digests, ">u8") >> 1).astype(np.int64))


def num_bands(num_keys: int) -> int:
    """Returns the number of bands for a dataset with so many keys."""
    return -(-num_keys // _BAND_KEYS) or 1


def in_band(hashes: Hashes, band: int, total: int) -> Hashes:
    """Returns the sorted hashes that are in one of `total` bands; a view."""
    first, end = ((number << _HASH_BITS) // total for number in (band, band + 1))
    begin = int(np.searchsorted(hashes, np.int64(first)))
    stop = len(hashes) if band + 1 == total else int(np.searchsorted(hashes, np.int64(end)))
    return hashes[begin:stop]


def repeated(parts: Iterable[tuple[int, Hashes]]) -> set[tuple[int, int]]:
    """Returns (shard, hash) of the hashes that occur more than once in a band, given as (shard, its hashes)."""
    parts = [(shard, hashes) for shard, hashes in parts if len(hashes)]
    if not parts:
        return set()
    hashes = np.concatenate([part_hashes for _, part_hashes in parts])
    shards = np.repeat(
        np.array([shard for shard, _ in parts], np.int64), [len(part_hashes) for _, part_hashes in parts]
    )
    order = np.argsort(hashes)
    same = np.diff(hashes[order]) == 0
    repeats = order[np.append(same, False) | np.append(False, same)]
    return set(zip(shards[repeats].tolist(), hashes[repeats].tolist(), strict=True))
