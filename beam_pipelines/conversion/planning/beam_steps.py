"""Beam's steps of planning, whose elements are batches of rows; what they do is in the other files of this folder.

    Source ──list──▶ Batch ──label, check──▶ Batch ──sample, size──▶ Batch ──PlanSurvey──▶ Plan
                                                                 └──by range, cut, group──▶ a file of rows per shard

No process holds the whole list of inputs in memory, except in Beam's local runner. Rows are sent as packed
batches, which are smaller than the tuples of their fields. Steps declare their output types so that Beam encodes rows
with BatchCoder rather than pickle.
"""

from __future__ import annotations

import collections
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import AsDict, AsSingleton, PCollection
from apache_beam.transforms import combiners
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines import storage
from beam_pipelines.conversion import extension
from beam_pipelines.conversion.combining import CombineInParts
from beam_pipelines.conversion.plan import BUCKET_BITS, Placed, Plan, place_rows
from beam_pipelines.conversion.planning import duplicates, split_choice
from beam_pipelines.conversion.planning.cutting import by_range, cut
from beam_pipelines.conversion.planning.plan_survey import PlanSurvey, add_remarks, split_sums
from beam_pipelines.conversion.planning.record_sizes import Samples, first_rows, measure, size_rows
from beam_pipelines.conversion.planning.row_batches import (
    BATCH_ROWS,
    LINE_ROWS,
    Parts,
    batched,
    by_hash,
    groups_of,
    new_row,
    pack,
    pack_tuples,
    unpack,
    unpack_tuples,
)
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import NEAR_DUPLICATES, ConvertOptions
from beam_pipelines.runners import phases
from beam_pipelines.sources.folders import FolderSurvey, Layout, Survey, label_rows, read_folders, split_survey
from beam_pipelines.sources.input_kinds import Part
from beam_pipelines.sources.listing import list_below, list_part
from beam_pipelines.sources.rows import Row, find, find_each

_LEVELS = ("sources", "folders", "class folders")  # that are opened one after another, each by all workers


class Batch(list[Row]):
    """Type of the elements; a list of rows is one, too."""


class BatchCoder(beam.coders.Coder):
    """Beam coder of batches: see row_batches.pack()."""

    def encode(self, value: list[Row]) -> bytes:
        return pack(value)

    def decode(self, encoded: bytes) -> list[Row]:
        return unpack(encoded)

    def to_type_hint(self) -> type[Batch]:
        return Batch


class PlacedBatch(list[Placed]):
    """Type of batches of placed rows, whose positions are too large for Beam's own coder of integers."""


class PlacedBatchCoder(beam.coders.Coder):
    """Beam coder of batches of placed rows."""

    def encode(self, value: list[Placed]) -> bytes:
        return pack_tuples([(position, split, *row) for position, split, row in value])

    def decode(self, encoded: bytes) -> list[Placed]:
        return [(position, split, new_row(fields)) for position, split, *fields in unpack_tuples(encoded)]

    def to_type_hint(self) -> type[PlacedBatch]:
        return PlacedBatch


registry.register_coder(Batch, BatchCoder)
registry.register_coder(PlacedBatch, PlacedBatchCoder)
Batches = PCollection[Batch]


def build_planning(pipeline: beam.Pipeline, options: ConvertOptions, plan_path: str) -> None:
    """Adds the steps that list the sources, write the rows of every shard, and write the plan to `plan_path`."""
    batches, layout = plan_rows(pipeline, options)
    plan, _ = assign(batches, options)
    plan | "Write plan" >> beam.Map(_write_plan, AsSingleton(layout), options, plan_path)


