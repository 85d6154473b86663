"""Plan of a conversion: the assignment of rows to shards, decided before any image is read.

    Batch ──place_rows──▶ Batch ──PlanSurvey──▶ Plan (one, small)   classes, fingerprint, bytes in each bucket
                                ──by_range──▶ (range, Batch) ──cut──▶ (shard, Batch)

The rows of a split are sorted by hash(seed, key). A bucket is a range of these hashes, so the shard of a row follows
from the bytes before its bucket and the other rows of the bucket, or of several buckets that follow one another. No
step needs the whole list, and the plan is a deterministic function of rows, options and seed.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from beam_pipelines.options import Check, ConvertOptions
from beam_pipelines.sources.row_columns import Batch, joined
from beam_pipelines.sources.rows import Row
from tpu_input.dataset_format import json_fields
from tpu_input.dataset_format.label_kinds import LabelKind
from tpu_input.dataset_format.manifest import ENDINGS
from tpu_input.dataset_format.records import shard_name, valid_split

BUCKET_BITS = 12  # 4,096 buckets: a plan under 200 kB, and under 3,000 rows per bucket for ten million rows
HASH_BITS = 64
_RANGE_ROWS = 1 << 14  # of a range, about: the more rows, the more ranges, at most as many as buckets
_MAX_SHARDS = 1_000_000  # their names are held in memory
# By field of Plan: its name in plan.json, which a conversion of an earlier version may have written.
_JSON_NAMES = {"pruned_keys": "left_out", "disjoint_splits": "strangers"}
# Pixel statistics use all images of a split up to this size; of a larger one, this many or a sixteenth, if that is
# more. Measuring a 500 x 375 photograph costs half as much as checking and storing it. With check=header, the others
# are not decoded, and measuring costs several times as much as storing, so there is no least share.
_MEASURED = 1000
_LEAST_MEASURED = {"decode": 1 / 16, "header": 0.0}


def hash_position(seed: int, key: str) -> int:
    """Returns the position of `key` in the order of the examples, in [0, 2**64)."""
    return int.from_bytes(hashlib.sha256(f"{seed}/order/{key}".encode()).digest()[:8], "big")


def is_measured(key: str, seed: int, num_images: int, check: Check = "decode") -> bool:
    """Returns whether the pixel statistics of a split of `num_images` images include the one with this key.

    The sample is drawn by a hash, so it depends neither on the shards nor on the order of the examples, and every shard
    has the same share of it. `check` is the option of images.
    """
    if num_images <= _MEASURED:
        return True
    digest = hashlib.sha256(f"{seed}/statistics/{key}".encode()).digest()
    point: float = int.from_bytes(digest[:8], "big") / 2**HASH_BITS
    return point < max(_MEASURED / num_images, _LEAST_MEASURED[check])


def choose_split(row: Row, options: ConvertOptions) -> str:
    """Returns the row's split: the one that it names, or one chosen by a hash of its group or key.

    The choice depends on nothing else, so adding inputs does not move existing ones to other splits.
    """
    return row.split or split_at(split_point(row, options.seed), options.splits)


def split_point(row: Row, seed: int) -> float:
    """Returns the point in [0, 1) that the split of a row is chosen by, from the hash of its group or key."""
    digest = hashlib.sha256(f"{seed}/split/{row.group or row.key}".encode()).digest()
    point: float = int.from_bytes(digest[:8], "big") / 2**HASH_BITS
    return point


def split_at(point: float, splits: Sequence[tuple[str, float]]) -> str:
    """Returns the split in whose share, of 0 to 1 in the order of the splits, a point lies."""
    end = 0.0
    for name, share in splits:
        end += share
        if point < end:
            return name
    return name  # the shares may add up to slightly less than 1


def row_positions(batch: Batch, seed: int) -> npt.NDArray[np.uint64]:
    """Returns the hash_position() of each row; a batch from with_positions() has them already."""
    if "position" in batch.columns:
        return batch.columns["position"]  # type: ignore[no-any-return]
    return _first_words(f"{seed}/order/", batch.column("key"))


def with_positions(batch: Batch, seed: int) -> Batch:
    """Returns the rows with their positions in the order of the examples."""
    return batch.replace(position=row_positions(batch, seed))


def row_splits(batch: Batch, options: ConvertOptions) -> list[str]:
    """Returns the split of each row as choose_split() does."""
    splits = batch.column("split")
    if all(splits):
        return list(splits)
    hashed = batch.column("key")
    if not batch.is_all("group", ""):
        hashed = [group or key for group, key in batch.zipped("group", "key")]
    points = _first_words(f"{options.seed}/split/", hashed).astype(np.float64) / 2**HASH_BITS
    names = [name for name, _ in options.splits]
    ends = list(itertools.accumulate(share for _, share in options.splits))
    numbers = np.minimum(np.searchsorted(ends, points, side="right"), len(names) - 1)
    assigned = [names[number] for number in numbers.tolist()]
    if batch.is_all("split", ""):
        return assigned
    return [split or other for split, other in zip(splits, assigned, strict=True)]


def _first_words(prefix: str, texts: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Returns the first 64 bits of the SHA-256 of `prefix` and each text."""
    sha256 = hashlib.sha256
    digests = b"".join([sha256(f"{prefix}{text}".encode()).digest() for text in texts])
    return np.frombuffer(digests, ">u8")[::4].astype(np.uint64)


