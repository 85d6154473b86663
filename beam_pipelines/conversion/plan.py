"""The plan: which shard holds which row, decided before an image is read.

    Row ──PlanCombineFn──▶ Plan (one, small)           classes, fingerprint, how much lies in every bucket of the order
    Row ──key_by_bucket──▶ (bucket, [Row]) ──cut──▶ (shard, Row)

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
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from beam_pipelines.options import ConvertOptions
from beam_pipelines.sources.rows import Row
from tpu_input.dataset_format import json_fields
from tpu_input.dataset_format.records import shard_name, valid_split

_BUCKET_BITS = 12  # 4,096 buckets: the plan stays under 200 kB, a bucket of ten million rows under 3,000
_HASH_BITS = 64
_MAX_SHARDS = 1_000_000  # whose names are held in memory


def hash_position(seed: int, key: str) -> int:
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


def key_by_bucket(row: Row, seed: int) -> tuple[int, Row]:
    """Returns (bucket, row): the row keyed by its range of the order."""
    return hash_position(seed, row.key) >> (_HASH_BITS - _BUCKET_BITS), row


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the survey of all rows says.

    Attributes:
      classes: Names in label order.
      num_inputs: Rows.
      num_rejected: Rows that are rejected before they are read, by reason.
      examples: One of them for each reason.
      fingerprint: Hex digest of options and rows.
      buckets: By split, then bucket: what its rows cost, in bytes, or in rows for a split of so many shards.
      shard_bytes: Where a split is cut.
      num_shards: Splits that are cut into so many shards of equally many rows instead.
      strangers: (split, split, a class of the first, one of the second) of splits that the inputs name and that have
        no class in common.
      remarks: What the user should know of how the inputs were read.
      all_named: Whether every row that is not rejected names its split, so that none is chosen.
    """

    classes: tuple[str, ...]
    num_inputs: int
    num_rejected: dict[str, int]
    examples: dict[str, str]
    fingerprint: str
    buckets: dict[str, dict[int, int]]
    shard_bytes: int
    num_shards: dict[str, int]
    strangers: tuple[tuple[str, str, str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    all_named: bool = False

    @functools.cached_property
    def starts(self) -> dict[str, dict[int, int]]:
        """What comes before each bucket of a split."""
        starts = {}
        for split, costs in self.buckets.items():
            numbers = sorted(costs)
            ends = itertools.accumulate((costs[number] for number in numbers), initial=0)
            starts[split] = dict(zip(numbers, ends, strict=False))
        return starts

    @functools.cached_property
    def totals(self) -> dict[str, int]:
        """What the rows of each split cost."""
        return {split: sum(costs.values()) for split, costs in self.buckets.items()}

    @functools.cached_property
    def shards(self) -> dict[str, list[str]]:
        """Names of each split's shards."""
        names = {}
        for split, total in self.totals.items():
            count = self.shard_of(split, total) + 1
            names[split] = [shard_name(split, index, count) for index in range(count)]
        return names

    def shard_of(self, split: str, end: int) -> int:
        """Returns the shard of a row whose cost ends at `end` of its split.

        As no record is larger than a shard, no shard stays empty, and each but the last is within one record of
        shard_bytes.
        """
        last = max(end - 1, 0)
        if split in self.num_shards:
            return last * self.num_shards[split] // max(self.totals[split], 1)
        return last // self.shard_bytes

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, content: bytes) -> Plan:
        """Returns the plan that to_json() has written.

        Raises:
          ValueError: It is none, or names what no plan names.
        """
        needed = [field.name for field in dataclasses.fields(cls)]
        fields = json_fields.fields(json_fields.load(content), "a plan", needed)
        plan = cls(
            classes=tuple(
                json_fields.text(name, "a class") for name in json_fields.array(fields["classes"], "classes")
            ),
            num_inputs=json_fields.count(fields["num_inputs"], "num_inputs"),
            num_rejected=json_fields.counts(fields["num_rejected"], "num_rejected"),
            examples={
                json_fields.text(reason, "a reason"): json_fields.text(example, "an example")
                for reason, example in json_fields.mapping(fields["examples"], "examples").items()
            },
            fingerprint=json_fields.sha256(fields["fingerprint"], "fingerprint"),
            buckets={
                _valid_split(split): _bucket_costs(costs)
                for split, costs in json_fields.mapping(fields["buckets"], "buckets").items()
            },
            shard_bytes=json_fields.count(fields["shard_bytes"], "shard_bytes", 1),
            num_shards=json_fields.counts(fields["num_shards"], "num_shards", 1),
            strangers=tuple(map(_strangers, json_fields.array(fields["strangers"], "strangers"))),
            remarks=tuple(
                json_fields.text(line, "a remark") for line in json_fields.array(fields["remarks"], "remarks")
            ),
            all_named=fields["all_named"] is True,
        )
        if sum(plan.shard_of(split, total) + 1 for split, total in plan.totals.items()) > _MAX_SHARDS:
            raise ValueError(f"it has more than {_MAX_SHARDS:,} shards; make them larger")
        return plan


def _strangers(value: Any) -> tuple[str, str, str, str]:
    split, other, its_class, others_class = (
        json_fields.text(name, "a name") for name in json_fields.array(value, "a pair", 4)
    )
    return split, other, its_class, others_class


def _valid_split(name: str) -> str:
    if not valid_split(name):
        raise ValueError(f"a split's name is 1 to 64 letters, digits and _, got {json_fields.shown(name)}")
    return name


def _bucket_costs(value: Any) -> dict[int, int]:
    """Returns what the rows of each bucket cost."""
    numbers = {str(number): number for number in range(1 << _BUCKET_BITS)}
    costs = json_fields.counts(value, "buckets")
    if unknown := costs.keys() - numbers.keys():
        raise ValueError(f"there is no bucket {json_fields.shown(min(unknown))}")
    return {numbers[bucket]: row_bytes for bucket, row_bytes in costs.items()}


def row_bytes(row: Row, split: str, options: ConvertOptions) -> int:
    """Returns what a row adds to its shard: bytes, or 1 for a split of so many shards; 0 for a rejected row."""
    return bool(row.record_bytes) if split in dict(options.num_shards) else row.record_bytes


def assign_shards(keyed: tuple[int, Iterable[Row]], plan: Plan, options: ConvertOptions) -> Iterator[tuple[str, Row]]:
    """Yields (shard name, row) for the rows of one bucket; a key that comes again is rejected here."""
    number, rows = keyed
    ends = {split: starts.get(number, 0) for split, starts in plan.starts.items()}
    last_key = None
    for row in sorted(rows, key=functools.partial(in_order, seed=options.seed)):
        split = choose_split(row, options)
        ends[split] += row_bytes(row, split, options)
        name = plan.shards[split][plan.shard_of(split, ends[split])]
        if row.key == last_key and not row.reason:
            row = row.reject(
                "duplicate_key", f"{row.key!r} is listed twice; the first line counts, or an archive's last"
            )
        last_key = row.key
        yield name, row


def in_order(row: Row, seed: int) -> tuple[int, str, bool, int, Row]:
    """Returns what rows are sorted by; of those with one key, the one that counts comes first."""
    return hash_position(seed, row.key), row.key, bool(row.reason), row.number, row


class PlanCombineFn(beam.CombineFn):
    """Row → Plan.

    The accumulator is ((split that an input names, class) pairs, inputs, reasons, examples, sum of hashes, costs by
    (split, bucket)).
    """

    def __init__(self, options: ConvertOptions) -> None:
        self._options = options

    def create_accumulator(self) -> Any:
        return set(), 0, Counter(), {}, 0, Counter()

    def add_input(self, accumulator: Any, row: Row) -> Any:
        classes, inputs, reasons, examples, hashes, costs = accumulator
        if row.reason:
            reasons[row.reason] += 1
            _keep_smallest(examples, {row.reason: f"{row.key!r}: {row.detail}"})
        else:
            classes.add((row.split, row.label))
        split = choose_split(row, self._options)
        number, _ = key_by_bucket(row, self._options.seed)
        costs[split, number] += row_bytes(row, split, self._options)
        # A sum does not depend on the order in which rows come. The folder they lie in is no part of what they are, nor
        # how often an object of a bucket was written.
        what = repr(row._replace(uri="", version=0)).rsplit(", version=0, ", 1)
        digest = hashlib.sha256(", ".join(what).encode()).digest()
        return classes, inputs + 1, reasons, examples, hashes + int.from_bytes(digest, "big"), costs

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        all_classes, all_inputs, all_reasons, all_examples, all_hashes, all_costs = self.create_accumulator()
        for classes, inputs, reasons, examples, hashes, costs in accumulators:
            all_classes |= classes
            all_inputs += inputs
            all_reasons.update(reasons)
            _keep_smallest(all_examples, examples)
            all_hashes += hashes
            all_costs.update(costs)
        return all_classes, all_inputs, all_reasons, all_examples, all_hashes, all_costs

    def extract_output(self, accumulator: Any) -> Plan:
        classes, inputs, reasons, examples, hashes, costs = accumulator
        # Not sorted: the order of the splits decides which hash falls into which.
        what = json.dumps([self._options.shaping(), inputs, hashes % 2**256])
        buckets: dict[str, dict[int, int]] = {}
        for (split, number), total in sorted(costs.items()):
            buckets.setdefault(split, {})[number] = total
        return Plan(
            classes=self._options.labels or tuple(sorted({label for _, label in classes})),
            num_inputs=inputs,
            num_rejected=dict(sorted(reasons.items())),
            examples=dict(sorted(examples.items())),
            fingerprint=hashlib.sha256(what.encode()).hexdigest(),
            buckets=buckets,
            shard_bytes=self._options.shard_bytes,
            num_shards=dict(self._options.num_shards),
            strangers=tuple(_splits_without_common_class(classes)),
            all_named=all(split for split, _ in classes),
        )


def _splits_without_common_class(classes: set[tuple[str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Yields the pairs of splits that have no class in common, each with the first class of either."""
    by_split: dict[str, set[str]] = {}
    for split, label in classes:
        if split:  # else it is chosen by hash, and a few images may fall anyhow
            by_split.setdefault(split, set()).add(label)
    for (one, its), (other, others) in itertools.combinations(sorted(by_split.items()), 2):
        if its.isdisjoint(others):
            yield one, other, min(its), min(others)


def _keep_smallest(kept: dict[str, str], others: dict[str, str]) -> None:
    for reason, example in others.items():
        kept[reason] = min(example, kept.get(reason, example))
