"""Survey of all rows, from which the one plan of a conversion is made: counts, classes, sizes, fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from beam_pipelines.conversion import extension
from beam_pipelines.conversion.plan import Plan, buckets_at, row_bytes
from beam_pipelines.options import ConvertOptions
from beam_pipelines.sources.folders import Layout
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import Row
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format.class_names import similar_names
from tpu_input.dataset_format.split_names import is_missing, similar_split

_MAX_SHOWN = 4  # names in a line


@dataclasses.dataclass
class Sums:
    """What is known of the rows so far.

    Attributes:
      classes: (split that an input names, class).
      inputs: Number of rows.
      reasons: Number of rejected rows by reason.
      examples: An example of a rejected row by reason, as text.
      hashes: Sum of the hashes of the rows, which does not depend on their order.
      costs: Size in bytes by bucket, by split.
      images: Number of images by split.
      num_bytes: Size of the images in storage.
      duplicates: Number of rows that are rejected as duplicates, by the split that their input names.
      ungrouped: Number of images without a group.
      unsplit: Number of images whose input names no split.
    """

    classes: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    inputs: int = 0
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, str] = dataclasses.field(default_factory=dict)
    hashes: int = 0
    costs: dict[str, dict[int, int]] = dataclasses.field(default_factory=dict)
    images: Counter[str] = dataclasses.field(default_factory=Counter)
    num_bytes: int = 0
    duplicates: Counter[str] = dataclasses.field(default_factory=Counter)
    ungrouped: int = 0
    unsplit: int = 0

    def add(self, other: Sums) -> None:
        """Adds what is known of other rows."""
        self.classes |= other.classes
        self.inputs += other.inputs
        self.reasons.update(other.reasons)
        for reason, example in other.examples.items():
            self._add_example(reason, example)
        self.hashes += other.hashes
        for split, costs in other.costs.items():
            mine = self.costs.setdefault(split, {})
            for bucket, size in costs.items():
                mine[bucket] = mine.get(bucket, 0) + size
        self.images.update(other.images)
        self.num_bytes += other.num_bytes
        self.duplicates.update(other.duplicates)
        self.ungrouped += other.ungrouped
        self.unsplit += other.unsplit

    def add_rejected(self, row: Row) -> None:
        """Adds what is known of rejected rows alone."""
        self.reasons[row.reason] += 1
        if row.reason == "duplicate" and row.split:
            self.duplicates[row.split] += 1
        self._add_example(row.reason, f"{row.key!r}: {row.detail}")

    def add_costs(self, batch: Batch, options: ConvertOptions) -> None:
        """Adds the sizes of rows in their buckets; a bucket with rejected rows alone has the size 0."""
        splits = np.array(batch.column("placed_split"))
        buckets = buckets_at(batch.columns["position"])
        for split in np.unique(splits).tolist():
            mask = splits == split
            sizes = itertools.compress(row_bytes(batch, split, options), mask.tolist())
            costs = self.costs.setdefault(split, {})
            for bucket, size in zip(buckets[mask].tolist(), sizes, strict=True):
                costs[bucket] = costs.get(bucket, 0) + size

    def _add_example(self, reason: str, example: str) -> None:
        self.examples[reason] = min(example, self.examples.get(reason, example))


class PlanSurvey:
    """Combination of batches of placed rows to the one Plan, with the methods of Beam's CombineFn."""

    def __init__(self, options: ConvertOptions) -> None:
        """Makes the combination for a conversion with these options."""
        self._options = options

    def create_accumulator(self) -> Sums:
        return Sums()

    def add_input(self, accumulator: Sums, batch: Batch) -> Sums:
        sums, options = accumulator, self._options
        sums.inputs += batch.num_rows
        if not batch.is_all("reason", ""):
            for row in batch.rows():
                if row.reason:
                    sums.add_rejected(row)
        good = [not reason for reason in batch.column("reason")]
        sums.images.update(itertools.compress(batch.column("placed_split"), good))
        sums.num_bytes += sum(itertools.compress(batch.column("num_bytes"), good))
        sums.ungrouped += list(itertools.compress(batch.column("group"), good)).count("")
        sums.unsplit += list(itertools.compress(batch.column("split"), good)).count("")
        for split, label in set(itertools.compress(batch.zipped("split", "label"), good)):
            sums.classes.update((split, name) for name in options.label_kind.names(label))
        sums.add_costs(batch, options)
        sums.hashes += _sum_of_hashes(batch)
        return sums

    def merge_accumulators(self, accumulators: Iterable[Sums]) -> Sums:
        merged = Sums()
        for accumulator in accumulators:
            merged.add(accumulator)
        return merged

    def extract_output(self, accumulator: Sums) -> Plan:
        sums, options = accumulator, self._options
        # Keys are not sorted, because the order of the splits determines which hashes belong to which split.
        identity = json.dumps(
            [options.shaping(), sums.inputs, sums.hashes % 2**256, *([options.parent] if options.parent else [])]
        )
        chooses_splits = options.stratify or options.validation  # then a class may miss in a split by chance
        buckets = {split: dict(sorted(costs.items())) for split, costs in sorted(sums.costs.items())}
        return Plan(
            classes=options.labels or extension.classes_of({label for _, label in sums.classes}, options),
            num_inputs=sums.inputs,
            num_rejected=dict(sorted(sums.reasons.items())),
            examples=dict(sorted(sums.examples.items())),
            fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
            buckets=buckets,
            shard_bytes=options.shard_bytes,
            num_shards={split: count for split in buckets if (count := options.shards_of(split))},
            disjoint_splits=()
            if chooses_splits or options.parent
            else tuple(_splits_without_common_class(sums.classes)),
            all_named=not sums.unsplit,
            num_images=dict(sorted(sums.images.items())),
            num_bytes=int(sums.num_bytes),
            format=options.format,
            num_ungrouped=sums.ungrouped,
            num_duplicates=dict(sorted(sums.duplicates.items())),
        )