def place_rows(batch: Batch, options: ConvertOptions) -> Batch:
    """Returns labeled and sized rows with two more columns: their positions in the order, and their splits."""
    return with_positions(batch, options.seed).replace(placed_split=row_splits(batch, options))


def buckets_at(positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the numbers of the buckets, 0 to 4,095, in which positions lie."""
    return positions >> np.uint64(HASH_BITS - BUCKET_BITS)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Result of the pass over all rows, from which the shard of each row is computed.

    Attributes:
      classes: Class names in label order.
      num_inputs: Number of rows.
      num_rejected: Number of rows that are rejected before they are read, by reason.
      examples: One rejected row for each reason, as text.
      fingerprint: SHA-256 of options and rows, as a hex digest.
      buckets: Size of each bucket by split, then bucket: in bytes, or in rows for a split in num_shards.
      shard_bytes: Size of a shard, at which a split is cut.
      num_shards: Number of shards by split, for splits that are cut into shards of equally many rows instead.
      disjoint_splits: (split, split, a class of the first, a class of the second) for pairs of splits that the inputs
        name and that have no class in common.
      remarks: Notes for the user on how the inputs were interpreted, one line each.
      all_named: Whether every row that is not rejected names its split, so that no split is chosen by hash.
      num_images: Number of rows that are not rejected before they are read, by split.
      num_bytes: Size of the images of these rows in storage.
      format: Format of the shards.
      pruned_keys: Keys that the next version of a dataset that is extended leaves out.
      num_ungrouped: Number of rows that are not rejected before they are read and have no group.
      num_outdated: Number of images of a dataset that is extended which stay in it though their inputs have changed.
      num_duplicates: Number of rows that are rejected as duplicates, by the split that their input names.
    """

    classes: tuple[str, ...]
    num_inputs: int
    num_rejected: dict[str, int]
    examples: dict[str, str]
    fingerprint: str
    buckets: dict[str, dict[int, int]]
    shard_bytes: int
    num_shards: dict[str, int]
    disjoint_splits: tuple[tuple[str, str, str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    all_named: bool = False
    num_images: dict[str, int] = dataclasses.field(default_factory=dict)
    pruned_keys: tuple[str, ...] = ()
    num_ungrouped: int = 0
    num_duplicates: dict[str, int] = dataclasses.field(default_factory=dict)
    num_outdated: int = 0
    num_bytes: int = 0
    format: str = "tfrecord"

    def __post_init__(self) -> None:
        if sum(self.shard_of(split, total) + 1 for split, total in self.totals.items()) > _MAX_SHARDS:
            raise ValueError(
                f"the plan has more than {_MAX_SHARDS:,} shards; use a larger --shard_size or a smaller --num_shards"
            )

    @functools.cached_property
    def _starts(self) -> dict[str, tuple[list[int], list[int]]]:
        """Numbers of the buckets of a split, and the sizes of all buckets before each and before the end; by split."""
        starts = {}
        for split, costs in self.buckets.items():
            numbers = sorted(costs)
            starts[split] = numbers, [0, *itertools.accumulate(costs[number] for number in numbers)]
        return starts

    def size_before(self, split: str, bucket: int) -> int:
        """Returns the sum of the sizes of all buckets of a split before one, in the units of `buckets`."""
        numbers, starts = self._starts[split]
        return starts[bisect.bisect_left(numbers, bucket)]

    @functools.cached_property
    def totals(self) -> dict[str, int]:
        """Size of each split, in the units of `buckets`."""
        return {split: sum(costs.values()) for split, costs in self.buckets.items()}

    @functools.cached_property
    def shards(self) -> dict[str, list[str]]:
        """Shard names by split."""
        names = {}
        for split, total in self.totals.items():
            count = self.shard_of(split, total) + 1
            names[split] = [shard_name(split, index, count, shard_format=self.format) for index in range(count)]
        return names

    @property
    def shard_names(self) -> list[str]:
        """All shard names, split by split."""
        return [name for names in self.shards.values() for name in names]

    def num_images_beside(self, shard: str) -> int:
        """Returns the number of images of the split to which a shard belongs."""
        return self.num_images.get(shard.partition("-")[0], 0)

    def shard_of(self, split: str, end: int) -> int:
        """Returns the number of the shard of a row, given the size `end` of its split up to and with the row.

        No record is larger than a shard. Therefore no shard is empty, and the size of each but the last differs from
        shard_bytes by less than one record.
        """
        last = max(end - 1, 0)
        if split in self.num_shards:
            return last * self.num_shards[split] // max(self.totals[split], 1)
        return last // self.shard_bytes

    def to_json(self) -> str:
        return json.dumps({_JSON_NAMES.get(name, name): value for name, value in dataclasses.asdict(self).items()})

    @classmethod
    def from_json(cls, content: bytes) -> Plan:
        """Returns the plan from the JSON of to_json().

        Raises:
          ValueError: It is no such JSON, or a value is out of range.
        """
        # Plans of earlier versions do not have these.
        later = ["left_out", "num_ungrouped", "num_duplicates", "num_outdated", "num_bytes", "format"]
        names = [_JSON_NAMES.get(field.name, field.name) for field in dataclasses.fields(cls)]
        needed = [name for name in names if name not in later]
        fields = json_fields.fields(json_fields.load(content), "a plan", needed, later)
        return cls(
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
            disjoint_splits=tuple(map(_disjoint_splits, json_fields.array(fields["strangers"], "strangers"))),
            remarks=tuple(
                json_fields.text(line, "a remark") for line in json_fields.array(fields["remarks"], "remarks")
            ),
            all_named=fields["all_named"] is True,
            num_images=json_fields.counts(fields["num_images"], "num_images"),
            pruned_keys=tuple(
                json_fields.text(key, "a key") for key in json_fields.array(fields.get("left_out", []), "left_out")
            ),
            num_ungrouped=json_fields.count(fields.get("num_ungrouped", 0), "num_ungrouped"),
            num_outdated=json_fields.count(fields.get("num_outdated", 0), "num_outdated"),
            num_duplicates=json_fields.counts(fields.get("num_duplicates", {}), "num_duplicates"),
            num_bytes=json_fields.count(fields.get("num_bytes", 0), "num_bytes"),
            format=_format(fields.get("format", "tfrecord")),
        )


def _disjoint_splits(value: object) -> tuple[str, str, str, str]:
    split, other, one_class, other_class = (
        json_fields.text(name, "a name") for name in json_fields.array(value, "a pair", 4)
    )
    return split, other, one_class, other_class


def _format(name: object) -> str:
    if name not in list(ENDINGS):
        raise ValueError(f"format must be {', '.join(ENDINGS)}, got {json_fields.short_repr(name)}")
    return str(name)


def _valid_split(name: str) -> str:
    if not valid_split(name):
        raise ValueError(f"a split name must be 1 to 64 letters, digits or _, got {json_fields.short_repr(name)}")
    return name


def _bucket_costs(value: object) -> dict[int, int]:
    """Returns the size by bucket; raises ValueError if it is no such mapping."""
    numbers = {str(number): number for number in range(1 << BUCKET_BITS)}
    costs = json_fields.counts(value, "buckets")
    if unknown := costs.keys() - numbers.keys():
        raise ValueError(f"unknown bucket {json_fields.short_repr(min(unknown))}")
    return {numbers[bucket]: row_bytes for bucket, row_bytes in costs.items()}


def row_bytes(batch: Batch, split: str, options: ConvertOptions) -> Sequence[int]:
    """Returns what each row adds to its shard: its bytes, or 1 for a split in num_shards; 0 for a rejected row."""
    record_bytes = batch.column("record_bytes")
    return list(map(bool, record_bytes)) if options.shards_of(split) else record_bytes


def range_bits(num_rows: int) -> int:
    """Returns the number of bits of a position that name its range, for so many rows."""
    return min(BUCKET_BITS, max(num_rows // _RANGE_ROWS, 1).bit_length() - 1)


def by_range(placed: Batch, bits: int) -> tuple[Batch, list[int]]:
    """Returns placed rows, and the number of the range of each, one of 2**bits."""
    # In Python's integers, as NumPy shifts none by all of its bits.
    shift = HASH_BITS - bits
    return placed, [position >> shift for position in placed.columns["position"].tolist()]


def cut(
    number: int, bits: int, packed: Iterable[bytes], plan: Plan, options: ConvertOptions
) -> Iterator[tuple[str, Batch]]:
    """Yields (shard, rows) for all rows of one of 2**bits ranges, in the order of the examples within a shard.

    Args:
      number: Number of the range.
      bits: As of by_range().
      packed: The packed rows of the range.
      plan: The plan of all rows.
      options: Options of the conversion.
    """
    placed = joined(list(map(Batch.unpack, packed)))
    return assign_shards(placed, number << (BUCKET_BITS - bits), plan, options)


def assign_shards(placed: Batch, first_bucket: int, plan: Plan, options: ConvertOptions) -> Iterator[tuple[str, Batch]]:
    """Yields (shard name, rows), in the order of the examples; rows whose key another one has are rejected here.

    Args:
      placed: All rows of one bucket, or of several that follow one another, from place_rows().
      first_bucket: Number of the first of these buckets.
      plan: The plan.
      options: Options of the conversion.
    """
    ordered, rejected = _ordered(placed, options)
    splits = np.array(ordered.column("placed_split"))
    for split in np.unique(splits).tolist():
        numbers = np.flatnonzero(splits == split).tolist()
        rows = ordered.take(numbers)
        ends = list(
            itertools.accumulate(row_bytes(rows, split, options), initial=plan.size_before(split, first_bucket))
        )
        if in_split := {place: rejected[number] for place, number in enumerate(numbers) if number in rejected}:
            rows = rows.with_rows(in_split)
        begin = 0
        while begin < rows.num_rows:
            shard = plan.shard_of(split, ends[begin + 1])
            end = bisect.bisect_right(ends, shard, begin, key=functools.partial(plan.shard_of, split)) - 1
            yield plan.shards[split][shard], rows.take(range(begin, end)) if end - begin < rows.num_rows else rows
            begin = end


def _ordered(placed: Batch, options: ConvertOptions) -> tuple[Batch, dict[int, Row]]:
    """Returns the rows in the order of the examples, and {place: rejected row} for rows with a repeated key."""
    positions = placed.columns["position"]
    order = np.argsort(positions, kind="stable")
    ordered, positions = placed.take(order.tolist()), positions[order]
    # Hardly any two positions are equal, except where rows have the same key.
    if not (positions[1:] == positions[:-1]).any():
        return ordered, {}
    rows = ordered.rows()
    numbers = sorted(range(len(rows)), key=lambda number: _order_at(int(positions[number]), rows[number]))
    rejected: dict[int, Row] = {}
    for _, places in itertools.groupby(range(len(rows)), key=lambda place: rows[numbers[place]].key):
        same = {place: rows[numbers[place]] for place in places}
        good = [place for place, row in same.items() if not row.reason]
        if len(good) > 1:
            labels = sorted({same[place].label for place in good})
            # Which of several labels is right is not known, as with --dedup.
            repeats = good if len(labels) > 1 else good[1:]
            rejected |= {place: _reject_repeated(same[place], labels, options.label_kind) for place in repeats}
    return ordered.take(numbers), rejected


def _reject_repeated(row: Row, labels: list[str], kind: LabelKind) -> Row:
    if len(labels) > 1:
        names = " and ".join(repr(kind.display(label)) for label in labels)
        return row.reject("conflicting_label", f"{row.key!r} is listed more than once, labeled {names}")
    return row.reject(
        "duplicate_key",
        f"{row.key!r} is listed more than once; the first line of a list is used, or the last member of an archive",
    )


def in_order(row: Row, seed: int) -> tuple[int, str, bool, int, Row]:
    """Returns the sort key of a row; of the rows with one key, the row that is kept sorts first."""
    return _order_at(hash_position(seed, row.key), row)


def _order_at(position: int, row: Row) -> tuple[int, str, bool, int, Row]:
    return position, row.key, bool(row.reason), row.number, row
