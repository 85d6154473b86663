"""Rows → which shard holds which row, before an image is read.

    Row ──survey──▶ Plan (one, small)             classes, fingerprint, bytes of every bucket of the order
    Row ──by_bucket──▶ (bucket, [Row]) ──cut──▶ (shard, Row)

The order of a split is that of hash(seed, key). A bucket is a range of that order, so the bytes before each bucket and
the rows of one bucket are all it takes to say where a row lies: no step sees the whole list, and the outcome depends
on the rows, the options and the seed alone.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam

from beam_pipelines.options import ConvertOptions
from beam_pipelines.rows import Row, record_bytes
from tpu_input.schema import shard_name

_BUCKET_BITS = 12  # 4,096 buckets: the plan stays under 200 kB, a bucket of ten million rows under 3,000
_HASH_BITS = 64


def position(seed: int, key: str) -> int:
    """Returns the place of `key` in the order of the examples, in [0, 2**64)."""
    return int.from_bytes(hashlib.sha256(f"{seed}/order/{key}".encode()).digest()[:8], "big")


def choose_split(row: Row, options: ConvertOptions) -> str:
    """Returns the row's split: the one it names, or one by hash of its group or key.

    The choice looks at nothing else, so inputs that come later move no earlier one.
    """
    if row.split:
        return row.split
    digest = hashlib.sha256(f"{options.seed}/split/{row.group or row.key}".encode()).digest()
    point = int.from_bytes(digest[:8], "big") / 2**_HASH_BITS
    end = 0.0
    for name, share in options.splits:
        end += share
        if point < end:
            return name
    return name  # shares that add up to a little less than 1


def by_bucket(row: Row, seed: int) -> tuple[int, Row]:
    """Returns (bucket, row): the row keyed by its range of the order."""
    return position(seed, row.key) >> (_HASH_BITS - _BUCKET_BITS), row


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the survey of all rows says.

    Attributes:
      classes: Names in label order.
      num_inputs: Rows.
      num_usable: Rows without a reason to reject them.
      fingerprint: Hex digest of options and rows.
      bucket_bytes: By split, then bucket: bytes of its records.
      shard_bytes: Where a split is cut.
    """

    classes: tuple[str, ...]
    num_inputs: int
    num_usable: int
    fingerprint: str
    bucket_bytes: Mapping[str, Mapping[int, int]]
    shard_bytes: int

    @functools.cached_property
    def bucket_starts(self) -> dict[str, dict[int, int]]:
        """Bytes of a split's records that come before each bucket."""
        starts = {}
        for split, sizes in self.bucket_bytes.items():
            numbers = sorted(sizes)
            ends = itertools.accumulate((sizes[number] for number in numbers), initial=0)
            starts[split] = dict(zip(numbers, ends, strict=False))
        return starts

    @functools.cached_property
    def shards(self) -> dict[str, list[str]]:
        """Names of a split's shards."""
        names = {}
        for split, sizes in self.bucket_bytes.items():
            count = shard_of(sum(sizes.values()), self.shard_bytes) + 1
            names[split] = [shard_name(split, index, count) for index in range(count)]
        return names

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields = json.loads(text)
        fields["classes"] = tuple(fields["classes"])
        fields["bucket_bytes"] = {
            split: {int(number): size for number, size in sizes.items()}
            for split, sizes in fields["bucket_bytes"].items()
        }
        return cls(**fields)


def shard_of(end: int, shard_bytes: int) -> int:
    """Returns the shard of a record that ends `end` bytes into its split.

    As no record is larger than a shard, no shard stays empty, and every one but the last is within one record of
    `shard_bytes`.
    """
    return max(end - 1, 0) // shard_bytes


def cut(keyed: tuple[int, Iterable[Row]], plan: Plan, options: ConvertOptions) -> Iterator[tuple[str, Row]]:
    """Yields (shard name, row) for the rows of one bucket; a key that comes again is rejected here."""
    number, rows = keyed
    ends = {split: starts.get(number, 0) for split, starts in plan.bucket_starts.items()}
    last_key = None
    for row in sorted(rows, key=functools.partial(in_order, seed=options.seed)):
        split = choose_split(row, options)
        ends[split] += record_bytes(row)
        name = plan.shards[split][shard_of(ends[split], plan.shard_bytes)]
        if row.key == last_key and not row.reason:
            row = row._replace(reason="duplicate_key", detail=f"{row.key!r} is listed before")
        last_key = row.key
        yield name, row


def in_order(row: Row, seed: int) -> tuple[int, Row]:
    """Returns what rows are sorted by."""
    return position(seed, row.key), row


class Survey(beam.CombineFn):
    """Row → Plan. The accumulator is (classes, inputs, usable, sum of row hashes, Counter of (split, bucket))."""

    def __init__(self, options: ConvertOptions) -> None:
        self._options = options

    def create_accumulator(self) -> Any:
        return set(), 0, 0, 0, Counter()

    def add_input(self, accumulator: Any, row: Row) -> Any:
        classes, inputs, usable, hashes, sizes = accumulator
        if not row.reason:
            classes.add(row.label)
        number, _ = by_bucket(row, self._options.seed)
        sizes[choose_split(row, self._options), number] += record_bytes(row)
        # A sum does not depend on the order in which rows come. The folder they lie in is no part of what they are.
        digest = hashlib.sha256(repr(row._replace(uri="")).encode()).digest()
        return classes, inputs + 1, usable + (not row.reason), hashes + int.from_bytes(digest, "big"), sizes

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        merged = self.create_accumulator()
        for classes, inputs, usable, hashes, sizes in accumulators:
            merged[4].update(sizes)
            merged = (merged[0] | classes, merged[1] + inputs, merged[2] + usable, merged[3] + hashes, merged[4])
        return merged

    def extract_output(self, accumulator: Any) -> Plan:
        classes, inputs, usable, hashes, sizes = accumulator
        what = json.dumps([self._options.shaping(), inputs, hashes % 2**256], sort_keys=True)
        by_split: dict[str, dict[int, int]] = {}
        for (split, number), size in sorted(sizes.items()):
            by_split.setdefault(split, {})[number] = size
        return Plan(
            classes=self._options.labels or tuple(sorted(classes)),
            num_inputs=inputs,
            num_usable=usable,
            fingerprint=hashlib.sha256(what.encode()).hexdigest(),
            bucket_bytes=by_split,
            shard_bytes=self._options.shard_bytes,
        )