def plan_rows(pipeline: beam.Pipeline, options: ConvertOptions) -> tuple[Batches, PCollection[Layout]]:
    """Returns a labeled and sized row for every input of the sources, and how their folders were interpreted."""
    listed = _listed(pipeline, options)
    layout = _layout(listed, options)
    if not split_choice.depends_on_labels(options):
        sized = beam.Map(_label_and_size, AsSingleton(layout), AsDict(_ratios(listed, options)), options)
        return reject_duplicates(listed | "Label" >> sized.with_output_types(Batch), options), layout
    labelled: Batches = listed | "Label all" >> _labelling(layout, options)
    if not options.parent:
        return _split_and_size(labelled, options), layout
    changes = (
        labelled
        | "Known inputs" >> beam.FlatMap(_seen_inputs, options).with_output_types(tuple[str, Any])
        | "Of one image" >> beam.CombinePerKey(extension.merge_seen)
        | "Inputs seen" >> combiners.ToDict()
        | "Compare with the dataset" >> beam.Map(extension.find_changes, options)
    )
    layout = layout | "Tell changes" >> beam.Map(extension.tell_changes, AsSingleton(changes), options)
    new = beam.Map(_new_inputs, AsSingleton(changes), options).with_output_types(Batch)
    return _split_and_size(labelled | "New inputs" >> new, options), layout


def list_labelled(pipeline: beam.Pipeline, options: ConvertOptions) -> Batches:
    """Returns a row with label and split for every input of the sources, or with a reason."""
    listed = _listed(pipeline, options)
    labelled: Batches = listed | "Label" >> _labelling(_layout(listed, options), options)
    return labelled


def plan_images(batches: Batches, options: ConvertOptions) -> Batches:
    """Returns rows, which have labels and may have groups, with their splits and estimated record sizes."""
    grouped = batches | "Group by key" >> beam.Map(split_choice.group_rows, options).with_output_types(Batch)
    return _split_and_size(grouped, options, has_groups=True)


def assign(batches: Batches, options: ConvertOptions) -> tuple[PCollection[Plan], PCollection[str]]:
    """Plans a dataset of labeled and sized rows; writes the rows of every shard to the plan's working folder.

    Returns:
      The plan, and the names of the shards whose rows are written.
    """
    placed = batches | "Place" >> beam.Map(place_rows, options).with_output_types(PlacedBatch)
    plan: PCollection[Plan] = placed | "Survey" >> CombineInParts(PlanSurvey(options), split_sums)  # Plan, one
    shards: PCollection[str] = (
        placed
        | "Key by range" >> _in_parts(functools.partial(by_range, bits=BUCKET_BITS))
        | "Group ranges" >> beam.GroupByKey()  # (range, [packed rows])
        | "Cut into shards" >> beam.FlatMap(_cut, AsSingleton(plan), options).with_output_types(tuple[str, _Packed])
        | "Group shards" >> beam.GroupByKey()  # (shard, [packed rows])
        | "Write rows" >> beam.Map(_write_rows, AsSingleton(plan), options).with_output_types(str)  # shard
    )
    return plan, shards


class _Parts(beam.DoFn):
    """Element → (part, packed tuples), of what a function yields for it; tuples of a bundle stay together."""

    def __init__(self, function: Callable[[Any], Iterable[tuple[int, tuple[Any, ...]]]]) -> None:
        self._function = function

    def start_bundle(self) -> None:
        self._parts = Parts()

    def process(self, element: Any) -> Iterator[tuple[int, bytes]]:
        return self._parts.add(self._function(element))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        window = GlobalWindow()
        for element in self._parts.rest():
            yield WindowedValue(element, window.max_timestamp(), (window,))


def _in_parts(function: Callable[[Any], Iterable[tuple[int, tuple[Any, ...]]]]) -> Any:
    return beam.ParDo(_Parts(function)).with_output_types(tuple[int, bytes])


# Consecutive rows of a shard: (range, number of the part of the range, rows), in this order in the shard.
_Packed = tuple[int, int, bytes]


def _cut(keyed: tuple[int, Iterable[bytes]], plan: Plan, options: ConvertOptions) -> Iterator[tuple[str, _Packed]]:
    number, packed = keyed
    rows_by_shard, part = collections.defaultdict[str, list[Row]](list), 0
    for shard, row in cut(number, BUCKET_BITS, packed, plan, options):
        rows = rows_by_shard[shard]
        rows.append(row)
        if len(rows) == BATCH_ROWS:
            yield shard, (number, part, _compressed(rows_by_shard.pop(shard)))
            part += 1
    for shard, rows in rows_by_shard.items():
        yield shard, (number, part, _compressed(rows))