def _sum_of_hashes(batch: Batch) -> int:
    """Returns the sum of the SHA-256 of what the fingerprint of a conversion includes of each row.

    It leaves out the URI and the version, so that the same inputs have the same fingerprint in another folder, or when
    an object was rewritten; and the detail of a rejection, which is a sentence that another version of this package may
    word differently. It is the repr() of a row that has none of these, and then the features.
    """
    fields = []
    for name in _IDENTITY:
        column = "" if name in ("uri", "detail") else batch.columns[name]
        # What all rows have in common is formatted once.
        text = "%r" if isinstance(column, list) else repr(column).replace("%", "%%")
        fields.append((f"{name}={text}", column))
    features = batch.columns["features"]
    template = f"Row({', '.join(text for text, _ in fields)})"
    template += "%s" if isinstance(features, list) else features.replace("%", "%%")
    varying = [column for column in (*(column for _, column in fields), features) if isinstance(column, list)]
    texts = (
        [template % values for values in zip(*varying, strict=True)] if varying else [template % ()] * batch.num_rows
    )
    sha256 = hashlib.sha256
    digests = b"".join([sha256(text.encode()).digest() for text in texts])
    words = np.frombuffer(digests, ">u4").reshape(-1, 8).sum(axis=0, dtype=np.uint64).tolist()
    return sum(word << (32 * place) for place, word in enumerate(reversed(words)))


_IDENTITY = (*("key", "uri", "label", "split", "group", "num_bytes", "record_bytes", "reason", "detail", "number"),)


def split_sums(sums: Sums, num_parts: int) -> list[Sums]:
    """Returns the parts of an accumulator of PlanSurvey: some classes in each, and all else in the first."""
    parts = [Sums() for _ in range(num_parts)]
    parts[0] = dataclasses.replace(sums, classes=set())
    for split, label in sums.classes:
        number = zlib.crc32(label.encode(errors="replace")) % num_parts  # unlike hash(), the same everywhere
        parts[number].classes.add((split, label))
    return parts


