"""Look-alikes of a dataset, the dangerous ones first, which are in several splits or under several labels.

    Columns ──same SHA-256──▶ Contents: all images that are identical
            ──one image of each content──near_pairs──▶ pairs, nearest first ──read those images──▶ alike ──▶ groups

Identical images are found by their SHA-256 without reading images, so all of them are found. Of the other images at
most MAX_READ are read, and the pairs that are not compared for that reason are counted.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from beam_pipelines.images import near_duplicates
from beam_pipelines.images.near_duplicates import Mask, NearPairs, Rows
from beam_pipelines.report.examples import Example, read_examples, read_samples
from beam_pipelines.report.index_columns import Columns
from tpu_input.dataset_format.records import Manifest

MAX_READ = 4000  # images whose pixels are compared; at some 1 ms each, some seconds
MAX_GROUPS = 40  # groups shown with pictures
MAX_MEMBERS = 6  # images shown per group
MAX_LARGE = 2  # of these, images in a large picture, to be compared
MAX_LISTED = 400  # further groups of identical images that are listed by name, without pictures
MAX_LISTED_MEMBERS = 3  # images listed per group
MAX_COMMON = 6  # hashes shown that are too common to compare
MAX_SHOWN_OF_COMMON = 3  # images shown per such hash


@dataclasses.dataclass(frozen=True)
class Group:
    """Images that look alike.

    Attributes:
      examples: Some of the images: first one for each combination of split and label, then others.
      num_images: Number of all images of the group.
      splits: Names of the splits that contain them.
      class_names: Names of the classes that they are labeled with.
      num_identical: Number of images that have the same bytes as another image.
    """

    examples: list[Example]
    num_images: int
    splits: list[str]
    class_names: list[str]
    num_identical: int = 0


class Counts(NamedTuple):
    """Numbers of groups and images.

    Attributes:
      groups: All groups.
      images: Images in these groups.
      across_splits: Groups with images in more than one split.
      conflicting: Groups with images under more than one label.
    """

    groups: int
    images: int
    across_splits: int
    conflicting: int

    def plus(self, other: Counts) -> Counts:
        """Returns the sums of both, field by field."""
        return Counts._make(map(sum, zip(self, other, strict=True)))


@dataclasses.dataclass(frozen=True)
class LookAlikes:
    """Look-alikes of a dataset.

    Attributes:
      groups: The first MAX_GROUPS groups of look-alikes; those with identical images before all others.
      listed: Further groups of identical images, up to MAX_LISTED, without pictures.
      all: All groups, identical images among them.
      identical: The groups of images with the same bytes, also where they are part of a larger group.
      num_near: Pairs of images with near hashes and different bytes.
      num_compared: How many of these pairs had their pixels compared.
      num_crowded: Images whose hash was not compared with all hashes that might be near; these pairs are not counted.
      num_common: Images whose hash is too common to compare.
      common: The most common hashes, as groups.
    """

    groups: list[Group]
    listed: list[Group]
    all: Counts
    identical: Counts
    num_near: int
    num_compared: int
    num_crowded: int
    num_common: int
    common: list[Group]


class Contents:
    """Records grouped by content: sets of records with the same bytes; most hold one record.

    Attributes:
      firsts: [sets] smallest record number of each set, ascending.
      sizes: [sets] number of records of each set.
    """

    def __init__(self, contents: near_duplicates.Hashes) -> None:
        self._order = np.argsort(contents, kind="stable")  # record numbers; a set's are adjacent and ascending
        ordered = contents[self._order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
        sizes = np.diff(starts, append=len(ordered))
        by_first = np.argsort(self._order[starts])
        self._starts, self.sizes = starts[by_first], sizes[by_first]
        self.firsts = self._order[self._starts]

    def records(self, sets: Rows) -> Rows:
        """Returns the numbers of all records of some sets, one set after the other."""
        sizes = self.sizes[sets]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.asarray(self._order[np.repeat(self._starts[sets], sizes) + within])


class _RecordGroup(NamedTuple):
    """A group whose images are not read yet: numbers of its records, and positions of its splits and classes."""

    records: Rows
    splits: Rows
    labels: Rows
    num_identical: int

    def order(self) -> tuple[bool, int, bool, int, int]:
        """Returns the sort key of a group: identical images first, then by danger and size."""
        danger = (len(self.splits) > 1) + (len(self.labels) > 1)
        return not self.num_identical, -danger, len(self.splits) == 1, -len(self.records), int(self.records[0])


def find_look_alikes(manifest: Manifest, columns: Columns) -> LookAlikes:
    """Returns the look-alikes of a dataset.

    Raises:
      ValueError: An index cannot be read.
    """
    contents = Contents(columns.contents)
    common = near_duplicates.common_hashes(columns.hashes[contents.firsts])
    near, numbers = near_duplicates.near_of_all(columns.hashes[contents.firsts], contents.firsts)
    pairs = _first_pairs(numbers[near.pairs], near, columns)
    samples = read_samples(manifest, columns, pairs.ravel().tolist())
    pairs = pairs[np.isin(pairs, list(samples)).all(axis=1)]
    near_firsts = near_duplicates.group(near_duplicates.alike_pairs(pairs, samples, columns.hashes))
    near_sets = [np.searchsorted(contents.firsts, firsts) for firsts in near_firsts]
    repeated = np.flatnonzero(contents.sizes > 1)
    alone = np.setdiff1d(repeated, np.concatenate([repeated[:0], *near_sets]))
    near_groups = [_record_group(sets, contents, columns) for sets in near_sets]
    first_alone = [_record_group(sets, contents, columns) for sets in _dangerous_first(alone, contents, columns)]
    groups = sorted([*near_groups, *first_alone], key=_RecordGroup.order)
    pictured = groups[:MAX_GROUPS]
    listed = [group for group in groups[MAX_GROUPS:] if group.num_identical][:MAX_LISTED]
    return LookAlikes(
        groups=_groups(pictured, MAX_MEMBERS, manifest, columns),
        listed=_groups(listed, MAX_LISTED_MEMBERS, manifest, columns, pictures=False),
        all=_counts(near_groups).plus(_counts_of_sets(alone, contents, columns)),
        identical=_counts_of_sets(repeated, contents, columns),
        num_near=sum(near.counts) + sum(count * (count - 1) // 2 for _, count in common),
        num_compared=len(pairs),
        num_crowded=near.num_crowded,
        num_common=sum(count for _, count in common),
        common=[_common_group(manifest, columns, value) for value, _ in common[:MAX_COMMON]],
    )


class Pair(NamedTuple):
    """Two records that look alike.

    Attributes:
      first: Number of the one record, the smaller one.
      second: Number of the other record.
      distance: Bits in which their perceptual hashes differ; 0 also for records with the same bytes.
      is_identical: Whether their images have the same bytes.
    """

    first: int
    second: int
    distance: int
    is_identical: bool


def all_pairs(manifest: Manifest, columns: Columns) -> Iterator[Pair]:
    """Yields all pairs of records that look alike: the pixels of every near pair are compared, however many there are.

    Of records with the same bytes, each is paired with the first of them, and only the first one with other records.
    Images whose hash more than near_duplicates.MAX_SHARED images share are compared with images of other hashes by one
    of them alone.

    Raises:
      ValueError: An index cannot be read.
    """
    contents = Contents(columns.contents)
    for position in np.flatnonzero(contents.sizes > 1):
        first, *others = contents.records(np.array([position])).tolist()
        yield from (Pair(first, other, 0, True) for other in others)
    near, numbers = near_duplicates.near_of_all(
        columns.hashes[contents.firsts], contents.firsts, near_duplicates.MOST_PAIRS
    )
    pairs = numbers[near.pairs]
    for start in range(0, len(pairs), MAX_READ):
        chunk = pairs[start : start + MAX_READ]
        samples = read_samples(manifest, columns, chunk.ravel().tolist())
        readable = np.isin(chunk, list(samples)).all(axis=1)
        alike_pairs = set(near_duplicates.alike_pairs(chunk[readable], samples, columns.hashes))
        for (first, second), distance in zip(chunk.tolist(), near.distances[start : start + MAX_READ], strict=True):
            if (first, second) in alike_pairs:
                yield Pair(first, second, int(distance), False)


def _first_pairs(pairs: Rows, near: NearPairs, columns: Columns) -> Rows:
    """Returns the pairs among the first MAX_READ images.

    Images are taken from the nearest pairs first, and at equal distance from those across splits and labels first.
    """
    labels, splits = columns.labels[pairs], columns.split_of(pairs)
    danger = (labels[:, 0] != labels[:, 1]).astype(int) + (splits[:, 0] != splits[:, 1])
    pairs = pairs[np.lexsort((-danger, near.distances))]
    images, first_seen = np.unique(pairs, return_index=True)
    first: Rows = images[np.argsort(first_seen)[:MAX_READ]]
    return np.asarray(pairs[np.isin(pairs, first).all(axis=1)])


def _danger(sets: Rows, contents: Contents, columns: Columns) -> tuple[Mask, Mask]:
    """Returns two masks: the sets in more than one split, and the sets under more than one label."""
    if not len(sets):
        return np.zeros(0, bool), np.zeros(0, bool)
    numbers, sizes = contents.records(sets), contents.sizes[sets]
    starts = np.cumsum(sizes) - sizes
    splits, labels = columns.split_of(numbers), columns.labels[numbers]
    across = np.minimum.reduceat(splits, starts) != np.maximum.reduceat(splits, starts)
    conflicting = np.minimum.reduceat(labels, starts) != np.maximum.reduceat(labels, starts)
    return across, conflicting


def _dangerous_first(sets: Rows, contents: Contents, columns: Columns) -> Rows:
    """Returns the sets that are shown or listed, the dangerous first, each as a group of its own; [sets, 1]."""
    across, conflicting = (mask.astype(int) for mask in _danger(sets, contents, columns))
    order = np.lexsort((contents.firsts[sets], -contents.sizes[sets], -across, -(across + conflicting)))
    return np.asarray(sets[order[: MAX_GROUPS + MAX_LISTED]].reshape(-1, 1))


def _record_group(sets: Rows, contents: Contents, columns: Columns) -> _RecordGroup:
    records = contents.records(sets)
    sizes = contents.sizes[sets]
    splits, labels = np.unique(columns.split_of(records)), np.unique(columns.labels[records])
    return _RecordGroup(records, splits, labels, int(sizes[sizes > 1].sum()))


def _counts(groups: list[_RecordGroup]) -> Counts:
    return Counts(
        groups=len(groups),
        images=sum(len(group.records) for group in groups),
        across_splits=sum(len(group.splits) > 1 for group in groups),
        conflicting=sum(len(group.labels) > 1 for group in groups),
    )


def _counts_of_sets(sets: Rows, contents: Contents, columns: Columns) -> Counts:
    across, conflicting = _danger(sets, contents, columns)
    return Counts(len(sets), int(contents.sizes[sets].sum()), int(across.sum()), int(conflicting.sum()))


def _groups(
    groups: list[_RecordGroup], limit: int, manifest: Manifest, columns: Columns, pictures: bool = True
) -> list[Group]:
    """Returns the groups with up to `limit` examples of each; with `pictures`, these have thumbnails."""
    numbers_by_group = [_varied(group.records, columns)[:limit].tolist() for group in groups]
    large = frozenset(number for numbers in numbers_by_group for number in numbers[:MAX_LARGE])
    examples = read_examples(manifest, columns, itertools.chain.from_iterable(numbers_by_group), pictures, large)
    names = list(manifest.splits)
    return [
        Group(
            examples=[examples[number] for number in numbers],
            num_images=len(group.records),
            splits=sorted(names[split] for split in group.splits),
            class_names=sorted(columns.names(label, manifest) for label in group.labels),
            num_identical=group.num_identical,
        )
        for group, numbers in zip(groups, numbers_by_group, strict=True)
    ]


def _varied(records: Rows, columns: Columns) -> Rows:
    """Returns the records, first one for each combination of split and label, then the others."""
    kinds = np.stack([columns.split_of(records), columns.labels[records]])
    first = np.sort(np.unique(kinds, axis=1, return_index=True)[1])
    return np.asarray(records[np.concatenate([first, np.setdiff1d(np.arange(len(records)), first)])])


def _common_group(manifest: Manifest, columns: Columns, value: int) -> Group:
    """Returns the images that share a common hash, with examples that are evenly spread over them."""
    records = np.flatnonzero(columns.hashes == np.uint64(value))
    labels, splits = np.unique(columns.labels[records]), np.unique(columns.split_of(records))
    some_records = records[np.linspace(0, len(records) - 1, MAX_SHOWN_OF_COMMON).astype(int)]
    return Group(
        examples=list(read_examples(manifest, columns, some_records.tolist()).values()),
        num_images=len(records),
        splits=[list(manifest.splits)[split] for split in splits],
        class_names=[columns.names(label, manifest) for label in labels],
    )