def _compressed(rows: list[Row]) -> bytes:
    phases.count_units("planning", len(rows))
    return zlib.compress(pack(rows), level=1)


def _write_rows(keyed: tuple[str, Iterable[_Packed]], plan: Plan, options: ConvertOptions) -> str:
    shard, parts = keyed
    rows = itertools.chain.from_iterable(unpack(zlib.decompress(packed)) for _, _, packed in sorted(parts))
    WorkingFolder.of(options.output, plan).write_rows(shard, rows)
    return shard


def _write_plan(plan: Plan, layout: Layout, options: ConvertOptions, path: str) -> None:
    with storage.create(path) as file:
        file.write(add_remarks(plan, layout, options).to_json().encode())


def _listed(pipeline: beam.Pipeline, options: ConvertOptions) -> Batches:
    """Returns a row for every input, with size and version from storage, or rejected."""
    is_list = any(source.is_list for source in options.sources)
    parts = pipeline | "Sources" >> beam.Create([Part(source) for source in options.sources])
    levels = []
    for name in _LEVELS:
        opened = parts | f"Open {name}" >> beam.FlatMap(_open, is_list, options).with_outputs("parts", main="rows")
        levels.append(opened.rows | f"Rows of {name}" >> beam.Map(_as_it_is).with_output_types(Batch))
        parts = opened.parts | f"Spread parts of {name}" >> beam.Reshuffle()
    levels.append(parts | "List archives" >> beam.FlatMap(_list_below, is_list, options).with_output_types(Batch))
    batches: Batches = levels | "Rows of all" >> beam.Flatten()
    if is_list:
        # The listing of a folder includes sizes. Each line of a list needs a request of its own, so these are
        # distributed to all workers, and sent concurrently.
        spread = batches | "Spread lines" >> beam.Reshuffle(num_buckets=1024)
        batches = spread | "Find each" >> beam.Map(_find_each).with_output_types(Batch)
    batches = batches | "Group by key" >> beam.Map(split_choice.group_rows, options).with_output_types(Batch)
    return keep_groups_together(batches) if is_list and not options.group_by else batches


def _open(part: Part, is_list: bool, options: ConvertOptions) -> Iterator[Any]:
    parts: list[Part] = []
    rows = (found for found in list_part(part, options) if not _take_part(found, parts))
    for batch in _found(rows, is_list):
        yield from (beam.pvalue.TaggedOutput("parts", each) for each in parts)
        parts.clear()
        yield batch
    yield from (beam.pvalue.TaggedOutput("parts", each) for each in parts)


def _take_part(found: Row | Part, parts: list[Part]) -> bool:
    """Adds what is found in a part to a list if it is another part; returns whether it is."""
    if isinstance(found, Part):
        parts.append(found)
    return isinstance(found, Part)


def _list_below(part: Part, is_list: bool, options: ConvertOptions) -> Iterator[list[Row]]:
    return _found(list_below(part, options), is_list)


def _found(listed: Iterable[Any], is_list: bool) -> Iterator[list[Row]]:
    for rows in batched(listed, LINE_ROWS if is_list else BATCH_ROWS):
        phases.count_units("listing", len(rows))
        yield rows if is_list else list(map(find, rows))


def _find_each(rows: list[Row]) -> list[Row]:
    return list(find_each(rows))


def _as_it_is(rows: list[Row]) -> list[Row]:
    return rows


def _layout(batches: Batches, options: ConvertOptions) -> PCollection[Layout]:
    """Returns the interpretation of the folders, which depends on all rows; PCollection of one Layout."""
    survey: PCollection[Survey] = batches | "Survey folders" >> CombineInParts(FolderSurvey(options), split_survey)
    layout: PCollection[Layout] = survey | "Read folders" >> beam.Map(read_folders, options)
    return layout