def _splits_without_common_class(classes: set[tuple[str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Yields (split, split, first class of each) for the pairs of splits that have no class in common."""
    by_split: dict[str, set[str]] = {}
    for split, label in classes:
        if split:  # not if chosen by hash: of few images, some classes may be missing by chance
            by_split.setdefault(split, set()).add(label)
    for (one, own_classes), (other, other_classes) in itertools.combinations(sorted(by_split.items()), 2):
        if own_classes.isdisjoint(other_classes):
            yield one, other, min(own_classes), min(other_classes)


def add_remarks(plan: Plan, layout: Layout, options: ConvertOptions) -> Plan:
    """Returns the plan with the notes for the user on how the folders and keys of the inputs were interpreted."""
    remarks, num_images = layout.remarks, sum(plan.num_images.values())
    if options.groups_by_key and 0 < plan.num_ungrouped < num_images:
        share = f"{plan.num_ungrouped:,} of {num_images:,} images"
        remarks = (*remarks, f"{share} are in no group: {options.group_by!r} is not in their keys")
    if plan.num_duplicates:
        counts = ", ".join(f"{count:,} of {split}" for split, count in plan.num_duplicates.items())
        remarks = (*remarks, f"duplicates left out: {counts}; of copies in several splits, the one outside train stays")
    if line := _missing_splits(plan, options):
        remarks = (*remarks, line)
    remarks = (*remarks, *_remarks_on_splits(plan), *(() if options.labels else _remarks_on_classes(plan)))
    return dataclasses.replace(plan, remarks=remarks, pruned_keys=layout.pruned_keys, num_outdated=layout.num_outdated)


def _missing_splits(plan: Plan, options: ConvertOptions) -> str:
    """Returns a line about splits that were asked for and get no image; "" if there are none."""
    if options.validation and plan.all_named and not options.parent and not plan.totals.get("validation"):
        num_images, share = plan.num_images.get("train", 0), f"--validation={100 * options.validation:g}%"
        return f"no image is taken for validation; there are too few images of train ({num_images:,}) for {share}"
    missing = [name for name, _ in options.splits if not plan.totals.get(name)]
    is_divided = options.stratify or not plan.all_named
    is_asked = options.splits_required or options.stratify or options.splits != ConvertOptions.splits
    if options.parent or not (is_divided and is_asked and missing):
        return ""
    some = ", ".join(missing[:_MAX_SHOWN]) + (", …" if len(missing) > _MAX_SHOWN else "")
    few = f"images ({sum(plan.num_images.values()):,}{', or too few of each class' * options.stratify})"
    return (
        f"{len(missing)} of {len(options.splits)} splits get no image: {some}; there are too few "
        f"{'groups, which stay together,' if options.group_by else few} for their shares"
    )


def _remarks_on_splits(plan: Plan) -> Iterator[str]:
    for name in sorted(plan.num_images):
        if similar := similar_split(name):
            yield (
                f"the split {name!r} is a split of its own; if {similar!r} is meant, correct the inputs, and convert "
                "them again"
            )


def _remarks_on_classes(plan: Plan) -> Iterator[str]:
    """Yields lines about names that may not be meant as classes of their own."""
    if groups := similar_names(plan.classes):
        examples = [" and ".join(map(repr, group[:_MAX_SHOWN])) for group in groups]
        yield (
            "classes of their own, though their names differ only in case, white space or form of a number: "
            f"{enumerated(examples, _MAX_SHOWN)}; if they are meant as one class, give all of its images one name"
        )
    if missing := sorted(filter(is_missing, plan.classes)):
        names, are = ", ".join(map(repr, missing)), "are classes" if len(missing) > 1 else "is a class"
        yield (
            f"{names} {are}, as any other name; programs write this where a value is missing: if these images have no "
            "label, leave it empty"
        )
