"""The plan of a conversion: made in this process, in batches, or by a pipeline of Beam that calls the same functions.

    sources ──list──▶ [Row] ──survey──▶ Layout ──label, split, size──▶ [Row] ──survey──▶ Plan
                      kept packed                                      kept packed ──cut──▶ a file of rows per shard

Where rows depend on all others, those before them are kept, packed, in some 60 bytes each: until all folders are known,
until all splits are, and until the plan is.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from beam_pipelines import storage
from beam_pipelines.conversion import extension
from beam_pipelines.conversion.plan import Placed, Plan, place_rows
from beam_pipelines.conversion.planning import duplicates, split_choice
from beam_pipelines.conversion.planning.cutting import by_range, cut, range_bits
from beam_pipelines.conversion.planning.plan_survey import PlanSurvey, add_remarks
from beam_pipelines.conversion.planning.record_sizes import Samples, measure, size_rows
from beam_pipelines.conversion.planning.row_batches import (
    BATCH_ROWS,
    LINE_ROWS,
    RowStore,
    batched,
    by_hash,
    groups_of,
    in_parts,
)
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import NEAR_DUPLICATES, WORK_NAME, ConvertOptions
from beam_pipelines.runners import phases
from beam_pipelines.sources.folders import FolderSurvey, Layout, label_rows, read_folders
from beam_pipelines.sources.listing import list_rows
from beam_pipelines.sources.rows import Row, find, find_each

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

Batches = Iterable[list[Row]]


def make_plan(options: ConvertOptions, beam_options: PipelineOptions | None = None) -> Plan:
    """Returns the plan of a conversion, with the rows of each shard written to its working folder.

    Args:
      options: Options of the conversion.
      beam_options: The Beam runner that plans, and its options; None to plan in this process, without Beam.

    Raises:
      ValueError: The inputs cannot be read as what they are, or have no plan.
    """
    if not beam_options:
        return _plan_here(options)
    from beam_pipelines.conversion.planning.beam_steps import build_planning
    from beam_pipelines.runners import execution

    path = f"{options.output}/{WORK_NAME}/plan-{uuid.uuid4().hex}.json"
    with execution.pipeline(beam_options) as pipeline:
        build_planning(pipeline, options, path)
    plan = Plan.from_json(storage.read_bytes(path))
    storage.delete([path])
    return plan


def _plan_here(options: ConvertOptions) -> Plan:
    survey, samples, listed = FolderSurvey(options), Samples(options.seed), RowStore()
    folders = survey.create_accumulator()
    for rows in _listed(options):
        folders = survey.add_input(folders, rows)
        if not split_choice.depends_on_labels(options):
            samples.add(rows)
        listed.add(rows)
    layout = read_folders(survey.extract_output(folders), options)
    labelled: Batches = (label_rows(rows, layout, options) for rows in listed.taken())
    if options.parent:
        labelled, layout = _changed(RowStore(labelled), layout, options)
    if split_choice.depends_on_labels(options):
        sized = _sized(_split(labelled, options), options)
    else:
        ratios = {name: measure(rows, options) for name, rows in samples.by_kind().items()}
        sized = _without_duplicates((size_rows(rows, ratios, options) for rows in labelled), options)
    return _cut(sized, range_bits(listed.num_rows), layout, options)


def _listed(options: ConvertOptions) -> Iterator[list[Row]]:
    """Yields a row for every input, with size and version from storage, or rejected."""
    is_list = any(source.is_list for source in options.sources)
    every = itertools.chain.from_iterable(list_rows(source, options) for source in options.sources)
    listed = _counted("listing", batched(every, LINE_ROWS if is_list else BATCH_ROWS))
    # The listing of a folder includes sizes. Each line of a list may need a request of its own.
    found: Batches = ((list(find_each(rows)) if is_list else list(map(find, rows))) for rows in listed)
    found = (split_choice.group_rows(rows, options) for rows in found)
    return _groups_together(found) if is_list and not options.group_by else iter(found)


def _counted(phase: str, batches: Batches) -> Iterator[list[Row]]:
    for rows in batches:
        phases.advance(phase, len(rows))
        yield rows


def _changed(labelled: RowStore, layout: Layout, options: ConvertOptions) -> tuple[Batches, Layout]:
    """Returns the inputs that a dataset which is extended does not have, and the layout with what has changed."""
    seen = extension.seen_inputs(itertools.chain.from_iterable(labelled), options)
    changes = extension.find_changes(seen, options)
    new = ([row for row in rows if extension.is_new(row, changes, options)] for rows in labelled.taken())
    return new, extension.tell_changes(layout, changes, options)


def _split(labelled: Batches, options: ConvertOptions) -> Batches:
    """Returns labeled rows with their splits, if these depend on other rows."""
    rows = labelled
    if options.group_by == NEAR_DUPLICATES:
        kept = RowStore(rows)
        firsts = _look_alikes(kept, options)
        rows = (duplicates.group_by_look(batch, firsts) for batch in kept.taken())
    if options.group_by:  # a folder of a split names the split of its images, so that groups are after it
        rows = _groups_together(rows)
    rows = _without_duplicates(rows, options)
    if not split_choice.depends_on_others(options):
        return rows
    kept, counts, points = RowStore(), Counter[str](), dict[split_choice.SplitClass, list[float]]()
    for batch in rows:
        kept.add(batch)
        counts.update(split_choice.count_splits(batch))
        for split_class, more in split_choice.points_by_class(batch, options).items():
            points.setdefault(split_class, []).extend(more)
    ends = {
        split_class: split_choice.ends_of_splits(split_class, every, options) for split_class, every in points.items()
    }
    return (split_choice.choose_splits(batch, counts, ends, options) for batch in kept.taken())


def _sized(rows: Batches, options: ConvertOptions) -> Batches:
    """Returns rows that have labels with estimated record sizes."""
    kept, samples = RowStore(), Samples(options.seed)
    for batch in rows:
        samples.add(batch)
        kept.add(batch)
    ratios = {name: measure(first, options) for name, first in samples.by_kind().items()}
    return (size_rows(batch, ratios, options) for batch in kept.taken())


def _groups_together(batches: Batches) -> Iterator[list[Row]]:
    """Yields rows, where all rows of a group have the one split that any of them names."""
    alone = RowStore()

    def of_groups(rows: list[Row]) -> Iterator[tuple[str, Row]]:
        alone.add([row for row in rows if not split_choice.is_grouped(row)])
        return ((row.group, row) for row in rows if split_choice.is_grouped(row))

    parts = in_parts(by_hash(of_groups(rows)) for rows in batches)
    yield from alone.taken()
    yield from batched(row for keyed in _groups(parts) for row in split_choice.in_one_split(*keyed))


def _groups(parts: dict[int, list[bytes]]) -> Iterator[tuple[str, list[Row]]]:
    """Yields (key, its rows) of all keys; a part is removed when its keys are."""
    while parts:
        yield from groups_of(parts.popitem()[1])


def _without_duplicates(rows: Batches, options: ConvertOptions) -> Batches:
    """Returns rows, with those rejected whose images are to occur once, and do already."""
    if options.dedup == "none":
        return rows
    if options.dedup == "near":
        kept = RowStore(rows)
        firsts = _look_alikes(kept, options)
        parts = in_parts(by_hash(duplicates.key_by_look(batch, firsts)) for batch in kept.taken())
    else:
        parts = in_parts(by_hash(duplicates.key_by_content(batch, options)) for batch in rows)
    return batched(row for _, same in _groups(parts) for row in duplicates.keep_first(same, options))


def _look_alikes(rows: Batches, options: ConvertOptions) -> dict[str, str]:
    return duplicates.first_by_key([image for batch in rows for image in duplicates.pictures(batch, options)])


def _cut(sized: Batches, bits: int, layout: Layout, options: ConvertOptions) -> Plan:
    """Returns the plan of labeled and sized rows; writes the rows of every shard to its working folder."""
    survey = PlanSurvey(options)
    sums = survey.create_accumulator()

    def surveyed(rows: list[Row]) -> list[Placed]:
        placed = place_rows(rows, options)
        survey.add_input(sums, placed)
        return placed

    ranges = in_parts(by_range(surveyed(rows), bits) for rows in sized)
    plan = add_remarks(survey.extract_output(sums), layout, options)
    folder = WorkingFolder.of(options.output, plan)
    begun: dict[str, tuple[str, list[Row]]] = {}  # by split: a shard whose rows are not all cut yet, and its rows
    for number in sorted(ranges):
        count = 0
        for shard, row in cut(number, bits, ranges.pop(number), plan, options):
            count += 1
            split = shard.partition("-")[0]
            last, rows = begun.get(split, ("", []))
            if last == shard:
                rows.append(row)
                continue
            if last:
                folder.write_rows(last, rows)
            begun[split] = shard, [row]
        phases.advance("planning", count)
    for shard, rows in begun.values():
        folder.write_rows(shard, rows)
    return plan