def _labelling(layout: PCollection[Layout], options: ConvertOptions) -> Any:
    return beam.Map(label_rows, AsSingleton(layout), options).with_output_types(Batch)


def _label_and_size(rows: list[Row], layout: Layout, ratios: dict[str, float], options: ConvertOptions) -> list[Row]:
    return size_rows(label_rows(rows, layout, options), ratios, options)


def _seen_inputs(rows: list[Row], options: ConvertOptions) -> Iterator[tuple[str, extension.Seen]]:
    yield from extension.seen_inputs(rows, options).items()


def _new_inputs(rows: list[Row], changes: extension.Changes, options: ConvertOptions) -> list[Row]:
    return [row for row in rows if extension.is_new(row, changes, options)]


def _split_and_size(labelled: Batches, options: ConvertOptions, has_groups: bool = False) -> Batches:
    """Returns rows that have labels with splits, if these depend on other rows, and with estimated record sizes.

    Args:
      labelled: Batches of labeled rows.
      options: Options of the conversion.
      has_groups: Whether rows may name groups of their own, which were not kept together before.
    """
    grouped = labelled
    if options.group_by or has_groups:  # a folder of a split names the split of its images, so that groups are after it
        grouped = keep_groups_together(_group_look_alikes(labelled, options))
    return _size(_choose_splits(reject_duplicates(grouped, options), options), options)


def keep_groups_together(batches: Batches) -> Batches:
    """Returns rows, where all rows of a group have the one split that any of them names."""
    together = (
        batches
        | "Key by group" >> _in_parts(_key_by_group)
        | "Group groups" >> beam.GroupByKey()  # (part, [packed])
        | "One split a group" >> beam.FlatMap(_in_one_split).with_output_types(Batch)
    )
    alone = batches | "In no group" >> beam.Map(_in_no_group).with_output_types(Batch)
    every: Batches = (together, alone) | "With groups" >> beam.Flatten()
    return every


