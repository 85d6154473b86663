"""Beam's steps of planning, whose elements are batches of rows; what they do is in the other files of this folder.

    Source ──list──▶ Batch ──label, check──▶ Batch ──sample, size──▶ Batch ──PlanSurvey──▶ Plan
                                                                 └──by range, cut, group──▶ a file of rows per shard

No process holds the whole list of inputs in memory, except in Beam's local runner. Rows are sent as packed
batches, which are smaller than the tuples of their fields. Steps declare their output types so that Beam encodes rows
with BatchCoder rather than pickle.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import AsDict, AsSingleton, PCollection
from apache_beam.transforms import combiners
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines import storage
from beam_pipelines.conversion import extension
from beam_pipelines.conversion.combining import CombineInParts
from beam_pipelines.conversion.plan import Plan, by_range, cut, place_rows, range_bits, with_positions
from beam_pipelines.conversion.planning import duplicates, split_choice
from beam_pipelines.conversion.planning.plan_survey import PlanSurvey, add_remarks, split_sums
from beam_pipelines.conversion.planning.record_sizes import Samples, first_rows, measure, size_rows
from beam_pipelines.conversion.planning.row_batches import Numbered, Parts, by_hash, groups_of
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import NEAR_DUPLICATES, ConvertOptions
from beam_pipelines.runners import phases
from beam_pipelines.sources.folders import FolderSurvey, Layout, Survey, label_rows, read_folders, split_survey
from beam_pipelines.sources.input_kinds import Part
from beam_pipelines.sources.listing import find_files, list_below, list_part
from beam_pipelines.sources.row_columns import BATCH_ROWS, LINE_ROWS, Batch, batches_of, locate_rows, merge_batches
from tpu_input.command_line.cores import num_cores

_LEVELS = ("sources", "folders", "class folders")  # that are opened one after another, each by all workers


class BatchCoder(beam.coders.Coder):
    """Beam coder of batches."""

    def encode(self, value: Batch) -> bytes:
        return value.pack()

    def decode(self, encoded: bytes) -> Batch:
        return Batch.unpack(encoded)

    def to_type_hint(self) -> type[Batch]:
        return Batch


registry.register_coder(Batch, BatchCoder)
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
        | "Known inputs" >> beam.FlatMap(_compare_inputs, options).with_output_types(tuple[str, Any])
        | "Of one image" >> beam.CombinePerKey(extension.merge_comparisons)
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
    grouped = batches | "Group by key" >> beam.Map(_grouped, options).with_output_types(Batch)
    return _split_and_size(grouped, options, has_groups=True)


def assign(batches: Batches, options: ConvertOptions) -> tuple[PCollection[Plan], PCollection[str]]:
    """Plans a dataset of labeled and sized rows; writes the rows of every shard to the plan's working folder.

    Returns:
      The plan, and the names of the shards whose rows are written.
    """
    placed = batches | "Place" >> beam.Map(place_rows, options).with_output_types(Batch)
    plan: PCollection[Plan] = placed | "Survey" >> CombineInParts(PlanSurvey(options), split_sums)  # Plan, one
    shards: PCollection[str] = (
        placed
        | "Key by range" >> _in_parts(_by_range, AsSingleton(plan))
        | "Group ranges" >> beam.GroupByKey()  # (range, [packed rows])
        | "Cut into shards" >> beam.FlatMap(_cut, AsSingleton(plan), options).with_output_types(tuple[str, _Packed])
        | "Group shards" >> beam.GroupByKey()  # (shard, [packed rows])
        | "Write rows" >> beam.Map(_write_rows, AsSingleton(plan), options).with_output_types(str)  # shard
    )
    return plan, shards


class _Parts(beam.DoFn):
    """Batch → (part, packed rows), as a function divides it; rows of a bundle stay together."""

    def __init__(self, function: Callable[..., Numbered]) -> None:
        self._function = function

    def start_bundle(self) -> None:
        self._parts = Parts()

    def process(self, batch: Batch, side: Any = None) -> Iterator[tuple[int, bytes]]:
        numbered = self._function(batch) if side is None else self._function(batch, side)
        return self._parts.add(*numbered)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from map(GlobalWindows.windowed_value_at_end_of_window, self._parts.rest())


def _in_parts(function: Callable[..., Numbered], *sides: Any) -> Any:
    return beam.ParDo(_Parts(function), *sides).with_output_types(tuple[int, bytes])


def _by_range(placed: Batch, plan: Plan) -> Numbered:
    return by_range(placed, range_bits(plan.num_inputs))


# Consecutive rows of a shard: (range, rows), in this order in the shard.
_Packed = tuple[int, bytes]


def _cut(keyed: tuple[int, Iterable[bytes]], plan: Plan, options: ConvertOptions) -> Iterator[tuple[str, _Packed]]:
    number, packed = keyed
    for shard, batch in cut(number, range_bits(plan.num_inputs), packed, plan, options):
        phases.count_units("planning", batch.num_rows)
        yield shard, (number, zlib.compress(batch.pack(), level=1))


def _write_rows(keyed: tuple[str, Iterable[_Packed]], plan: Plan, options: ConvertOptions) -> str:
    shard, parts = keyed
    batches = (Batch.unpack(zlib.decompress(packed)) for _, packed in sorted(parts))
    WorkingFolder.for_plan(options.output, plan).write_rows(
        shard, (locate_rows(batch, options.sources) for batch in batches)
    )
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
        batches = spread | "Find each" >> beam.Map(find_files, is_list).with_output_types(Batch)
    batches = batches | "Group by key" >> beam.Map(_grouped, options).with_output_types(Batch)
    return keep_groups_together(batches) if is_list and not options.group_by else batches


def _open(part: Part, is_list: bool, options: ConvertOptions) -> Iterator[Any]:
    parts: list[Part] = []

    def batches() -> Iterator[Batch]:
        for item in list_part(part, options):
            if isinstance(item, Part):
                parts.append(item)
            else:
                yield item

    for batch in _batched(batches(), is_list):
        yield from (beam.pvalue.TaggedOutput("parts", item) for item in parts)
        parts.clear()
        yield batch
    yield from (beam.pvalue.TaggedOutput("parts", item) for item in parts)


def _list_below(part: Part, is_list: bool, options: ConvertOptions) -> Iterator[Batch]:
    return _batched(list_below(part, options), is_list)


def _batched(listed: Iterable[Any], is_list: bool) -> Iterator[Batch]:
    for batch in merge_batches(listed, LINE_ROWS if is_list else BATCH_ROWS):
        phases.count_units("listing", batch.num_rows)
        yield batch if is_list else find_files(batch, is_list)


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _grouped(batch: Batch, options: ConvertOptions) -> Batch:
    """Returns rows with their groups by key, and with their positions, which several steps need."""
    return with_positions(split_choice.group_rows(batch, options), options.seed)


def _layout(batches: Batches, options: ConvertOptions) -> PCollection[Layout]:
    """Returns the interpretation of the folders, which depends on all rows; PCollection of one Layout."""
    survey: PCollection[Survey] = batches | "Survey folders" >> CombineInParts(FolderSurvey(options), split_survey)
    layout: PCollection[Layout] = survey | "Read folders" >> beam.Map(read_folders, options)
    return layout


def _labelling(layout: PCollection[Layout], options: ConvertOptions) -> Any:
    return beam.Map(label_rows, AsSingleton(layout), options).with_output_types(Batch)


def _label_and_size(batch: Batch, layout: Layout, ratios: dict[str, float], options: ConvertOptions) -> Batch:
    return size_rows(label_rows(batch, layout, options), ratios, options)


def _compare_inputs(batch: Batch, options: ConvertOptions) -> Iterator[tuple[str, extension.Comparison]]:
    yield from extension.compare_inputs(batch.rows(), options).items()


def _new_inputs(batch: Batch, changes: extension.Changes, options: ConvertOptions) -> Batch:
    return batch.map_rows(extension.new_rows, changes, options)


def _split_and_size(labelled: Batches, options: ConvertOptions, has_groups: bool = False) -> Batches:
    """Returns rows that have labels with splits, if these depend on other rows, and with estimated record sizes.

    With `has_groups`, rows may name groups of their own, which were not kept together before.
    """
    grouped = labelled
    if options.group_by or has_groups:  # a folder of a split names the split of its images, so that groups are after it
        grouped = keep_groups_together(_group_look_alikes(labelled, options))
    divided = _choose_splits(reject_duplicates(grouped, options), options)
    size = beam.Map(size_rows, AsDict(_ratios(divided, options)), options).with_output_types(Batch)
    sized: Batches = divided | "Size" >> size
    return sized


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


def _key_by_group(batch: Batch) -> Numbered:
    grouped, _ = split_choice.divide_grouped(batch.rows())
    return by_hash(grouped, [row.group for row in grouped])


def _in_no_group(batch: Batch) -> Batch:
    return Batch.from_rows(split_choice.divide_grouped(batch.rows())[1])


def _in_one_split(part: tuple[int, Iterable[bytes]]) -> Iterator[Batch]:
    return batches_of(row for keyed in groups_of(part[1]) for row in split_choice.in_one_split(*keyed))


def _choose_splits(batches: Batches, options: ConvertOptions) -> Batches:
    """Returns labeled rows with their splits, if these depend on other rows or are cut out of train."""
    if not split_choice.depends_on_others(options):
        return batches
    counts = (
        batches
        | "Splits of inputs" >> beam.FlatMap(lambda batch: split_choice.count_splits(batch.rows()).items())
        | "Count splits" >> beam.CombinePerKey(sum)  # (split, number of rows)
        | "Splits that inputs name" >> combiners.ToDict()
    )
    ends = (
        batches
        | "Points by class" >> beam.FlatMap(lambda batch: split_choice.points_by_class(batch.rows(), options).items())
        | "Group classes" >> beam.GroupByKey()
        | "Ends of splits" >> beam.Map(_ends, options)
    )
    choose = beam.Map(_choose, AsSingleton(counts), AsDict(ends), options).with_output_types(Batch)
    divided: Batches = batches | "Choose splits" >> choose
    return divided


def _choose(batch: Batch, counts: dict[str, int], ends: dict[Any, list[float]], options: ConvertOptions) -> Batch:
    return batch.map_rows(split_choice.choose_splits, counts, ends, options)


def _ends(
    keyed: tuple[split_choice.SplitClass, Iterable[list[float]]], options: ConvertOptions
) -> tuple[split_choice.SplitClass, list[float]]:
    split_class, points = keyed
    return split_class, split_choice.ends_of_splits(split_class, itertools.chain.from_iterable(points), options)


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
    """Batch → (kind, batch of the first rows in the order of the dataset), for each kind in a bundle."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def start_bundle(self) -> None:
        self._samples = Samples(self._seed)

    def process(self, batch: Batch) -> None:
        self._samples.add(batch)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for kind, rows in self._samples.by_kind().items():
            yield GlobalWindows.windowed_value_at_end_of_window((kind, Batch.from_rows(rows)))


