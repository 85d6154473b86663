"""Look-alikes of a dataset, the dangerous ones first: in two splits, or under two labels.

    Columns ──same SHA-256──▶ Contents: all images that are identical
            ──one image of each content──near_pairs──▶ pairs, nearest first ──read those images──▶ alike ──▶ groups

Identical images need no reading, so all of them are found. Of the others at most MAX_READ are read, and the pairs that
are not compared for that reason are counted.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from beam_pipelines.report import near_duplicates
from beam_pipelines.report.examples import Example, read_examples
from beam_pipelines.report.index_columns import Columns
from beam_pipelines.report.near_duplicates import Mask, NearPairs, Rows
from beam_pipelines.report.thumbnails import SAMPLE_SIDE
from tpu_input.dataset_format.records import Manifest

MAX_READ = 4000  # images whose pixels are compared; at 1 to 2 ms each, some seconds
MAX_GROUPS = 40  # shown with pictures
MAX_MEMBERS = 6  # shown of a group
MAX_LISTED = 400  # groups of identical images that are listed by name beyond those shown
MAX_LISTED_MEMBERS = 3  # of each
MAX_COMMON = 6  # hashes shown that are too common to compare
MAX_SHOWN_OF_COMMON = 3


@dataclasses.dataclass(frozen=True)
class Group:
    """Images that look alike.

    Attributes:
      examples: Some of them, of every split and label one before any second.
      num_images: All of them.
      splits: Names of the splits that they stand in.
      class_names: Classes under which they stand.
      num_identical: Those of them of which there is another with the same bytes.
    """

    examples: list[Example]
    num_images: int
    splits: list[str]
    class_names: list[str]
    num_identical: int = 0


class Counts(NamedTuple):
    """How many groups there are.

    Attributes:
      groups: All.
      images: In them.
      across_splits: Groups that stand in more than one split.
      conflicting: Groups under more than one label.
    """

    groups: int
    images: int
    across_splits: int
    conflicting: int

    def plus(self, other: Counts) -> Counts:
        """Returns the sums."""
        return Counts._make(map(sum, zip(self, other, strict=True)))


@dataclasses.dataclass(frozen=True)
class LookAlikes:
    """What was found.

    Attributes:
      groups: The first MAX_GROUPS of look-alikes; those with identical images before all others.
      listed: Further groups of identical images, up to MAX_LISTED, without pictures.
      all: All groups, identical images among them.
      identical: The groups of images with the same bytes, also where they are part of a larger group.
      num_near: Pairs of images with near hashes and different bytes.
      num_compared: Of these, those whose pixels were compared.
      num_crowded: Images that were not compared with all that they might be near to, in pairs that nobody counted.
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
    """The records by what they hold: sets of records with the same bytes, most of them sets of one.

    Attributes:
      firsts: [sets] the smallest number of a record of each set, ascending.
      sizes: [sets] records.
    """

    def __init__(self, contents: near_duplicates.Hashes) -> None:
        self._order = np.argsort(contents, kind="stable")  # numbers, those of a set side by side and ascending
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

    def set_of(self, firsts: Rows) -> Rows:
        """Returns the position of the sets that begin with these records."""
        return np.searchsorted(self.firsts, firsts)


class _Found(NamedTuple):
    """A group whose images are not read yet: its records, and the positions of its splits and classes."""

    records: Rows
    splits: Rows
    labels: Rows
    num_identical: int

    def order(self) -> tuple[bool, int, bool, int, int]:
        """Returns what groups are sorted by: identical images first, then by danger and size."""
        danger = (len(self.splits) > 1) + (len(self.labels) > 1)
        return not self.num_identical, -danger, len(self.splits) == 1, -len(self.records), int(self.records[0])


