"""Extension of a dataset: a conversion of the inputs that it does not have yet, whose shards are added to its own.

    indexes ──▶ keys that the dataset has ──inputs without them──▶ plan ──▶ shards of an edition of their own
    manifest.json ──▶ manifest-N.json, the old version; and the shards of both ──▶ manifest.json

A file has changed if it has another size. One of the same size that was written after its image was stored is read, and
its image is compared with the stored one. Members of archives and records are compared by their sizes alone, and URLs,
which are not read again, not at all.

With --prune, images that are not among the inputs any more, or whose files have changed, are left out first: the shards
that have any are written again without them, which is a version of its own between the old and the new one.

The files of the dataset stay as they are, so a reader of the old manifest is not disturbed, and the old version can be
read later. Inputs that were rejected are tried again. The keys that the dataset has are held in memory by each process
that lists inputs, some 210 bytes for each with keys of 30 characters.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from beam_pipelines import storage
from beam_pipelines.conversion import working_folder
from beam_pipelines.conversion.option_flags import flags_of, inputs_of
from beam_pipelines.conversion.output_folder import complete_manifest, create, index_content, write_manifest
from beam_pipelines.conversion.plan import choose_split
from beam_pipelines.conversion.receipts import Rejection
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import NEAR_DUPLICATES, ConvertOptions, complete
from beam_pipelines.runners.executors import map_in_threads
from beam_pipelines.sources.folders import Layout
from beam_pipelines.sources.naming import in_class_order
from beam_pipelines.sources.read_ahead import map_images
from beam_pipelines.sources.rows import Row, locate
from beam_pipelines.sources.url_names import is_url
from tpu_input.command_line import print_line
from tpu_input.dataset_format.class_names import canonical
from tpu_input.dataset_format.index import IndexRow, as_labels, index_path, read_columns, read_index, write_index
from tpu_input.dataset_format.label_kinds import Label, stored_kind
from tpu_input.dataset_format.manifest import merged as merged_splits
from tpu_input.dataset_format.records import (
    MANIFEST_NAME,
    Manifest,
    Shard,
    Split,
    decode,
    frame,
    manifest_name,
    read_frames,
    shard_name,
)
from tpu_input.stored_images.check import Rejected, check_image

_AT_ONCE = 8  # shards that are read and written again at the same time


def begin(options: ConvertOptions) -> ConvertOptions:
    """Returns the options with which the dataset at options.output is extended.

    Raises:
      ValueError: There is no complete dataset, or it was made with other options or of other inputs.
    """
    manifest = complete_manifest(options.output)
    if options.dedup != "none":
        raise ValueError("--extend does not compare new images with old ones, so --dedup must be none; merge does")
    if options.group_by == NEAR_DUPLICATES:
        raise ValueError(
            "--extend does not compare new images with old ones, so they cannot be kept in the same split; convert all "
            "images again"
        )
    current, earlier = complete(options.shaping()), complete(manifest.options)
    if current != earlier:
        flags, earlier_flags = dict(flags_of(current)), dict(flags_of(earlier))
        name = next(
            (name for name in sorted({*flags, *earlier_flags}) if flags.get(name) != earlier_flags.get(name)),
            "other options",
        )
        then = f"with {name}={earlier_flags[name]}" if name in earlier_flags else f"without {name}"
        now = f"not {name}={flags[name]}" if name in flags else f"not without {name}"
        raise ValueError(f"{options.output!r} was made {then}, {now}; extend it with the options that it was made with")
    fields = [source.fields() for source in options.sources]
    if fields != manifest.sources:
        raise ValueError(
            f"{options.output!r} was made with {inputs_of(manifest.sources)}, not {inputs_of(fields)}; "
            "extend it with the inputs that it was made of, or choose another output"
        )
    finished = WorkingFolder(options.output, manifest.fingerprint[:16])
    if finished in working_folder.unfinished(options.output):  # an extension that ended before it had removed them
        working_folder.remove_one(finished)
    # New shards have --shard_size, also where the dataset was cut into a number of shards.
    return dataclasses.replace(options, parent=manifest.fingerprint, num_shards=())


def parent_of(output: str, fingerprint: str) -> Manifest:
    """Returns the manifest of the dataset that is extended.

    Raises:
      ValueError: There is another one by now.
    """
    manifest = complete_manifest(output)
    if manifest.fingerprint != fingerprint:
        raise ValueError(f"{output!r} was changed in the meantime; run the command again")
    return manifest


class _KnownImage(NamedTuple):
    """An image that the dataset has: the size of its source, None if not known, its shard's number, label, features."""

    num_bytes: int | None
    shard: int
    label: Label
    features: str


