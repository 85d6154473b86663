"""Identical images, found by their bytes before anything is planned.

    Row ──read, sha256──▶ (sha256, Row) ──group──▶ Row: the first in the order of the dataset stays, the others and all
    that occur under two labels are rejected

What stays is one of each content, so no content stands on both sides of a split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.pvalue import PCollection

from beam_pipelines.conversion.plan import in_order
from beam_pipelines.images.check import Rejected
from beam_pipelines.options import ConvertOptions
from beam_pipelines.sources.read_ahead import read_rows
from beam_pipelines.sources.rows import Row, locate

_ROWS_A_BATCH = 1000  # read together, so that many reads are in flight


def reject_duplicates(rows: PCollection[Row], options: ConvertOptions) -> PCollection[Row]:
    """Returns `rows` with a reason for every one whose content occurs elsewhere; Row → Row."""
    kept: PCollection[Row] = (
        rows
        | "Batch to hash" >> beam.BatchElements(_ROWS_A_BATCH, _ROWS_A_BATCH)  # [Row]
        | "Hash content" >> beam.FlatMap(_hash, options).with_output_types(tuple[str, Row])  # (sha256, Row)
        | "Group by content" >> beam.GroupByKey()  # (sha256, [Row])
        | "Keep the first" >> beam.FlatMap(_keep_first, options.seed).with_output_types(Row)  # Row
    )
    return kept


def _hash(rows: list[Row], options: ConvertOptions) -> Iterator[tuple[str, Row]]:
    for row, data in read_rows([locate(row, options) for row in rows]):
        # What cannot be read is left to the writer to reject; its key keeps it apart from all others.
        yield row.key if isinstance(data, Rejected) else hashlib.sha256(data).hexdigest(), row


def _keep_first(keyed: tuple[str, Iterable[Row]], seed: int) -> Iterator[Row]:
    same = sorted(keyed[1], key=lambda row: in_order(row, seed))
    first, labels = same[0], sorted({row.label for row in same})
    for number, row in enumerate(same):
        if row.reason:
            yield row
        elif len(labels) > 1:
            yield row.reject("conflicting_label", f"the same image is labelled {' and '.join(map(repr, labels))}")
        elif number:
            yield row.reject("duplicate", f"the same bytes as {first.key!r}")
        else:
            yield row
