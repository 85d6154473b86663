"""Inputs of one group stay in one split, also where a list names splits for some of them only.

    Row ──key by group──▶ (group, [Row]) ──the split that they name──▶ Row with that split, or rejected if there are two

Otherwise images of one patient, or frames of one film, would be learned from and tested on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.pvalue import PCollection

from beam_pipelines.sources.rows import Row
from tpu_input.dataset_format.records import valid_split


def keep_groups_together(rows: PCollection[Row]) -> PCollection[Row]:
    """Returns `rows`, those of a group with the split that any of them names; Row → Row.

    Of a group that names none, nothing changes: plan.choose_split() chooses by the group.
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
    # What is called as no split is, is rejected for that.
    return bool(row.group) and not row.reason and (not row.split or valid_split(row.split))


def _in_one_split(keyed: tuple[str, Iterable[Row]]) -> Iterator[Row]:
    group, rows = keyed
    splits = sorted({row.split for row in rows} - {""})
    for row in rows:
        if len(splits) > 1:
            yield row.reject("conflicting_split", f"group {group!r} is in {' and '.join(map(repr, splits))}")
        else:
            yield row._replace(split=splits[0]) if splits else row