class _Parent:
    """What is known of the images of a dataset that is extended; read once in a process."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest, self._kind = manifest, manifest.label_kind
        self._shards = manifest.shards
        self._splits = [name for name, split in manifest.splits.items() for _ in split.shards]
        self.images = dict[str, _KnownImage]()
        for number, shard in enumerate(self._shards):
            table = _columns(manifest, shard, ["key", "source_bytes", "label", "features"])
            sizes, features = table["source_bytes"].to_pylist(), table["features"].to_pylist()
            columns = table["key"].to_pylist(), sizes, as_labels(table.column(2)), features
            for key, num_bytes, label, text in zip(*columns, strict=True):
                if not self._kind.are_classes(label, len(manifest.classes)):
                    raise _unusable(manifest, shard, "it has labels that are not classes of the manifest")
                self.images[key] = _KnownImage(num_bytes, number, label, text or "")
        self.written_at = functools.cache(self._written_at)
        self.digests = functools.lru_cache(maxsize=16)(self._digests)

    def names(self, image: _KnownImage) -> tuple[str, ...]:
        """Returns the names of the classes of an image, in canonical form, sorted."""
        return tuple(sorted(canonical(self._manifest.classes[index]) for index in self._kind.indices(image.label)))

    def split(self, image: _KnownImage) -> str:
        """Returns the split of an image."""
        return self._splits[image.shard]

    def _written_at(self, shard: int) -> float:
        """Returns when the index of a shard was written."""
        return storage.written_at(f"{self._manifest.path}/{index_path(self._shards[shard].name)}")

    def _digests(self, shard: int) -> dict[str, str]:
        """Returns the SHA-256 of the images of a shard by key."""
        table = _columns(self._manifest, self._shards[shard], ["key", "sha256"])
        return dict(zip(table["key"].to_pylist(), table["sha256"].to_pylist(), strict=True))


@functools.lru_cache(maxsize=1)
def _read_parent(output: str, fingerprint: str) -> _Parent:
    return _Parent(parent_of(output, fingerprint))


def known_images(options: ConvertOptions) -> Mapping[str, _KnownImage]:
    """Returns what is known of the images of the dataset that is extended by key."""
    return _read_parent(options.output, options.parent).images


def _columns(manifest: Manifest, shard: Shard, names: list[str]) -> pa.Table:
    path = f"{manifest.path}/{index_path(shard.name)}"
    try:
        return read_columns(index_content(path), shard.num_examples, names)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unusable(manifest, shard, str(error)) from error


def _unusable(manifest: Manifest, shard: Shard, why: str) -> ValueError:
    return ValueError(
        f"{f'{manifest.path}/{index_path(shard.name)}'!r} cannot be read: {why}; repair the dataset with: jpeg2tpu "
        f"verify --repair {manifest.path}"
    )


class Changes(NamedTuple):
    """Keys of a dataset that is extended which are not inputs any more, and the ones whose inputs have changed.

    Attributes:
      removed: No inputs any more.
      changed: Those whose files have changed.
      relabelled: Those whose inputs have another label now.
      moved: Those whose inputs name another split now.
      described: Those whose inputs have other features now.
    """

    removed: frozenset[str]
    changed: frozenset[str]
    relabelled: frozenset[str]
    moved: frozenset[str]
    described: frozenset[str]

    @property
    def replaced(self) -> frozenset[str]:
        """Keys of all images whose inputs have changed."""
        return self.changed | self.relabelled | self.moved | self.described


class Comparison(NamedTuple):
    """Inputs of an image that the dataset has.

    Attributes:
      same_file: Whether one of their files is still the image's.
      number: The smallest Row.number; its row has label, split and features.
      same_label: Whether the label is still the image's.
      same_split: Whether the split is.
      same_features: Whether the features are.
    """

    same_file: bool
    number: int
    same_label: bool
    same_split: bool
    same_features: bool


def compare_inputs(rows: Iterable[Row], options: ConvertOptions) -> dict[str, Comparison]:
    """Compares labeled inputs with the dataset's images of the same keys; returns results by key."""
    parent, comparisons = _read_parent(options.output, options.parent), dict[str, Comparison]()
    for row in rows:
        known_image = parent.images.get(row.key)
        if known_image and not row.reason:
            same_size = known_image.num_bytes in (None, row.num_bytes) or is_url(row.uri)
            same_file = same_size and not _has_other_content(row, known_image, options)
            same_label = tuple(sorted(options.label_kind.names(row.label))) == parent.names(known_image)
            same_features = row.features == known_image.features
            comparison = Comparison(
                same_file, row.number, same_label, _is_in(row, parent.split(known_image), options), same_features
            )
            comparisons[row.key] = (
                merge_comparisons([comparisons[row.key], comparison]) if row.key in comparisons else comparison
            )
    return comparisons


