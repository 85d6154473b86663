"""The plan of a conversion: made in this process, in batches, or by a pipeline of Beam that calls the same functions.

    sources ──list──▶ Batch ──survey──▶ Layout ──label, split, size──▶ Batch ──survey──▶ Plan
                      kept packed                                      kept packed ──cut──▶ a file of rows per shard

Steps that depend on all rows keep them packed, in some 60 bytes each, until all folders, all splits, or the plan are
known.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from beam_pipelines import storage
from beam_pipelines.conversion import extension
from beam_pipelines.conversion.plan import Plan, by_range, cut, place_rows, range_bits, with_positions
from beam_pipelines.conversion.planning import duplicates, split_choice
from beam_pipelines.conversion.planning.plan_survey import PlanSurvey, add_remarks
from beam_pipelines.conversion.planning.record_sizes import Samples, measure, size_rows
from beam_pipelines.conversion.planning.row_batches import Numbered, RowStore, by_hash, groups_of, in_parts
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import NEAR_DUPLICATES, WORK_NAME, ConvertOptions
from beam_pipelines.runners import phases
from beam_pipelines.runners.executors import is_much_work, local_executor
from beam_pipelines.sources.folders import FolderSurvey, Layout, label_rows, read_folders
from beam_pipelines.sources.input_kinds import Part
from beam_pipelines.sources.listing import find_files, list_below
from beam_pipelines.sources.row_columns import (
    BATCH_ROWS,
    LINE_ROWS,
    Batch,
    batched,
    batches_of,
    locate_rows,
    merge_batches,
)
from beam_pipelines.sources.rows import Row
from tpu_input.command_line.cores import num_cores

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

Batches = Iterable[Batch]
_Result = TypeVar("_Result")
_ROWS_READ = 64  # rows whose files a thread or process reads at a time


def make_plan(
    options: ConvertOptions, beam_options: PipelineOptions | None = None, num_workers: int | None = None
) -> Plan:
    """Returns the plan of a conversion, with the rows of each shard written to its working folder.

    Args:
      options: Options of the conversion.
      beam_options: The Beam runner that plans, and its options; None to plan in this process, without Beam.
      num_workers: Without beam_options, the maximum number of processes or threads that read files; None means one for
        each core.

    Raises:
      ValueError: The inputs cannot be read as what they are, or have no plan.
    """
    if not beam_options:
        return _plan_here(options, num_workers or num_cores())
    from beam_pipelines.conversion.planning.beam_steps import build_planning
    from beam_pipelines.runners import execution

    path = f"{options.output}/{WORK_NAME}/plan-{uuid.uuid4().hex}.json"
    with execution.pipeline(beam_options) as pipeline:
        build_planning(pipeline, options, path)
    plan = Plan.from_json(storage.read_bytes(path))
    storage.delete([path])
    return plan


def _plan_here(options: ConvertOptions, num_workers: int) -> Plan:
    survey, samples, listed = FolderSurvey(options), Samples(options.seed), RowStore()
    folders = survey.create_accumulator()
    for batch in map(functools.partial(with_positions, seed=options.seed), _listed(options)):
        folders = survey.add_input(folders, batch)
        if not split_choice.depends_on_labels(options):
            samples.add(batch)
        listed.add(batch)
    layout = read_folders(survey.extract_output(folders), options)
    labelled: Batches = (label_rows(batch, layout, options) for batch in listed.drain())
    if options.parent:
        labelled, layout = _changed(RowStore(labelled), layout, options)
    if split_choice.depends_on_labels(options):
        sized = _sized(_split(labelled, options, num_workers), options)
    else:
        sized = _without_duplicates(_with_sizes(labelled, samples, options), options, num_workers)
    return _cut(sized, range_bits(listed.num_rows), layout, options)


def _listed(options: ConvertOptions) -> Iterator[Batch]:
    """Yields a row for every input, with size and version from storage, or rejected."""
    is_list = any(source.is_list for source in options.sources)
    every = itertools.chain.from_iterable(list_below(Part(source), options) for source in options.sources)
    listed = _counted("listing", merge_batches(every, LINE_ROWS if is_list else BATCH_ROWS))
    batches = (split_choice.group_rows(find_files(batch, is_list), options) for batch in listed)
    return _groups_together(batches) if is_list and not options.group_by else batches


def _counted(phase: str, batches: Batches) -> Iterator[Batch]:
    for batch in batches:
        phases.advance(phase, batch.num_rows)
        yield batch


def _changed(labelled: RowStore, layout: Layout, options: ConvertOptions) -> tuple[Batches, Layout]:
    """Returns the inputs that a dataset which is extended does not have, and the layout with what has changed."""
    comparisons = extension.compare_inputs(itertools.chain.from_iterable(batch.rows() for batch in labelled), options)
    changes = extension.find_changes(comparisons, options)
    new = (batch.map_rows(extension.new_rows, changes, options) for batch in labelled.drain())
    return new, extension.tell_changes(layout, changes, options)


def _split(labelled: Batches, options: ConvertOptions, num_workers: int) -> Batches:
    """Returns labeled rows with their splits, if these depend on other rows."""
    batches = labelled
    if options.group_by == NEAR_DUPLICATES:
        store = RowStore(batches)
        firsts = _look_alikes(store, options, num_workers)
        batches = (batch.map_rows(duplicates.group_by_look, firsts) for batch in store.drain())
    if options.group_by:  # after labeling, because the folder of a split gives its images their split
        batches = _groups_together(batches)
    batches = _without_duplicates(batches, options, num_workers)
    if not split_choice.depends_on_others(options):
        return batches
    store, counts, points = RowStore(), Counter[str](), dict[split_choice.SplitClass, list[float]]()
    for batch in batches:
        store.add(batch)
        rows = batch.rows()
        counts.update(split_choice.count_splits(rows))
        for split_class, more in split_choice.points_by_class(rows, options).items():
            points.setdefault(split_class, []).extend(more)
    ends = {
        split_class: split_choice.ends_of_splits(split_class, every, options) for split_class, every in points.items()
    }
    return (batch.map_rows(split_choice.choose_splits, counts, ends, options) for batch in store.drain())


def _sized(batches: Batches, options: ConvertOptions) -> Batches:
    """Returns rows that have labels with estimated record sizes."""
    store, samples = RowStore(), Samples(options.seed)
    for batch in batches:
        placed = with_positions(batch, options.seed)
        samples.add(placed)
        store.add(placed)
    return _with_sizes(store.drain(), samples, options)


def _with_sizes(batches: Batches, samples: Samples, options: ConvertOptions) -> Batches:
    ratios = {name: measure(rows, options.sources, options.images) for name, rows in samples.by_kind().items()}
    return (size_rows(batch, ratios, options) for batch in batches)


def _groups_together(batches: Batches) -> Iterator[Batch]:
    """Yields rows, where all rows of a group have the one split that any of them names."""
    alone = RowStore()

    def key_by_group(batch: Batch) -> Numbered:
        grouped, others = split_choice.divide_grouped(batch.rows())
        alone.add(Batch.from_rows(others))
        return by_hash(grouped, [row.group for row in grouped])

    parts = in_parts(map(key_by_group, batches))
    yield from alone.drain()
    yield from batches_of(row for keyed in _groups(parts) for row in split_choice.in_one_split(*keyed))


def _groups(parts: dict[int, list[bytes]]) -> Iterator[tuple[str, list[Row]]]:
    """Yields (key, its rows) of all keys; a part is removed when its keys are."""
    while parts:
        yield from groups_of(parts.popitem()[1])


def _without_duplicates(batches: Batches, options: ConvertOptions, num_workers: int) -> Batches:
    """Returns the rows; those that --dedup leaves out are rejected."""
    if options.dedup == "none":
        return batches
    if options.dedup == "near":
        store = RowStore(batches)
        firsts = _look_alikes(store, options, num_workers)
        parts = in_parts(duplicates.key_by_look(batch, firsts) for batch in store.drain())
    else:
        parts = in_parts(_read(duplicates.key_by_content, RowStore(batches), options, num_workers))
    return batches_of(row for _, same in _groups(parts) for row in duplicates.keep_first(same, options))


def _look_alikes(store: RowStore, options: ConvertOptions, num_workers: int) -> dict[str, str]:
    images = itertools.chain.from_iterable(_read(duplicates.pictures, store, options, num_workers))
    return duplicates.first_by_key(list(images))


def _read(
    function: Callable[[Batch, ConvertOptions], _Result], store: RowStore, options: ConvertOptions, num_workers: int
) -> Iterator[_Result]:
    """Yields function(batch, options), which reads the files of a batch, in threads or processes of this machine."""
    is_much = is_much_work(store.num_rows, store.num_bytes)
    units = (batch.take(numbers) for batch in store for numbers in batched(range(batch.num_rows), _ROWS_READ))
    with local_executor(num_workers, is_much, duplicates.__name__) as executor:
        for num_rows, result in executor.map_units(functools.partial(_counting, function, options), units):
            phases.advance("hashing", num_rows)
            yield result


def _counting(
    function: Callable[[Batch, ConvertOptions], _Result], options: ConvertOptions, batch: Batch
) -> tuple[int, _Result]:
    return batch.num_rows, function(batch, options)


def _cut(sized: Batches, bits: int, layout: Layout, options: ConvertOptions) -> Plan:
    """Returns the plan of labeled and sized rows; writes the rows of every shard to its working folder."""
    survey = PlanSurvey(options)
    sums = survey.create_accumulator()

    def surveyed(batch: Batch) -> Batch:
        placed = place_rows(batch, options)
        survey.add_input(sums, placed)
        return placed

    ranges = in_parts(by_range(surveyed(batch), bits) for batch in sized)
    plan = add_remarks(survey.extract_output(sums), layout, options)
    folder = WorkingFolder.for_plan(options.output, plan)
    pending: dict[str, tuple[str, list[Batch]]] = {}  # by split: a shard whose rows are not all cut yet, and its rows
    for number in sorted(ranges):
        for shard, batch in cut(number, bits, ranges.pop(number), plan, options):
            phases.advance("planning", batch.num_rows)
            split = shard.partition("-")[0]
            last, batches = pending.get(split, ("", []))
            if last == shard:
                batches.append(locate_rows(batch, options.sources))
                continue
            if last:
                folder.write_rows(last, batches)
            pending[split] = shard, [locate_rows(batch, options.sources)]
    for shard, batches in pending.values():
        folder.write_rows(shard, batches)
    return plan
