"""Planning pipeline: Beam steps that list the inputs and assign them to shards.

    Source ──list──▶ Row ──label, check──▶ Row ──sample, size──▶ Row ──PlanCombineFn──▶ Plan
                                                                  └──by bucket, cut, group──▶ a file of rows per shard

No process holds the whole list of inputs in memory, except that of Beam's local runner, which keeps what it groups as
Python objects. Rows are therefore grouped as bytes, which are smaller than the tuples of their fields.

Rows that name a group are grouped first, and all rows of a group get the one split that any of them names; a group
that names two splits is rejected. Otherwise images of one patient, or frames of one film, could be in both training
and test.

With --dedup=exact, images with the same bytes are found by their SHA-256 after sizes are estimated. The first in the
order of the dataset is kept; the others, and all that occur under two labels, are rejected, so that no content is in
two splits. With --dedup=near, and with --group_by=near_duplicates, so are images that look alike.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import hashlib
import heapq
import itertools
import json
import marshal
import re
import uuid
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.coders.typecoders import registry
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsDict, AsSingleton, PCollection
from apache_beam.transforms import combiners

from beam_pipelines import storage
from beam_pipelines.conversion import extension
from beam_pipelines.conversion.combining import CombineInParts
from beam_pipelines.conversion.plan import (
    Plan,
    assign_shards,
    choose_split,
    in_order,
    key_by_bucket,
    row_bytes,
    split_at,
    split_point,
)
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.images import near_duplicates
from beam_pipelines.options import NEAR_DUPLICATES, WORK_NAME, ConvertOptions
from beam_pipelines.runners import execution, phases
from beam_pipelines.sources.folders import FolderSurvey, Layout, Survey, label_by_folder, read_folders
from beam_pipelines.sources.input_kinds import Part
from beam_pipelines.sources.listing import list_below, list_part
from beam_pipelines.sources.naming import LabelSurvey
from beam_pipelines.sources.read_ahead import map_images, read_rows
from beam_pipelines.sources.rows import Row, check_names, find, find_each, kind, locate, size_row
from tpu_input.command_line.cores import num_cores
from tpu_input.dataset_format.records import valid_split
from tpu_input.stored_images.check import Rejected, stored_bytes

_LEVELS = ("sources", "folders", "class folders")  # that are opened one after another, each by all workers
_ROWS_A_BATCH = 1000  # rows that one call reads, with many reads in flight, or that are packed together
_SAMPLE = 64  # images read per kind to estimate the ratio of stored bytes to source bytes


class RowCoder(beam.coders.Coder):
    """Beam coder of rows: the tuple of fields, serialized with marshal.

    It is smaller and faster than pickle, which stores the name of the class with each row. The format of marshal may
    differ between Python versions, but all workers of a pipeline run the same version.
    """

    def encode(self, value: Row) -> bytes:
        return marshal.dumps(tuple(value) if value.number else value[:-1])  # 0 for the rows of a folder

    def decode(self, encoded: bytes) -> Row:
        return Row(*marshal.loads(encoded))

    def to_type_hint(self) -> type[Row]:
        return Row


registry.register_coder(Row, RowCoder)


def make_plan(options: ConvertOptions, beam_options: PipelineOptions) -> Plan:
    """Runs the planning pipeline; returns the plan, with the rows of each shard written to its working folder."""
    path = f"{options.output}/{WORK_NAME}/plan-{uuid.uuid4().hex}.json"
    with execution.pipeline(beam_options) as pipeline:
        build_planning(pipeline, options, path)
    plan = Plan.from_json(storage.read_bytes(path))
    storage.delete([path])
    return plan


def build_planning(pipeline: beam.Pipeline, options: ConvertOptions, plan_path: str) -> None:
    """Adds the steps that list the sources, write the rows of every shard, and write the plan to `plan_path`.

    Steps declare their output types so that Beam encodes rows with RowCoder rather than pickle.
    """
    rows, layout = plan_rows(pipeline, options)
    plan, _ = assign(rows, options)
    plan | "Write plan" >> beam.Map(_write_plan, AsSingleton(layout), options, plan_path)


def plan_rows(pipeline: beam.Pipeline, options: ConvertOptions) -> tuple[PCollection[Row], PCollection[Layout]]:
    """Returns a labelled and sized row for every input of the sources, and how their folders were interpreted."""
    listed = _listed(pipeline, options)
    layout = _layout(listed, options)
    if not options.parent:
        return _labelled(listed, layout, options), layout
    labelled = listed | "Label all" >> beam.Map(label_by_folder, AsSingleton(layout), options).with_output_types(Row)
    changes = extension.find_changes(labelled, options)
    told = layout | "Tell changes" >> beam.Map(extension.tell_changes, AsSingleton(changes), options)
    is_new = beam.Filter(extension.is_new, AsSingleton(changes), options)
    return _split_and_sized(labelled | "New inputs" >> is_new.with_output_types(Row), options), told


def list_labelled(pipeline: beam.Pipeline, options: ConvertOptions) -> PCollection[Row]:
    """Returns a row with label and split for every input of the sources, or with a reason; PCollection of Row."""
    listed = _listed(pipeline, options)
    label = beam.Map(label_by_folder, AsSingleton(_layout(listed, options)), options).with_output_types(Row)
    labelled: PCollection[Row] = listed | "Label" >> label
    return labelled


def assign(rows: PCollection[Row], options: ConvertOptions) -> tuple[PCollection[Plan], PCollection[str]]:
    """Plans a dataset of labelled and sized rows; writes the rows of every shard to the plan's working folder.

    Returns:
      The plan, and the names of the shards whose rows are written.
    """
    plan: PCollection[Plan] = rows | "Survey" >> CombineInParts(PlanCombineFn(options), _split_sums)  # Plan, one
    shards: PCollection[str] = (
        rows
        | "Key by bucket" >> beam.Map(_encode_by_bucket, options.seed).with_output_types(tuple[int, bytes])
        | "Group buckets" >> beam.GroupByKey()  # (bucket, [encoded Row])
        | "Cut into shards" >> beam.FlatMap(_cut, AsSingleton(plan), options).with_output_types(tuple[str, _Packed])
        | "Group shards" >> beam.GroupByKey()  # (shard, [packed rows])
        | "Write rows" >> beam.Map(_write_rows, AsSingleton(plan), options).with_output_types(str)  # shard
    )
    return plan, shards


# Consecutive rows of a shard: (bucket, number of the part of the bucket, rows), in this order in the shard.
_Packed = tuple[int, int, bytes]


def _encode_by_bucket(row: Row, seed: int) -> tuple[int, bytes]:
    bucket, row = key_by_bucket(row, seed)
    return bucket, RowCoder().encode(row)


def _cut(keyed: tuple[int, Iterable[bytes]], plan: Plan, options: ConvertOptions) -> Iterator[tuple[str, _Packed]]:
    bucket, encoded = keyed
    assigned = assign_shards((bucket, map(RowCoder().decode, encoded)), plan, options)
    of_shards, number = collections.defaultdict[str, list[Row]](list), 0
    for shard, row in phases.counted("planning", assigned):
        rows = of_shards[shard]
        rows.append(row)
        if len(rows) == _ROWS_A_BATCH:
            yield shard, (bucket, number, _pack(of_shards.pop(shard)))
            number += 1
    for shard, rows in of_shards.items():
        yield shard, (bucket, number, _pack(rows))


def _pack(rows: list[Row]) -> bytes:
    return zlib.compress(marshal.dumps([tuple(row) for row in rows]), level=1)


def _unpack(packed: bytes) -> Iterator[Row]:
    return (Row(*fields) for fields in marshal.loads(zlib.decompress(packed)))


def _listed(pipeline: beam.Pipeline, options: ConvertOptions) -> PCollection[Row]:
    """Returns a row for every input, with size and version from storage, or rejected; PCollection of Row."""
    is_list = any(source.is_list for source in options.sources)
    parts = pipeline | "Sources" >> beam.Create([Part(source) for source in options.sources])
    levels = []
    for name in _LEVELS:
        opened = parts | f"Open {name}" >> beam.FlatMap(_open, options).with_outputs("parts", main="rows")
        levels.append(
            opened.rows | f"Rows of {name}" >> beam.Map(_as_it_is if is_list else find).with_output_types(Row)
        )
        parts = opened.parts | f"Spread parts of {name}" >> beam.Reshuffle()
    below = parts | "List archives" >> beam.FlatMap(_list_below, options).with_output_types(Row)
    levels.append(below | "Rows of archives" >> beam.Map(_as_it_is if is_list else find).with_output_types(Row))
    rows: PCollection[Row] = group_rows(levels | "Rows of all" >> beam.Flatten(), options)
    if not is_list:
        return rows
    # The listing of a folder includes sizes. Each line of a list needs a request of its own, so these are distributed
    # to all workers, and sent concurrently in batches.
    spread = rows | "Spread lines" >> beam.Reshuffle(num_buckets=1024)
    batches = spread | "Batch lines" >> beam.BatchElements(min_batch_size=256, max_batch_size=256)  # [Row]
    found = batches | "Find each" >> beam.FlatMap(find_each).with_output_types(Row)
    return found if options.group_by else keep_groups_together(found)


def _open(part: Part, options: ConvertOptions) -> Iterator[Any]:
    for found in phases.counted("listing", list_part(part, options), lambda found: not isinstance(found, Part)):
        yield beam.pvalue.TaggedOutput("parts", found) if isinstance(found, Part) else found


def _list_below(part: Part, options: ConvertOptions) -> Iterator[Row]:
    return phases.counted("listing", list_below(part, options))


def _as_it_is(row: Row) -> Row:
    return row


def _layout(rows: PCollection[Row], options: ConvertOptions) -> PCollection[Layout]:
    """Returns the interpretation of the folders, which depends on all rows; PCollection of one Layout."""
    survey = CombineInParts(FolderSurvey(options), _split_folders)
    found = rows | "Survey folders" >> survey  # {Place: Folder}, one
    layout: PCollection[Layout] = found | "Read folders" >> beam.Map(read_folders, options)
    return layout


def _labelled(rows: PCollection[Row], layout: PCollection[Layout], options: ConvertOptions) -> PCollection[Row]:
    """Returns `rows` with labels, splits and estimated record sizes; PCollection of Row.

    Sizes are estimated from the first images of each kind.
    """
    if options.stratify or options.validation or options.group_by or options.dedup == "near":
        by_folder = beam.Map(label_by_folder, AsSingleton(layout), options).with_output_types(Row)
        return _split_and_sized(rows | "Label by folder" >> by_folder, options)
    label = beam.Map(_label, AsSingleton(layout), AsDict(_ratios(rows, options)), options).with_output_types(Row)
    return reject_duplicates(rows | "Label" >> label, options)


def _split_and_sized(labelled: PCollection[Row], options: ConvertOptions) -> PCollection[Row]:
    """Returns rows that have labels with splits, if these depend on other rows, and with estimated record sizes."""
    # A folder of a split names the split of its images, so that groups are after it.
    grouped = keep_groups_together(group_look_alikes(labelled, options)) if options.group_by else labelled
    return size_rows(choose_splits(reject_duplicates(grouped, options), options), options)


def group_rows(rows: PCollection[Row], options: ConvertOptions) -> PCollection[Row]:
    """Returns rows with the group that `group_by` finds in their keys; Row → Row."""
    if not options.groups_by_key:
        return rows
    grouped: PCollection[Row] = rows | "Group by key" >> beam.Map(_group, options.group_by).with_output_types(Row)
    return grouped


def _group(row: Row, pattern: str) -> Row:
    match = None if row.group else re.search(pattern, row.key)
    return row._replace(group=match[match.re.groups] or "") if match else row


def choose_splits(rows: PCollection[Row], options: ConvertOptions) -> PCollection[Row]:
    """Returns labelled rows with their splits, if these depend on other rows or are cut out of train; Row → Row.

    All other splits are chosen by plan.choose_split(), of each row alone.
    """
    if not (options.stratify or options.validation):
        return rows
    counts = (
        rows
        | "Splits of inputs" >> beam.FlatMap(lambda row: [] if row.reason else [row.split])
        | "Count splits" >> combiners.Count.PerElement()  # (split, number of rows)
        | "Splits that inputs name" >> combiners.ToDict()
    )
    ends = rows | "Key by class" >> beam.FlatMap(_point_of_class, options).with_output_types(
        tuple[tuple[str, str], float]
    )
    if options.stratify:
        ends = (
            ends
            | "Group classes" >> beam.GroupByKey()
            | "Ends of splits" >> beam.MapTuple(functools.partial(_ends, options=options))
        )
    else:
        ends = ends | "No ends" >> beam.Filter(lambda _: False)
    choose = beam.Map(_choose, AsSingleton(counts), AsDict(ends), options).with_output_types(Row)
    chosen: PCollection[Row] = rows | "Choose splits" >> choose
    return chosen


def _shares(row: Row, options: ConvertOptions) -> tuple[tuple[str, float], ...]:
    """Returns the shares by which the split of a row is chosen; () if it names its split, or is rejected."""
    if row.reason:
        return ()
    if not row.split:
        return options.splits
    if row.split != "train" or not options.validation:
        return ()
    return ("train", 1 - options.validation), ("validation", options.validation)


def _point_of_class(row: Row, options: ConvertOptions) -> Iterator[tuple[tuple[str, str], float]]:
    if not row.group and _shares(row, options):
        yield (row.split, row.label), split_point(row, options.seed)


def _ends(
    of_class: tuple[str, str], points: Iterable[float], options: ConvertOptions
) -> tuple[tuple[str, str], list[float]]:
    """Returns ((split, class), the points at which its splits end, so that each has its share of these points)."""
    ordered = np.sort(np.fromiter(points, np.float64))
    shares = _shares(Row("", label=of_class[1], split=of_class[0]), options)
    counts = [round(len(ordered) * total) for total in itertools.accumulate(share for _, share in shares)]
    return of_class, [float(ordered[count]) if count < len(ordered) else 1.0 for count in counts[:-1]]


def _choose(row: Row, counts: dict[str, int], ends: dict[tuple[str, str], list[float]], options: ConvertOptions) -> Row:
    """Returns a row with its split.

    Raises:
      ValueError: No row has a split that is to be chosen.
    """
    # New inputs of a dataset that is extended need not be of train, which the dataset has.
    has_train = bool(counts.get("train") or options.parent)
    if options.validation and ("validation" in counts or not has_train):
        named = ", ".join(repr(name) for name in sorted(counts) if name)
        raise ValueError(
            "--validation is the share of the split 'train' that becomes 'validation', but the inputs "
            + (
                f"name the splits {named}; it needs 'train' without 'validation'"
                if named
                else "name no splits; divide them with --splits, for example --splits=train=90%,validation=10%"
            )
        )
    if options.stratify and not options.validation and "" not in counts and counts:
        raise ValueError("every input already specifies its split, so --stratify would have no effect; leave it out")
    shares = _shares(row, options)
    if not shares:
        return row
    point, its_ends = split_point(row, options.seed), ends.get((row.split, row.label))
    if row.group or its_ends is None:
        return row._replace(split=split_at(point, shares))
    return row._replace(split=shares[bisect.bisect_right(its_ends, point)][0])


def size_rows(rows: PCollection[Row], options: ConvertOptions) -> PCollection[Row]:
    """Returns rows that have a label with their estimated record sizes, or with a reason for a wrong name or size."""
    size = beam.Map(_size, AsDict(_ratios(rows, options)), options).with_output_types(Row)
    sized: PCollection[Row] = rows | "Size" >> size
    return sized


def _ratios(rows: PCollection[Row], options: ConvertOptions) -> PCollection[tuple[str, float]]:
    """Returns the ratio of stored bytes to source bytes of each kind of image, as measured on its first images."""
    ratios: PCollection[tuple[str, float]] = (
        rows
        | "Usable" >> beam.Filter(lambda row: not row.reason)
        | "Key by kind" >> beam.WithKeys(kind).with_output_types(tuple[str, Row])
        | "Sample" >> beam.CombinePerKey(_FirstInOrder(options.seed))  # (kind, [Row])
        | "Measure" >> beam.MapTuple(functools.partial(_ratio, options=options))  # (kind, ratio)
    )
    return ratios


def _label(row: Row, layout: Layout, ratios: dict[str, float], options: ConvertOptions) -> Row:
    return _size(label_by_folder(row, layout, options), ratios, options)


def _size(row: Row, ratios: dict[str, float], options: ConvertOptions) -> Row:
    row = check_names(row, options)
    is_numbered = options.num_shards and options.shards_of(choose_split(row, options))
    return size_row(row, ratios, 0 if is_numbered else options.shard_bytes, options.label_kind)


class _FirstInOrder(beam.CombineFn):
    """CombineFn from rows to the list of the first _SAMPLE rows in the order of the dataset."""

    def __init__(self, seed: int) -> None:
        self._key = functools.partial(in_order, seed=seed)

    def create_accumulator(self) -> list[Row]:
        return []

    def add_input(self, accumulator: list[Row], row: Row) -> list[Row]:
        accumulator.append(row)
        return accumulator if len(accumulator) < 4 * _SAMPLE else self._first(accumulator)

    def merge_accumulators(self, accumulators: Iterable[list[Row]]) -> list[Row]:
        return self._first(row for accumulator in accumulators for row in accumulator)

    def extract_output(self, accumulator: list[Row]) -> list[Row]:
        return self._first(accumulator)

    def _first(self, rows: Iterable[Row]) -> list[Row]:
        return heapq.nsmallest(_SAMPLE, rows, key=self._key)


def _ratio(of_kind: str, rows: list[Row], options: ConvertOptions) -> tuple[str, float]:
    """Returns (kind, ratio of stored bytes to source bytes); files that are no images count as 0 stored bytes."""
    phases.advance("planning", 0)  # all is listed
    located = [locate(row, options) for row in rows]
    sizes = map_images(located, lambda _row, data: stored_bytes(data, options.images), num_cores())
    stored = [size for _, size in sizes if not isinstance(size, Rejected)]
    return of_kind, sum(stored) / max(sum(row.num_bytes for row in rows), 1)


def _write_plan(plan: Plan, layout: Layout, options: ConvertOptions, path: str) -> None:
    with storage.create(path) as file:
        file.write(add_remarks(plan, layout, options).to_json().encode())


def _missing_splits(plan: Plan, options: ConvertOptions) -> str:
    """Returns a line about splits that were asked for and get no image; "" if there are none."""
    missing = [name for name, _ in options.splits if not plan.totals.get(name)]
    is_divided = options.stratify or not plan.all_named
    is_asked = options.splits_required or options.stratify or options.splits != ConvertOptions.splits
    if options.parent or not (is_divided and is_asked and missing):
        return ""
    some = ", ".join(missing[:4]) + (", …" if len(missing) > 4 else "")
    return (
        f"{len(missing)} of {len(options.splits)} splits get no image: {some}; there are too few images "
        f"({sum(plan.num_images.values()):,}{', or too few of each class' * options.stratify}) for their shares"
    )


def add_remarks(plan: Plan, layout: Layout, options: ConvertOptions) -> Plan:
    """Returns the plan with the notes for the user on how the folders and keys of the inputs were interpreted."""
    remarks, num_images = layout.remarks, sum(plan.num_images.values())
    if options.groups_by_key and 0 < plan.num_ungrouped < num_images:
        of_all = f"{plan.num_ungrouped:,} of {num_images:,} images"
        remarks = (*remarks, f"{of_all} are in no group: {options.group_by!r} is not in their keys")
    if plan.num_duplicates:
        counts = ", ".join(f"{count:,} of {split}" for split, count in plan.num_duplicates.items())
        remarks = (*remarks, f"duplicates left out: {counts}; of copies in several splits, the one outside train stays")
    if line := _missing_splits(plan, options):
        remarks = (*remarks, line)
    return dataclasses.replace(plan, remarks=remarks, left_out=layout.left_out, num_outdated=layout.num_outdated)


def _write_rows(keyed: tuple[str, Iterable[_Packed]], plan: Plan, options: ConvertOptions) -> str:
    shard, parts = keyed
    rows = (locate(row, options) for _, _, packed in sorted(parts) for row in _unpack(packed))
    WorkingFolder.of(options.output, plan).write_rows(shard, rows)
    return shard


def reject_duplicates(rows: PCollection[Row], options: ConvertOptions) -> PCollection[Row]:
    """Returns `rows`, with those rejected whose bytes occur in an earlier row or under two labels; Row → Row.

    With dedup="near", so are those that look like an earlier row; with dedup="none", none are.
    """
    if options.dedup == "none":
        return rows
    kept: PCollection[Row]
    if options.dedup == "near":
        found = rows | "Look-alikes to reject" >> FindLookAlikes(options)
        kept = (
            rows
            | "Key by look" >> beam.Map(_key_by_look, AsSingleton(found)).with_output_types(tuple[str, Row])
            | "Group by look" >> beam.GroupByKey()  # (key of the first, [Row])
            | "Keep the first" >> beam.FlatMap(_keep_first, options, "it looks like").with_output_types(Row)
        )
        return kept
    kept = (
        rows
        | "Spread content" >> beam.Reshuffle()  # or else those who list a folder read it, too
        | "Batch to hash" >> beam.BatchElements(_ROWS_A_BATCH, _ROWS_A_BATCH)  # [Row]
        | "Hash content" >> beam.FlatMap(_hash, options).with_output_types(tuple[str, Row])  # (sha256, Row)
        | "Group by content" >> beam.GroupByKey()  # (sha256, [Row])
        | "Keep the first" >> beam.FlatMap(_keep_first, options, "the same bytes as").with_output_types(Row)
    )
    return kept


def _hash(rows: list[Row], options: ConvertOptions) -> Iterator[tuple[str, Row]]:
    for row, data in read_rows([locate(row, options) for row in rows]):
        # An unreadable file is rejected later, when shards are written; its key serves as a hash of its own until then.
        yield row.key if isinstance(data, Rejected) else hashlib.sha256(data).hexdigest(), row
    phases.advance("hashing", len(rows))


def group_look_alikes(rows: PCollection[Row], options: ConvertOptions) -> PCollection[Row]:
    """Returns rows with a group for those that look alike, if options.group_by asks for it; Row → Row."""
    if options.group_by != NEAR_DUPLICATES:
        return rows
    found = rows | "Look-alikes to group" >> FindLookAlikes(options)
    grouped: PCollection[Row] = rows | "Group look-alikes" >> beam.Map(
        _group_by_look, AsSingleton(found)
    ).with_output_types(Row)
    return grouped


class FindLookAlikes(beam.PTransform):  # type: ignore[type-arg]
    """Row → {key: key of the first image of its group} of the images that look like others; PCollection of one dict.

    One process compares all of them, and has 1.2 kB of each in memory.
    """

    def __init__(self, options: ConvertOptions) -> None:
        super().__init__()
        self._options = options

    def expand(self, rows: PCollection[Row]) -> PCollection[dict[str, str]]:
        found: PCollection[dict[str, str]] = (
            rows
            | "Spread pictures" >> beam.Reshuffle()
            | "Batch to compare" >> beam.BatchElements(_ROWS_A_BATCH, _ROWS_A_BATCH)  # [Row]
            | "Decode to compare" >> beam.FlatMap(_pictures, self._options)  # (place in the order, key, Picture)
            | "All pictures" >> combiners.ToList()
            | "Compare" >> beam.Map(_first_by_key)
        )
        return found


def _pictures(rows: list[Row], options: ConvertOptions) -> Iterator[tuple[Any, str, near_duplicates.Picture]]:
    located = [locate(row, options) for row in rows if not row.reason]
    for row, found in map_images(located, lambda _row, data: near_duplicates.picture(data), num_cores()):
        if isinstance(found, near_duplicates.Picture):
            yield in_order(row, options.seed)[:2], row.key, found
    phases.advance("hashing", len(rows))


def _first_by_key(found: list[tuple[Any, str, near_duplicates.Picture]]) -> dict[str, str]:
    found = sorted(found, key=lambda each: each[0])
    groups = near_duplicates.groups_of([each[2] for each in found])
    return {found[number][1]: found[group[0]][1] for group in groups for number in group}


def _key_by_look(row: Row, firsts: dict[str, str]) -> tuple[str, Row]:
    return firsts.get(row.key, row.key), row


def _group_by_look(row: Row, firsts: dict[str, str]) -> Row:
    return row._replace(group=row.group or firsts.get(row.key, ""))


def _keep_first(keyed: tuple[str, Iterable[Row]], options: ConvertOptions, what: str) -> Iterator[Row]:
    every = sorted(keyed[1], key=lambda row: (_SPLIT_RANKS.get(row.split, 1), in_order(row, options.seed)))
    yield from (row for row in every if row.reason)
    same = [row for row in every if not row.reason]
    first, labels = same[0] if same else None, sorted({row.label for row in same})
    for row in same:
        if len(labels) > 1:
            shown = (repr(options.label_kind.shown(label)) for label in labels)
            yield row.reject("conflicting_label", f"the same image is labelled {' and '.join(shown)}")
        elif first and row is not first:
            yield row.reject("duplicate", f"{what} {first.key!r}")
        else:
            yield row


# Of copies in several splits that inputs name, the one in the first of these stays: what a model is tested with is
# often fixed, and train can do without. Other names of splits are between test and validation.
_SPLIT_RANKS = {"test": 0, "validation": 2, "train": 3, "": 4}


def keep_groups_together(rows: PCollection[Row]) -> PCollection[Row]:
    """Returns `rows`, where all rows of a group have the one split that any of them names; Row → Row.

    Rows of a group that names no split are unchanged: plan.choose_split() hashes the group.
    """
    together = (
        rows
        | "In groups" >> beam.Filter(_is_grouped)
        | "Key by group" >> beam.WithKeys(lambda row: row.group).with_output_types(tuple[str, Row])
        | "Group groups" >> beam.GroupByKey()  # (group, [Row])
        | "One split a group" >> beam.FlatMap(_in_one_split).with_output_types(Row)
    )
    alone = rows | "In no group" >> beam.Filter(lambda row: not _is_grouped(row))
    every: PCollection[Row] = (together, alone) | "With groups" >> beam.Flatten()
    return every


def _is_grouped(row: Row) -> bool:
    # Rows with an invalid split name are left out: they are rejected for the name.
    return bool(row.group) and not row.reason and (not row.split or valid_split(row.split))


def _in_one_split(keyed: tuple[str, Iterable[Row]]) -> Iterator[Row]:
    group, rows = keyed
    splits = sorted({row.split for row in rows} - {""})
    for row in rows:
        if len(splits) > 1:
            yield row.reject("conflicting_split", f"group {group!r} is in {' and '.join(map(repr, splits))}")
        else:
            yield row._replace(split=splits[0]) if splits else row


@dataclasses.dataclass
class _Sums:
    """What PlanCombineFn knows of the rows so far.

    Attributes:
      classes: (split that an input names, class).
      inputs: Number of rows.
      reasons: Number of rejected rows by reason.
      examples: An example of a rejected row by reason, as text.
      hashes: Sum of the hashes of the rows, which does not depend on their order.
      costs: Size in bytes by (split, bucket).
      images: Number of images by split.
      duplicates: Number of rows that are rejected as duplicates, by the split that their input names.
      ungrouped: Number of images without a group.
      unsplit: Number of images whose input names no split.
    """

    classes: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    inputs: int = 0
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, str] = dataclasses.field(default_factory=dict)
    hashes: int = 0
    costs: Counter[tuple[str, int]] = dataclasses.field(default_factory=Counter)
    images: Counter[str] = dataclasses.field(default_factory=Counter)
    duplicates: Counter[str] = dataclasses.field(default_factory=Counter)
    ungrouped: int = 0
    unsplit: int = 0

    def add(self, other: _Sums) -> None:
        """Adds what is known of other rows."""
        self.classes |= other.classes
        self.inputs += other.inputs
        self.reasons.update(other.reasons)
        _keep_smallest(self.examples, other.examples)
        self.hashes += other.hashes
        self.costs.update(other.costs)
        self.images.update(other.images)
        self.duplicates.update(other.duplicates)
        self.ungrouped += other.ungrouped
        self.unsplit += other.unsplit


class PlanCombineFn(beam.CombineFn):
    """CombineFn from all rows to the one Plan."""

    def __init__(self, options: ConvertOptions) -> None:
        self._options = options

    def create_accumulator(self) -> _Sums:
        return _Sums()

    def add_input(self, accumulator: _Sums, row: Row) -> _Sums:
        sums, split = accumulator, choose_split(row, self._options)
        sums.inputs += 1
        if row.reason:
            sums.reasons[row.reason] += 1
            if row.reason == "duplicate" and row.split:
                sums.duplicates[row.split] += 1
            _keep_smallest(sums.examples, {row.reason: f"{row.key!r}: {row.detail}"})
        else:
            sums.classes.update((row.split, name) for name in self._options.label_kind.names(row.label))
            sums.images[split] += 1
            sums.ungrouped += not row.group
            sums.unsplit += not row.split
        number, _ = key_by_bucket(row, self._options.seed)
        sums.costs[split, number] += row_bytes(row, split, self._options)
        # The hash leaves out the URI and the version, so that the same inputs have the same fingerprint in another
        # folder, or when an object was rewritten; and the detail of a rejection, which is a sentence that another
        # version of this package may word differently.
        # It is that of repr() of a row that has no version; to write it takes a fifth of the time of row._replace().
        what = (
            f"Row(key={row.key!r}, uri='', label={row.label!r}, split={row.split!r}, group={row.group!r}, "
            f"num_bytes={row.num_bytes}, record_bytes={row.record_bytes}, reason={row.reason!r}, detail='', "
            f"number={row.number})" + row.features
        )
        sums.hashes += int.from_bytes(hashlib.sha256(what.encode()).digest(), "big")
        return sums

    def merge_accumulators(self, accumulators: Iterable[_Sums]) -> _Sums:
        merged = _Sums()
        for accumulator in accumulators:
            merged.add(accumulator)
        return merged

    def extract_output(self, accumulator: _Sums) -> Plan:
        sums = accumulator
        # Keys are not sorted, because the order of the splits determines which hashes belong to which split.
        chosen = self._options.stratify or self._options.validation  # then a class may miss in a split by chance
        of_parent = [self._options.parent] if self._options.parent else []
        what = json.dumps([self._options.shaping(), sums.inputs, sums.hashes % 2**256, *of_parent])
        buckets: dict[str, dict[int, int]] = {}
        for (split, number), total in sorted(sums.costs.items()):
            buckets.setdefault(split, {})[number] = total
        return Plan(
            classes=self._options.labels or extension.classes_of({label for _, label in sums.classes}, self._options),
            num_inputs=sums.inputs,
            num_rejected=dict(sorted(sums.reasons.items())),
            examples=dict(sorted(sums.examples.items())),
            fingerprint=hashlib.sha256(what.encode()).hexdigest(),
            buckets=buckets,
            shard_bytes=self._options.shard_bytes,
            num_shards={split: count for split in buckets if (count := self._options.shards_of(split))},
            strangers=() if chosen or self._options.parent else tuple(_splits_without_common_class(sums.classes)),
            all_named=not sums.unsplit,
            num_images=dict(sorted(sums.images.items())),
            num_ungrouped=sums.ungrouped,
            num_duplicates=dict(sorted(sums.duplicates.items())),
        )


def _split_sums(sums: _Sums, num_parts: int) -> list[_Sums]:
    """Returns the parts of an accumulator of PlanCombineFn: some classes in each, and all else in the first."""
    parts = [_Sums() for _ in range(num_parts)]
    parts[0] = dataclasses.replace(sums, classes=set())
    for split, label in sums.classes:
        parts[_part(label, num_parts)].classes.add((split, label))
    return parts


def _split_folders(survey: Survey, num_parts: int) -> list[Survey]:
    """Returns the parts of an accumulator of FolderSurvey: some folders in each, and the labels in the first."""
    parts = [Survey({}, LabelSurvey(), Counter(), set()) for _ in range(num_parts)]
    parts[0] = survey._replace(folders={})
    for place, folder in survey.folders.items():
        parts[_part("/".join(place), num_parts)].folders[place] = folder
    return parts


def _part(name: str, num_parts: int) -> int:
    return zlib.crc32(name.encode(errors="replace")) % num_parts  # unlike hash(), the same in every process


def _splits_without_common_class(classes: set[tuple[str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Yields (split, split, first class of each) for the pairs of splits that have no class in common."""
    by_split: dict[str, set[str]] = {}
    for split, label in classes:
        if split:  # not if chosen by hash: of few images, some classes may be missing by chance
            by_split.setdefault(split, set()).add(label)
    for (one, its), (other, others) in itertools.combinations(sorted(by_split.items()), 2):
        if its.isdisjoint(others):
            yield one, other, min(its), min(others)


def _keep_smallest(kept: dict[str, str], others: dict[str, str]) -> None:
    for reason, example in others.items():
        kept[reason] = min(example, kept.get(reason, example))