def find_look_alikes(manifest: Manifest, columns: Columns) -> LookAlikes:
    """Returns the look-alikes of a dataset.

    Raises:
      ValueError: An index cannot be read.
    """
    contents = Contents(columns.contents)
    common = near_duplicates.common_hashes(columns.hashes[contents.firsts])
    near, numbers = _near_pairs(columns.hashes[contents.firsts], contents.firsts)
    pairs = _first_pairs(numbers[near.pairs], near, columns)
    examples = read_examples(manifest, columns, pairs.ravel().tolist())
    pairs = pairs[np.array([all(examples[number].thumbnail for number in pair) for pair in pairs.tolist()], bool)]
    near_sets = [contents.set_of(np.array(each)) for each in near_duplicates.group(_alike(pairs, examples, columns))]
    repeated = np.flatnonzero(contents.sizes > 1)
    alone = np.setdiff1d(repeated, np.concatenate([repeated[:0], *near_sets]))
    near_groups = [_found(sets, contents, columns) for sets in near_sets]
    first_alone = [_found(sets, contents, columns) for sets in _dangerous_first(alone, contents, columns)]
    found = sorted([*near_groups, *first_alone], key=_Found.order)
    shown = found[:MAX_GROUPS]
    listed = [group for group in found[MAX_GROUPS:] if group.num_identical][:MAX_LISTED]
    return LookAlikes(
        groups=_groups(shown, MAX_MEMBERS, manifest, columns, examples),
        listed=_groups(listed, MAX_LISTED_MEMBERS, manifest, columns, None),
        all=_counts(near_groups).plus(_counts_of_sets(alone, contents, columns)),
        identical=_counts_of_sets(repeated, contents, columns),
        num_near=sum(near.counts) + sum(count * (count - 1) // 2 for _, count in common),
        num_compared=len(pairs),
        num_crowded=near.num_crowded,
        num_common=sum(count for _, count in common),
        common=[_common_group(manifest, columns, value) for value, _ in common[:MAX_COMMON]],
    )


def _near_pairs(hashes: near_duplicates.Hashes, numbers: Rows) -> tuple[NearPairs, Rows]:
    """Returns the pairs of near hashes, and the numbers of the records that their positions stand for.

    Args:
      hashes: One of each content.
      numbers: Of the records that they are of.
    """
    values, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    is_common = counts > near_duplicates.MAX_SHARED
    kept = np.flatnonzero(~np.isin(hashes, values[is_common]))
    positions = np.concatenate([kept, first[is_common]])  # one of those that share a hash stands for all of them
    images = np.concatenate([np.ones(len(kept), np.int64), counts[is_common]])
    return near_duplicates.near_pairs(hashes[positions], images=images), numbers[positions]


def _first_pairs(pairs: Rows, near: NearPairs, columns: Columns) -> Rows:
    """Returns the pairs of the MAX_READ images that come first: in the nearest pairs, of those in the dangerous."""
    labels, splits = columns.labels[pairs], columns.split_of(pairs)
    danger = (labels[:, 0] != labels[:, 1]).astype(int) + (splits[:, 0] != splits[:, 1])
    pairs = pairs[np.lexsort((-danger, near.distances))]
    images, first_seen = np.unique(pairs, return_index=True)
    first: Rows = images[np.argsort(first_seen)[:MAX_READ]]
    return np.asarray(pairs[np.isin(pairs, first).all(axis=1)])


def _alike(pairs: Rows, examples: dict[int, Example], columns: Columns) -> list[tuple[int, int]]:
    """Returns those pairs whose pixels are alike."""
    numbers = np.unique(pairs)
    samples = np.zeros((len(numbers), SAMPLE_SIDE**2), np.float32)
    for row, number in enumerate(numbers.tolist()):
        picture = examples[number].thumbnail
        assert picture is not None  # of what cannot be read there are no pairs any more
        samples[row] = picture.sample
    plain = near_duplicates.is_plain(columns.hashes[pairs.ravel()]).reshape(-1, 2).any(axis=1)
    kept = pairs[near_duplicates.alike(samples, np.searchsorted(numbers, pairs), plain)]
    return [(first, second) for first, second in kept.tolist()]


def _danger(sets: Rows, contents: Contents, columns: Columns) -> tuple[Mask, Mask]:
    """Returns which sets stand in more than one split, and which under more than one label."""
    if not len(sets):
        return np.zeros(0, bool), np.zeros(0, bool)
    numbers, sizes = contents.records(sets), contents.sizes[sets]
    starts = np.cumsum(sizes) - sizes
    splits, labels = columns.split_of(numbers), columns.labels[numbers]
    across = np.minimum.reduceat(splits, starts) != np.maximum.reduceat(splits, starts)
    conflicting = np.minimum.reduceat(labels, starts) != np.maximum.reduceat(labels, starts)
    return across, conflicting


def _dangerous_first(sets: Rows, contents: Contents, columns: Columns) -> Rows:
    """Returns the sets that are shown or listed, each by itself; [sets, 1]."""
    across, conflicting = (each.astype(int) for each in _danger(sets, contents, columns))
    order = np.lexsort((contents.firsts[sets], -contents.sizes[sets], -across, -(across + conflicting)))
    return np.asarray(sets[order[: MAX_GROUPS + MAX_LISTED]].reshape(-1, 1))


def _found(sets: Rows, contents: Contents, columns: Columns) -> _Found:
    records = contents.records(sets)
    sizes = contents.sizes[sets]
    splits, labels = np.unique(columns.split_of(records)), np.unique(columns.labels[records])
    return _Found(records, splits, labels, int(sizes[sizes > 1].sum()))


def _counts(groups: list[_Found]) -> Counts:
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
    found: list[_Found], limit: int, manifest: Manifest, columns: Columns, pictured: dict[int, Example] | None
) -> list[Group]:
    """Returns the groups with up to `limit` examples of each.

    Args:
      found: The groups.
      limit: Examples of each.
      manifest: The dataset's.
      columns: The dataset's.
      pictured: Examples that are read already; None if pictures are not wanted.
    """
    chosen = [_varied(group.records, columns)[:limit].tolist() for group in found]
    known = pictured or {}
    missing = {number for numbers in chosen for number in numbers} - known.keys()
    examples = known | read_examples(manifest, columns, missing, pictures=pictured is not None)
    names = list(manifest.splits)
    return [
        Group(
            examples=[examples[number] for number in numbers],
            num_images=len(group.records),
            splits=sorted(names[split] for split in group.splits),
            class_names=sorted(manifest.classes[label] for label in group.labels),
            num_identical=group.num_identical,
        )
        for group, numbers in zip(found, chosen, strict=True)
    ]