def _measure(keyed: tuple[str, Iterable[Batch]], options: ConvertOptions) -> tuple[str, float]:
    kind, batches = keyed
    rows = first_rows(itertools.chain.from_iterable(batch.rows() for batch in batches), options.seed)
    return kind, measure(rows, options.sources, options.images)


def reject_duplicates(batches: Batches, options: ConvertOptions) -> Batches:
    """Returns rows, with those rejected whose images are to occur once, and do already."""
    if options.dedup == "none":
        return batches
    if options.dedup == "near":
        look_alikes = batches | "Look-alikes to reject" >> FindLookAlikes(options)
        keyed = batches | "Key by look" >> _in_parts(duplicates.key_by_look, AsSingleton(look_alikes))
    else:
        spread = batches | "Spread content" >> beam.Reshuffle()  # or else those who list a folder read it, too
        keyed = spread | "Key by content" >> _in_parts(functools.partial(_key_by_content, options=options))
    remaining: Batches = (
        keyed  # (part, packed)
        | "Group by content" >> beam.GroupByKey()  # (part, [packed])
        | "Keep the first" >> beam.FlatMap(_keep_first, options).with_output_types(Batch)
    )
    return remaining


def _key_by_content(batch: Batch, options: ConvertOptions) -> Numbered:
    phases.count_units("hashing", batch.num_rows)
    return duplicates.key_by_content(batch, options)