def _is_in(row: Row, split: str, options: ConvertOptions) -> bool:
    """Returns whether an input may be in a split: the one that it names, or one that is chosen for it."""
    if options.validation and row.split == "train":
        return split in ("train", "validation")
    if not row.split and (options.stratify or options.group_by):
        return True  # depends on other rows
    return split == choose_split(row, options)


def merge_comparisons(comparisons: Iterable[Comparison]) -> Comparison:
    """Returns what is seen of an image in several of its inputs: a member of an archive may be there several times."""
    every = list(comparisons)
    return min(every, key=lambda comparison: comparison.number)._replace(
        same_file=any(comparison.same_file for comparison in every)
    )


def _has_other_content(row: Row, known_image: _KnownImage, options: ConvertOptions) -> bool:
    """Returns whether a file was written after its image was stored, and would be stored as other bytes now."""
    row, parent = locate(row, options.sources), _read_parent(options.output, options.parent)
    if is_url(row.uri) or storage.byte_range(row.uri):
        return False
    if storage.written_at(row.uri, row.version, or_copied=True) < parent.written_at(known_image.shard):
        return False
    ((_, image),) = map_images([row], lambda _, data: check_image(data, options.images, with_statistics=False), 1)
    if isinstance(image, Rejected):
        return True
    return hashlib.sha256(image.encoded).hexdigest() != parent.digests(known_image.shard)[row.key]


def find_changes(comparisons: Mapping[str, Comparison], options: ConvertOptions) -> Changes:
    """Returns what has changed about the inputs of the images that the dataset has, given what is seen of them all.

    Raises:
      ValueError: With options.prune, if nothing of the dataset would be left.
    """
    changes = Changes(
        frozenset(known_images(options).keys() - comparisons.keys()),
        frozenset(key for key, comparison in comparisons.items() if not comparison.same_file),
        frozenset(key for key, comparison in comparisons.items() if not comparison.same_label),
        frozenset(key for key, comparison in comparisons.items() if not comparison.same_split),
        frozenset(key for key, comparison in comparisons.items() if not comparison.same_features),
    )
    if options.prune and not len(changes.removed) + len(changes.replaced) < len(known_images(options)):
        raise ValueError(
            f"no image of {options.output!r} is an input as it was, so --prune would leave out all of them; correct "
            "the input, or convert it into another output"
        )
    return changes


def new_rows(rows: list[Row], changes: Changes, options: ConvertOptions) -> list[Row]:
    """Returns the inputs that are to be added to the dataset that is extended."""
    images, replaced = known_images(options), changes.replaced if options.prune else ()
    return [row for row in rows if row.key not in images or (row.key in replaced and not row.reason)]