def _varied(records: Rows, columns: Columns) -> Rows:
    """Returns the records, one of every split and label before all others."""
    kinds = np.stack([columns.split_of(records), columns.labels[records]])
    first = np.sort(np.unique(kinds, axis=1, return_index=True)[1])
    return np.asarray(records[np.concatenate([first, np.setdiff1d(np.arange(len(records)), first)])])


def _some(manifest: Manifest, columns: Columns, mask: Mask, count: int) -> list[Example]:
    """Returns a few of the records that `mask` marks, spread over all of them."""
    numbers = np.flatnonzero(mask)
    spread = numbers[np.unique(np.linspace(0, max(len(numbers) - 1, 0), min(count, len(numbers))).astype(int))]
    return list(read_examples(manifest, columns, spread.tolist()).values())


def _common_group(manifest: Manifest, columns: Columns, value: int) -> Group:
    mask = columns.hashes == np.uint64(value)
    labels, splits = np.unique(columns.labels[mask]), np.unique(columns.split_of(np.flatnonzero(mask)))
    return Group(
        examples=_some(manifest, columns, mask, MAX_SHOWN_OF_COMMON),
        num_images=int(mask.sum()),
        splits=[list(manifest.splits)[split] for split in splits],
        class_names=[manifest.classes[label] for label in labels],
    )