def _keep_first(part: tuple[int, Iterable[bytes]], options: ConvertOptions) -> Iterator[Batch]:
    return batches_of(row for _, same in groups_of(part[1]) for row in duplicates.keep_first(same, options))


def _group_look_alikes(batches: Batches, options: ConvertOptions) -> Batches:
    """Returns rows with a group for those that look alike, if options.group_by asks for it."""
    if options.group_by != NEAR_DUPLICATES:
        return batches
    look_alikes = batches | "Look-alikes to group" >> FindLookAlikes(options)
    group = beam.Map(_group_by_look, AsSingleton(look_alikes)).with_output_types(Batch)
    grouped: Batches = batches | "Group look-alikes" >> group
    return grouped


def _group_by_look(batch: Batch, firsts: dict[str, str]) -> Batch:
    return batch.map_rows(duplicates.group_by_look, firsts)


def _pictures(batch: Batch, options: ConvertOptions) -> Iterator[duplicates.LookAlike]:
    phases.count_units("hashing", batch.num_rows)
    yield from duplicates.pictures(batch, options, num_cores())


class FindLookAlikes(beam.PTransform):  # type: ignore[type-arg]
    """Batch → {key: key of the first image of its group} of the images that look like others; PCollection of one dict.

    One process compares all of them, and has 1.2 kB of each in memory.
    """

    def __init__(self, options: ConvertOptions) -> None:
        super().__init__()
        self._options = options

    def expand(self, batches: Batches) -> PCollection[dict[str, str]]:
        look_alikes: PCollection[dict[str, str]] = (
            batches
            | "Spread pictures" >> beam.Reshuffle()
            | "Decode to compare" >> beam.FlatMap(_pictures, self._options).with_output_types(Any)  # LookAlike
            | "All pictures" >> combiners.ToList()
            | "Compare" >> beam.Map(duplicates.first_by_key)
        )
        return look_alikes