def tell_changes(layout: Layout, changes: Changes, options: ConvertOptions) -> Layout:
    """Returns the layout with remarks on images that have changed or are gone, and with --prune, what is left out."""
    remarks = list(layout.remarks)
    where = "left out" if options.prune else "they stay in it, and --extend --prune leaves them out"
    if changes.removed:
        remarks.append(
            f"images of {options.output!r} that are not among the inputs any more: {_some(changes.removed)}; {where}"
        )
    where = "replaced" if options.prune else "the dataset keeps them as they were, and --extend --prune replaces them"
    for keys, change in (
        (changes.changed, "whose files have changed"),
        (changes.relabelled, "whose inputs have another label now"),
        (changes.moved, "whose inputs are of another split now"),
        (changes.described, "whose inputs have other features now"),
    ):
        if keys:
            remarks.append(f"images of {options.output!r} {change}: {_some(keys)}; {where}")
    pruned = tuple(sorted(changes.removed | changes.replaced)) if options.prune else ()
    if pruned:
        remarks.append(
            f"the files of earlier versions stay in {options.output!r}: a pattern such as 'train-*' matches older "
            "shards too, with what is left out now; read the shards that manifest.json names"
        )
    num_outdated = 0 if options.prune else len(changes.removed | changes.replaced)
    return layout._replace(remarks=tuple(remarks), pruned_keys=pruned, num_outdated=num_outdated)


def _some(keys: frozenset[str]) -> str:
    return f"{len(keys):,}, e.g. {min(keys)!r}" if len(keys) > 1 else repr(min(keys))


def without(parent: Manifest, keys: frozenset[str]) -> tuple[Manifest, list[Rejection]]:
    """Writes the shards of a dataset that have any of these keys again, without them; other shards stay as they are.

    Returns:
      The manifest of the version without them, whose shards and indexes alone are written, and the examples
      that were left out. Channel means and standard deviations are the parent's, as only indexes and bytes of
      records are read.
    """
    fingerprint = _fingerprint_without(parent, keys)
    splits, rejections = dict[str, Split](), list[Rejection]()
    for name, split in parent.splits.items():
        pairs = zip(split.shards, _names_of(name, split, fingerprint), strict=True)
        rest = list(map_in_threads(lambda pair: _rest(parent, pair[0], keys, pair[1]), pairs, _AT_ONCE))
        rejections += [rejection for part in rest for rejection in part.rejections]
        if smaller := _split_of(split, rest, len(parent.classes)):
            splits[name] = smaller
    manifest = dataclasses.replace(
        parent,
        splits=splits,
        num_inputs=sum(split.num_examples for split in splits.values()) + len(rejections),
        num_rejected={"left_out": len(rejections)},
        fingerprint=fingerprint,
        earlier=(*parent.earlier, parent.fingerprint),
    )
    return manifest, sorted(rejections)


def names_without(parent: Manifest, keys: frozenset[str]) -> list[str]:
    """Returns the names of the shards that without() may write."""
    fingerprint = _fingerprint_without(parent, keys)
    return [shard for name, split in parent.splits.items() for shard in _names_of(name, split, fingerprint)]


def _fingerprint_without(parent: Manifest, keys: frozenset[str]) -> str:
    identity = json.dumps([parent.fingerprint, "without", sorted(keys)])
    return hashlib.sha256(identity.encode()).hexdigest()


def _names_of(name: str, split: Split, fingerprint: str) -> list[str]:
    return [shard_name(name, i, len(split.shards), fingerprint[:8]) for i in range(len(split.shards))]


class _Rest(NamedTuple):
    """What is left of a shard: the shard or None, labels and sizes of its records, and what was left out."""

    shard: Shard | None
    labels: list[Any]
    heights: list[int]
    widths: list[int]
    rejections: list[Rejection]


def _rest(parent: Manifest, shard: Shard, keys: frozenset[str], new_name: str) -> _Rest:
    removed = keys.intersection(_columns(parent, shard, ["key"])["key"].to_pylist())
    rows = read_index(index_content(f"{parent.path}/{index_path(shard.name)}"), shard.num_examples)
    remaining = [row for row in rows if row.key not in removed]
    why = "it is not an input any more, or its file, label, split or features have changed"
    rejections = [Rejection(row.key, row.uri, "left_out", why) for row in rows if row.key in removed]
    if removed:
        shard, remaining = _write_rest(parent, shard, rows, removed, new_name)
    return _Rest(
        shard if remaining else None,
        [row.label for row in remaining],
        [row.height for row in remaining],
        [row.width for row in remaining],
        rejections,
    )


