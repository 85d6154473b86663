"""Splits that depend on other rows: of a group, of a class (--stratify), and what is cut out of train.

All other splits are chosen by plan.choose_split(), of each row alone.

Rows that name a group are grouped first, and all rows of a group get the one split that any of them names; a group
that names two splits is rejected. Otherwise images of one patient, or frames of one film, could be in both training
and test.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from beam_pipelines.conversion.plan import split_at, split_point
from beam_pipelines.options import ConvertOptions
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import Row
from tpu_input.dataset_format.records import valid_split

SplitClass = tuple[str, str]  # split that an input names, label


def group_rows(batch: Batch, options: ConvertOptions) -> Batch:
    """Returns rows with the group that a regular expression in `group_by` finds in their keys."""
    if not options.groups_by_key:
        return batch
    return batch.map_rows(lambda rows: [_group(row, options.group_by) for row in rows])


def _group(row: Row, pattern: str) -> Row:
    match = None if row.group else re.search(pattern, row.key)
    return row._replace(group=match[match.re.groups] or "") if match else row


def divide_grouped(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Returns the rows on whose splits in_one_split() decides, and the others."""
    grouped, others = list[Row](), list[Row]()
    for row in rows:
        # Rows with an invalid split name are left out: they are rejected for the name.
        is_grouped = row.group and not row.reason and (not row.split or valid_split(row.split))
        (grouped if is_grouped else others).append(row)
    return grouped, others


def in_one_split(group: str, rows: Iterable[Row]) -> Iterator[Row]:
    """Yields the rows of a group with the one split that any of them names; with several, they are rejected.

    Rows of a group that names no split are unchanged: plan.choose_split() hashes the group.
    """
    rows = list(rows)
    splits = sorted({row.split for row in rows} - {""})
    for row in rows:
        if len(splits) > 1:
            yield row.reject("conflicting_split", f"group {group!r} is in {' and '.join(map(repr, splits))}")
        else:
            yield row._replace(split=splits[0]) if splits else row


def depends_on_others(options: ConvertOptions) -> bool:
    """Returns whether choose_splits() has anything to choose."""
    return bool(options.stratify or options.validation)


def depends_on_labels(options: ConvertOptions) -> bool:
    """Returns whether labels must be known before sizes are estimated, as splits depend on the labels of other rows."""
    return bool(options.parent or depends_on_others(options) or options.group_by or options.dedup == "near")


def count_splits(rows: Iterable[Row]) -> Counter[str]:
    """Returns the number of rows that are not rejected by the split that they name."""
    return Counter(row.split for row in rows if not row.reason)


def points_by_class(rows: Iterable[Row], options: ConvertOptions) -> dict[SplitClass, list[float]]:
    """Returns the points by which the splits of rows are chosen, for each class, if its splits have equal shares."""
    points: dict[SplitClass, list[float]] = {}
    for row in rows if options.stratify else ():
        if not row.group and _shares(row, options):
            points.setdefault((row.split, row.label), []).append(split_point(row, options.seed))
    return points


def ends_of_splits(split_class: SplitClass, points: Iterable[float], options: ConvertOptions) -> list[float]:
    """Returns the points at which the splits of a class end, so that each has its share of these points."""
    ordered = np.sort(np.fromiter(points, np.float64))
    shares = _shares(Row("", label=split_class[1], split=split_class[0]), options)
    counts = [round(len(ordered) * total) for total in itertools.accumulate(share for _, share in shares)]
    return [float(ordered[count]) if count < len(ordered) else 1.0 for count in counts[:-1]]


def choose_splits(
    rows: list[Row], counts: Mapping[str, int], ends: Mapping[SplitClass, list[float]], options: ConvertOptions
) -> list[Row]:
    """Returns labeled rows with their splits, if these depend on other rows or are cut out of train.

    Args:
      rows: Some rows.
      counts: Result of count_splits() for all rows.
      ends: Results of ends_of_splits() for the classes of all rows.
      options: Options of the conversion.

    Raises:
      ValueError: No row has a split that is to be chosen.
    """
    # New inputs of a dataset that is extended need not be of train, which the dataset has.
    has_train = bool(counts.get("train") or options.parent)
    if options.validation and ("validation" in counts or not has_train):
        names = ", ".join(repr(name) for name in sorted(counts) if name)
        raise ValueError(
            "--validation is the share of the split 'train' that becomes 'validation', but the inputs "
            + (
                f"name the splits {names}; it needs 'train' without 'validation'"
                if names
                else "name no splits; divide them with --splits, for example --splits=train=90%,validation=10%"
            )
        )
    if options.stratify and not options.validation and "" not in counts and counts:
        raise ValueError("every input already specifies its split, so --stratify would have no effect; leave it out")
    return [_choose(row, ends, options) for row in rows]


def _choose(row: Row, ends: Mapping[SplitClass, list[float]], options: ConvertOptions) -> Row:
    shares = _shares(row, options)
    if not shares:
        return row
    point, class_ends = split_point(row, options.seed), ends.get((row.split, row.label))
    if row.group or class_ends is None:
        return row._replace(split=split_at(point, shares))
    return row._replace(split=shares[bisect.bisect_right(class_ends, point)][0])


def _shares(row: Row, options: ConvertOptions) -> tuple[tuple[str, float], ...]:
    """Returns the shares by which the split of a row is chosen; () if it names its split, or is rejected."""
    if row.reason:
        return ()
    if not row.split:
        return options.splits
    if row.split != "train" or not options.validation:
        return ()
    return ("train", 1 - options.validation), ("validation", options.validation)