def _key_by_group(rows: list[Row]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    return by_hash((row.group, row) for row in rows if split_choice.is_grouped(row))


def _in_no_group(rows: list[Row]) -> list[Row]:
    return [row for row in rows if not split_choice.is_grouped(row)]


def _in_one_split(part: tuple[int, Iterable[bytes]]) -> Iterator[list[Row]]:
    return batched(row for keyed in groups_of(part[1]) for row in split_choice.in_one_split(*keyed))


def _choose_splits(batches: Batches, options: ConvertOptions) -> Batches:
    """Returns labeled rows with their splits, if these depend on other rows or are cut out of train."""
    if not split_choice.depends_on_others(options):
        return batches
    counts = (
        batches
        | "Splits of inputs" >> beam.FlatMap(lambda rows: split_choice.count_splits(rows).items())
        | "Count splits" >> beam.CombinePerKey(sum)  # (split, number of rows)
        | "Splits that inputs name" >> combiners.ToDict()
    )
    ends = (
        batches
        | "Points by class" >> beam.FlatMap(lambda rows: split_choice.points_by_class(rows, options).items())
        | "Group classes" >> beam.GroupByKey()
        | "Ends of splits" >> beam.Map(_ends, options)
    )
    choose = beam.Map(split_choice.choose_splits, AsSingleton(counts), AsDict(ends), options).with_output_types(Batch)
    chosen: Batches = batches | "Choose splits" >> choose
    return chosen


def _ends(
    keyed: tuple[split_choice.SplitClass, Iterable[list[float]]], options: ConvertOptions
) -> tuple[split_choice.SplitClass, list[float]]:
    split_class, points = keyed
    return split_class, split_choice.ends_of_splits(split_class, itertools.chain.from_iterable(points), options)


def _size(batches: Batches, options: ConvertOptions) -> Batches:
    """Returns rows that have a label with their estimated record sizes, or with a reason for a wrong name or size."""
    size = beam.Map(size_rows, AsDict(_ratios(batches, options)), options).with_output_types(Batch)
    sized: Batches = batches | "Size" >> size
    return sized


def _ratios(batches: Batches, options: ConvertOptions) -> PCollection[tuple[str, float]]:
    """Returns the ratio of stored bytes to source bytes of each kind of image, as measured on its first images."""
    ratios: PCollection[tuple[str, float]] = (
        batches
        | "Sample of each kind" >> beam.ParDo(_Sample(options.seed)).with_output_types(tuple[str, Batch])
        | "Group kinds" >> beam.GroupByKey()  # (kind, [batch])
        | "Measure" >> beam.Map(_measure, options)  # (kind, ratio)
    )
    return ratios


class _Sample(beam.DoFn):
    """Batch → (kind, the first rows in the order of the dataset), for each kind in a bundle."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def start_bundle(self) -> None:
        self._samples = Samples(self._seed)

    def process(self, rows: list[Row]) -> None:
        self._samples.add(rows)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        window = GlobalWindow()
        for element in self._samples.by_kind().items():
            yield WindowedValue(element, window.max_timestamp(), (window,))


def _measure(keyed: tuple[str, Iterable[list[Row]]], options: ConvertOptions) -> tuple[str, float]:
    kind, batches = keyed
    return kind, measure(first_rows(itertools.chain.from_iterable(batches), options.seed), options)


def reject_duplicates(batches: Batches, options: ConvertOptions) -> Batches:
    """Returns rows, with those rejected whose images are to occur once, and do already."""
    if options.dedup == "none":
        return batches
    if options.dedup == "near":
        found = batches | "Look-alikes to reject" >> FindLookAlikes(options)
        keyed = batches | "Looks" >> beam.Map(_keyed_by_look, AsSingleton(found))
    else:
        spread = batches | "Spread content" >> beam.Reshuffle()  # or else those who list a folder read it, too
        keyed = spread | "Hash content" >> beam.Map(_keyed_by_content, options)
    kept: Batches = (
        keyed  # [(SHA-256 or key of the first, Row)]
        | "Key by content" >> _in_parts(by_hash)
        | "Group by content" >> beam.GroupByKey()  # (part, [packed])
        | "Keep the first" >> beam.FlatMap(_keep_first, options).with_output_types(Batch)
    )
    return kept


def _keyed_by_look(rows: list[Row], firsts: dict[str, str]) -> list[tuple[str, Row]]:
    return list(duplicates.key_by_look(rows, firsts))


def _keyed_by_content(rows: list[Row], options: ConvertOptions) -> list[tuple[str, Row]]:
    return list(duplicates.key_by_content(rows, options))


def _keep_first(part: tuple[int, Iterable[bytes]], options: ConvertOptions) -> Iterator[list[Row]]:
    return batched(row for _, same in groups_of(part[1]) for row in duplicates.keep_first(same, options))


def _group_look_alikes(batches: Batches, options: ConvertOptions) -> Batches:
    """Returns rows with a group for those that look alike, if options.group_by asks for it."""
    if options.group_by != NEAR_DUPLICATES:
        return batches
    found = batches | "Look-alikes to group" >> FindLookAlikes(options)
    group = beam.Map(duplicates.group_by_look, AsSingleton(found)).with_output_types(Batch)
    grouped: Batches = batches | "Group look-alikes" >> group
    return grouped


class FindLookAlikes(beam.PTransform):  # type: ignore[type-arg]
    """Batch → {key: key of the first image of its group} of the images that look like others; PCollection of one dict.

    One process compares all of them, and has 1.2 kB of each in memory.
    """

    def __init__(self, options: ConvertOptions) -> None:
        super().__init__()
        self._options = options

    def expand(self, batches: Batches) -> PCollection[dict[str, str]]:
        found: PCollection[dict[str, str]] = (
            batches
            | "Spread pictures" >> beam.Reshuffle()
            | "Decode to compare"
            >> beam.FlatMap(duplicates.pictures, self._options).with_output_types(Any)  # LookAlike
            | "All pictures" >> combiners.ToList()
            | "Compare" >> beam.Map(duplicates.first_by_key)
        )
        return found