def _write_rest(
    parent: Manifest, shard: Shard, rows: list[IndexRow], removed: frozenset[str], new_name: str
) -> tuple[Shard, list[IndexRow]]:
    remaining, digest, offset = list[IndexRow](), hashlib.sha256(), 0
    if all(row.key in removed for row in rows):
        return shard, []
    path = f"{parent.path}/{shard.name}"
    with storage.open_file(path) as source, create(parent.path, new_name) as target:
        for row, (_, payload) in zip(rows, read_frames(source), strict=True):
            if decode(payload, parent.first_label).key != row.key:
                raise ValueError(
                    f"{path!r} does not match its index; repair the dataset with: jpeg2tpu verify "
                    f"--repair {parent.path}"
                )
            if row.key not in removed:
                framed = frame(payload)
                target.write(framed)
                digest.update(framed)
                remaining.append(row._replace(offset=offset))
                offset += len(framed)
    with create(parent.path, index_path(new_name)) as file:
        write_index(file, remaining)
    return Shard(new_name, len(remaining), offset, digest.hexdigest()), remaining


def _split_of(split: Split, rest: list[_Rest], num_classes: int) -> Split | None:
    """Returns a split of what is left; None if nothing is."""
    shards = [part.shard for part in rest if part.shard]
    counts = Counter(index for part in rest for label in part.labels for index in stored_kind(label).indices(label))
    if not shards:
        return None

    def extent(values: list[int]) -> tuple[int, float, int]:
        return min(values), round(sum(values) / len(values), 1), max(values)

    # The manifest names the shards of one edition after one another.
    old = {shard.name for shard in split.shards}
    return dataclasses.replace(
        split,
        shards=tuple(sorted(shards, key=lambda shard: shard.name not in old)),
        class_counts=tuple(counts[label] for label in range(num_classes)),
        height=extent([value for part in rest for value in part.heights]),
        width=extent([value for part in rest for value in part.widths]),
    )


def classes_of(class_names: set[str], options: ConvertOptions) -> tuple[str, ...]:
    """Returns the classes in label order: first the classes of the dataset that is extended, then new ones, sorted."""
    before = parent_of(options.output, options.parent).classes if options.parent else ()
    return (*before, *in_class_order(class_names - set(before)))


def merged(parent: Manifest, new: Manifest) -> Manifest:
    """Returns the manifest of a dataset with the shards of two; the second one has the rejected inputs."""
    names = sorted({*parent.splits, *new.splits})
    return dataclasses.replace(
        new,
        splits={name: _both(parent.splits.get(name), new.splits.get(name), len(new.classes)) for name in names},
        num_inputs=parent.num_examples + new.num_inputs,
        num_fixed=_sums(parent.num_fixed, new.num_fixed),
        num_noted=_sums(parent.num_noted, new.num_noted),
        options=parent.options,
        sources=parent.sources,
        earlier=(*parent.earlier, parent.fingerprint),
    )


def say_nothing_new(num_rejected: dict[str, int]) -> None:
    """Prints that no image was added, if inputs were rejected, which the dataset's rejected.jsonl may not list."""
    if num_rejected:
        counts = ", ".join(f"{reason} {count:,}" for reason, count in sorted(num_rejected.items()))
        print_line(f"no image was added; inputs that the dataset does not have were rejected: {counts}", sys.stderr)


def keep_version(parent: Manifest) -> None:
    """Stores the manifest of the dataset that is extended under the name of its version."""
    with storage.open_file(f"{parent.path}/{MANIFEST_NAME}") as file:
        content = file.read()
    with create(parent.path, manifest_name(parent.version)) as file:
        file.write(content)


def store_version(manifest: Manifest) -> None:
    """Stores the manifest of a version of a dataset under its name."""
    write_manifest(manifest, manifest_name(manifest.version))


def _sums(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in sorted(first.keys() | second.keys())}


def _both(first: Split | None, second: Split | None, num_classes: int) -> Split:
    def all_classes(counts: tuple[int, ...]) -> tuple[int, ...]:
        return (*counts, *[0] * (num_classes - len(counts)))

    def rounded(values: tuple[float, float, float], digits: int) -> Any:
        return tuple(round(value, digits) for value in values)

    parts = [split for split in (first, second) if split]
    both = merged_splits([dataclasses.replace(split, class_counts=all_classes(split.class_counts)) for split in parts])
    return dataclasses.replace(
        both,
        height=rounded(both.height, 1),
        width=rounded(both.width, 1),
        channel_mean=rounded(both.channel_mean, 3),
        channel_std=rounded(both.channel_std, 3),
    )
