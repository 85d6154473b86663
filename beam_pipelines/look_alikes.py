"""Look-alikes of a dataset, the dangerous ones first: in two splits, or under two labels.

Columns ──near_pairs──▶ pairs of numbers, nearest first ──read those images──▶ alike ──group──▶ LookAlikes
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np

from beam_pipelines import near_duplicates
from beam_pipelines.columns import Columns
from beam_pipelines.examples import Example, read_examples
from beam_pipelines.near_duplicates import Mask, NearPairs, Rows
from beam_pipelines.thumbnails import SAMPLE_SIDE
from tpu_input.schema import Manifest

MAX_READ = 4000  # images whose pixels are compared; at 1 to 2 ms each, some seconds
MAX_GROUPS = 40  # shown
MAX_MEMBERS = 6  # shown of a group
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
      same_bytes: Whether all are the same file.
    """

    examples: list[Example]
    num_images: int
    splits: list[str]
    class_names: list[str]
    same_bytes: bool = False


@dataclasses.dataclass(frozen=True)
class LookAlikes:
    """What was found.

    Attributes:
      groups: The first MAX_GROUPS of look-alikes.
      num_groups: All groups.
      num_images: Images in groups.
      num_across_splits: Groups that stand in more than one split.
      num_conflicting: Groups under more than one label.
      num_near: Pairs of near hashes.
      num_compared: Of these, those whose pixels were compared.
      num_crowded: Images that were not compared with all that they might be near to.
      num_plain: Images that are too plain to compare.
      plain: Some of them.
      num_common: Images whose hash is too common to compare.
      common: The most common hashes, as groups.
    """

    groups: list[Group]
    num_groups: int
    num_images: int
    num_across_splits: int
    num_conflicting: int
    num_near: int
    num_compared: int
    num_crowded: int
    num_plain: int
    plain: list[Example]
    num_common: int
    common: list[Group]


def find_look_alikes(manifest: Manifest, columns: Columns) -> LookAlikes:
    """Returns the look-alikes of a dataset.

    Raises:
      ValueError: An index cannot be read.
    """
    common = near_duplicates.common_hashes(columns.hashes)
    is_common = np.isin(columns.hashes, np.array([value for value, _ in common], np.uint64))
    is_plain = near_duplicates.is_plain(columns.hashes) & ~is_common
    compared = np.flatnonzero(~(is_common | is_plain))
    near = near_duplicates.near_pairs(columns.hashes[compared])
    pairs = _first_pairs(compared[near.pairs], near, columns)
    examples = read_examples(manifest, columns, pairs.ravel().tolist())
    groups = [_group(members, examples) for members in near_duplicates.group(_alike(pairs, examples))]
    groups.sort(key=lambda group: (-_danger(group), len(group.splits) == 1, -group.num_images))
    return LookAlikes(
        groups=groups[:MAX_GROUPS],
        num_groups=len(groups),
        num_images=sum(group.num_images for group in groups),
        num_across_splits=sum(len(group.splits) > 1 for group in groups),
        num_conflicting=sum(len(group.class_names) > 1 for group in groups),
        num_near=sum(near.counts),
        num_compared=len(pairs),
        num_crowded=near.num_crowded,
        num_plain=int(is_plain.sum()),
        plain=_some(manifest, columns, is_plain, MAX_MEMBERS),
        num_common=int(is_common.sum()),
        common=[_common_group(manifest, columns, value, count) for value, count in common[:MAX_COMMON]],
    )


def _first_pairs(pairs: Rows, near: NearPairs, columns: Columns) -> Rows:
    """Returns the nearest pairs, of equally near ones the dangerous first, that MAX_READ images occur in."""
    labels, splits = columns.labels[pairs], columns.split_of(pairs)
    danger = (labels[:, 0] != labels[:, 1]).astype(int) + (splits[:, 0] != splits[:, 1])
    pairs = pairs[np.lexsort((-danger, near.distances))]
    _, first_seen = np.unique(pairs, return_index=True)
    if len(first_seen) <= MAX_READ:
        return pairs
    return pairs[: np.sort(first_seen)[MAX_READ] // 2]


def _alike(pairs: Rows, examples: dict[int, Example]) -> list[tuple[int, int]]:
    """Returns those pairs whose pixels are alike."""
    numbers = np.array(sorted(examples), np.int64)
    samples = np.zeros((len(numbers), SAMPLE_SIDE**2), np.float32)  # what cannot be read is like nothing
    for row, number in enumerate(numbers.tolist()):
        if picture := examples[number].thumbnail:
            samples[row] = picture.sample
    kept = pairs[near_duplicates.alike(samples, np.searchsorted(numbers, pairs))]
    return [(first, second) for first, second in kept.tolist()]


def _group(members: list[int], examples: dict[int, Example]) -> Group:
    all_of_it = [examples[number] for number in members]
    return Group(
        examples=_varied(all_of_it)[:MAX_MEMBERS],
        num_images=len(members),
        splits=sorted({example.split for example in all_of_it}),
        class_names=sorted({example.class_name for example in all_of_it}),
        same_bytes=len({example.sha256 for example in all_of_it}) == 1,
    )


def _varied(examples: list[Example]) -> list[Example]:
    """Returns the examples, one of every split and label before any second."""
    seen = Counter[tuple[str, int]]()
    turns = []
    for example in examples:
        seen[example.split, example.label] += 1
        turns.append(seen[example.split, example.label])
    return [example for _, example in sorted(zip(turns, examples, strict=True), key=lambda pair: pair[0])]


def _danger(group: Group) -> int:
    return (len(group.splits) > 1) + (len(group.class_names) > 1)


def _some(manifest: Manifest, columns: Columns, mask: Mask, count: int) -> list[Example]:
    """Returns a few of the records that `mask` marks, spread over all of them."""
    numbers = np.flatnonzero(mask)
    spread = numbers[np.unique(np.linspace(0, max(len(numbers) - 1, 0), min(count, len(numbers))).astype(int))]
    return list(read_examples(manifest, columns, spread.tolist()).values())


def _common_group(manifest: Manifest, columns: Columns, value: int, count: int) -> Group:
    mask = columns.hashes == np.uint64(value)
    labels, splits = np.unique(columns.labels[mask]), np.unique(columns.split_of(np.flatnonzero(mask)))
    return Group(
        examples=_some(manifest, columns, mask, MAX_SHOWN_OF_COMMON),
        num_images=count,
        splits=[list(manifest.splits)[split] for split in splits],
        class_names=[manifest.classes[label] for label in labels],
    )
