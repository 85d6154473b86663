"""Extension of a dataset: a conversion of the inputs that it does not have yet, whose shards are added to its own.

    indexes ──▶ keys that the dataset has ──inputs without them──▶ plan ──▶ shards of an edition of their own
    manifest.json ──▶ manifest-N.json, the old version; and the shards of both ──▶ manifest.json

The files of the dataset stay as they are, so a reader of the old manifest is not disturbed, and the old version can be
read later. Inputs that were rejected are tried again. The keys that the dataset has are held in memory by each process
that lists inputs, some 150 bytes for each.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import AsSingleton, PCollection
from apache_beam.transforms import combiners

from beam_pipelines import storage
from beam_pipelines.conversion import working_folder
from beam_pipelines.conversion.output_folder import complete_manifest, create, index_content
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import ConvertOptions
from beam_pipelines.sources.folders import Layout
from beam_pipelines.sources.rows import Row
from tpu_input.command_line import print_line
from tpu_input.dataset_format.index import index_path, read_columns
from tpu_input.dataset_format.records import MANIFEST_NAME, Manifest, Split, manifest_name


def begin(options: ConvertOptions) -> ConvertOptions:
    """Returns the options with which the dataset at options.output is extended.

    Raises:
      ValueError: There is no complete dataset, or it was made with other options or of other inputs.
    """
    manifest = complete_manifest(options.output)
    if options.dedup != "none":
        raise ValueError("--extend does not compare new images with old ones, so --dedup must be none; merge does")
    mine, its = options.shaping(), dict(manifest.options)
    if other := sorted(name for name in mine.keys() | its.keys() if mine.get(name) != its.get(name)):
        name = other[0]
        raise ValueError(
            f"{options.output!r} was made with {name}={its.get(name)!r}, not {mine.get(name)!r}; extend it with the "
            "options that it was made with"
        )
    fields = [source.fields() for source in options.sources]
    if fields != manifest.sources:
        raise ValueError(
            f"{options.output!r} was made of {manifest.sources}, not {fields}; extend it with the inputs that it was "
            "made of"
        )
    finished = WorkingFolder(options.output, manifest.fingerprint[:16])
    if finished in working_folder.unfinished(options.output):  # an extension that ended before it had removed them
        working_folder.remove_one(finished)
    # New shards have --shard_size, also where the dataset was cut into a number of shards.
    return dataclasses.replace(options, parent=manifest.fingerprint, num_shards=())


def parent_of(options: ConvertOptions) -> Manifest:
    """Returns the manifest of the dataset that is extended.

    Raises:
      ValueError: There is another one by now.
    """
    return _checked_parent(options.output, options.parent)


def _checked_parent(output: str, fingerprint: str) -> Manifest:
    manifest = complete_manifest(output)
    if manifest.fingerprint != fingerprint:
        raise ValueError(f"{output!r} was changed in the meantime; run the command again")
    return manifest


def known_keys(options: ConvertOptions) -> frozenset[str]:
    """Returns the keys of the dataset that is extended; read once in a process, as it is asked for every input."""
    return _keys_of(options.output, options.parent)


@functools.lru_cache(maxsize=1)
def _keys_of(output: str, fingerprint: str) -> frozenset[str]:
    manifest, keys = _checked_parent(output, fingerprint), set[str]()
    for shard in (shard for split in manifest.splits.values() for shard in split.shards):
        path = f"{output}/{index_path(shard.name)}"
        try:
            keys.update(read_columns(index_content(path), shard.num_examples, ["key"])["key"].to_pylist())
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ValueError(
                f"{path!r} cannot be read: {error}; repair the dataset with: python -m beam_pipelines verify "
                f"--repair {output}"
            ) from error
    return frozenset(keys)


def new_rows(rows: PCollection[Row], options: ConvertOptions) -> PCollection[Row]:
    """Returns the rows whose keys the dataset does not have; all rows if none is extended."""
    if not options.parent:
        return rows
    new: PCollection[Row] = rows | "New inputs" >> beam.Filter(_is_new, options)
    return new


def _is_new(row: Row, options: ConvertOptions) -> bool:
    return row.key not in known_keys(options)


def with_missing(layout: PCollection[Layout], rows: PCollection[Row], options: ConvertOptions) -> PCollection[Layout]:
    """Returns the layout with a remark on images of the dataset that are no inputs any more."""
    if not options.parent:
        return layout
    seen = rows | "Known inputs" >> beam.Filter(lambda row: not _is_new(row, options))
    count = seen | "Count known" >> combiners.Count.Globally()
    found: PCollection[Layout] = layout | "Missing" >> beam.Map(_add_missing, AsSingleton(count), options)
    return found


def _add_missing(layout: Layout, num_seen: int, options: ConvertOptions) -> Layout:
    missing = len(known_keys(options)) - num_seen
    if missing <= 0:
        return layout
    remark = (
        f"{missing:,} images of {options.output!r} are no inputs any more; they stay in it, and filter --without_keys "
        "leaves them out"
    )
    return layout._replace(remarks=(*layout.remarks, remark))


def classes_of(found: set[str], options: ConvertOptions) -> tuple[str, ...]:
    """Returns the classes in label order: those of the dataset that is extended, then new ones, sorted."""
    before = parent_of(options).classes if options.parent else ()
    return (*before, *sorted(found - set(before)))


def merged(parent: Manifest, new: Manifest) -> Manifest:
    """Returns the manifest of a dataset with the shards of two, of which the second one has the rejected inputs."""
    names = sorted({*parent.splits, *new.splits})
    return dataclasses.replace(
        new,
        splits={name: _both(parent.splits.get(name), new.splits.get(name), len(new.classes)) for name in names},
        num_inputs=sum(split.num_examples for split in parent.splits.values()) + new.num_inputs,
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


def _sums(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in sorted(first.keys() | second.keys())}


def _both(first: Split | None, second: Split | None, num_classes: int) -> Split:
    parts = [split for split in (first, second) if split]
    counts = [[*split.class_counts, *[0] * (num_classes - len(split.class_counts))] for split in parts]
    sizes = [split.num_examples for split in parts]
    total = sum(sizes)

    def mean(values: list[float]) -> float:
        return sum(size * value for size, value in zip(sizes, values, strict=True)) / total

    means, stds = [], []
    for channel in range(3):
        average = mean([split.channel_mean[channel] for split in parts])
        squares = [split.channel_std[channel] ** 2 + split.channel_mean[channel] ** 2 for split in parts]
        means.append(round(average, 3))
        stds.append(round(math.sqrt(max(mean(squares) - average**2, 0)), 3))
    extents = {}
    for name in ("height", "width"):
        of = [getattr(split, name) for split in parts]
        extents[name] = (
            min(each[0] for each in of),
            round(mean([each[1] for each in of]), 1),
            max(each[2] for each in of),
        )
    return Split(
        shards=tuple(shard for split in parts for shard in split.shards),
        class_counts=tuple(map(sum, zip(*counts, strict=True))),
        height=extents["height"],
        width=extents["width"],
        channel_mean=(means[0], means[1], means[2]),
        channel_std=(stds[0], stds[1], stds[2]),
    )
