"""All kinds of inputs, and the rows of an input, whatever its kind.

A source is opened as its parts, which workers list side by side: class folders, archives in folders or in an archive,
files of records, shards. A list, and files whose labels are in a list, are one part.
"""

from __future__ import annotations

import dataclasses
import functools
import posixpath
from collections.abc import Iterator

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources import not_images
from beam_pipelines.sources.dataset_examples import Dataset, check_changes
from beam_pipelines.sources.existence import check_exists, check_files_beside
from beam_pipelines.sources.exported_shards import Export
from beam_pipelines.sources.image_files import Archive, Folder
from beam_pipelines.sources.input_kinds import InputKind, Part
from beam_pipelines.sources.labelled_files import LabelledFiles
from beam_pipelines.sources.lists import List
from beam_pipelines.sources.records.record_files import Records, recognised
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import Row, find, find_all
from tpu_input.dataset_format.decode_limits import too_many_bytes
from tpu_input.dataset_format.split_names import SPLIT_NAMES, is_missing, split_named, split_of_path

# Every kind of input: the first that says that a source is of its kind reads it.
KINDS: tuple[InputKind, ...] = (List(), LabelledFiles(), Records(), Archive(), Dataset(), Export(), Folder())


def kind_of(source: Source) -> InputKind:
    """Returns the kind of a source."""
    return next(kind for kind in KINDS if kind.is_kind(source))


def recognise(options: ConvertOptions) -> tuple[ConvertOptions, list[str]]:
    """Returns the options with the formats of sources that only their content shows, and lines that say so.

    Raises:
      ValueError: A source can be read in two ways; the message has both.
    """
    recognized = [recognised(source, options) for source in options.sources]
    sources = tuple(source for source, _ in recognized)
    notes = [line for _, line in recognized if line]
    return (dataclasses.replace(options, sources=sources) if notes else options), notes


def list_rows(source: Source, options: ConvertOptions) -> Iterator[Row]:
    """Yields a Row for every file or member of the source, or for every line of a list; raises as list_part()."""
    for batch in list_below(Part(source), options):
        yield from batch.rows()


def list_below(part: Part, options: ConvertOptions) -> Iterator[Batch]:
    """Yields rows for every file, member or line of a part of a source; raises as list_part()."""
    for listed in list_part(part, options):
        if isinstance(listed, Part):
            yield from list_below(listed, options)
        else:
            yield listed


def find_files(batch: Batch, is_list: bool) -> Batch:
    """Returns rows as rows.find() does; each line of a list may need a request of its own."""
    sizes = batch.column("num_bytes")
    if batch.is_all("uri", "") and batch.num_rows and min(sizes) >= 0 and not too_many_bytes(max(sizes)):
        return batch  # as most batches of a folder are
    return batch.map_rows(find_all if is_list else functools.partial(map, find))


def list_part(part: Part, options: ConvertOptions) -> Iterator[Batch | Part]:
    """Yields rows for every file, member or line of a part of a source, or its parts if it has any.

    Raises:
      ValueError: The source cannot be read as its kind, or a line of a list names another split than the source.
    """
    kind = next(kind for kind in KINDS if kind.name == part.kind) if part.kind else kind_of(part.source)
    for listed in kind.batches(part, options):
        if isinstance(listed, Part):
            yield listed._replace(kind=kind.name)
        else:
            yield _with_split(listed, part.source, kind, options)


def _with_split(batch: Batch, source: Source, kind: InputKind, options: ConvertOptions) -> Batch:
    """Returns rows with the reason of --ignore, and with the split that they or their source name."""
    if options.ignore or not batch.is_all("split", ""):
        batch = batch.map_rows(lambda rows: [_checked(row, source, kind, options) for row in rows])
    if not source.split:
        return batch
    keys: object = batch.columns["key"]
    if len(options.sources) > 1:
        keys = [f"{source.split}/{key}" for key in batch.column("key")]
    return batch.replace(split=source.split, key=keys)


def _checked(row: Row, source: Source, kind: InputKind, options: ConvertOptions) -> Row:
    if options.ignore and not row.reason:
        reason, detail = not_images.reason_of(row.key, options.ignore)
        row = row.reject(reason, detail) if reason == not_images.IGNORED else row
    if row.split and not kind.has_splits:
        if is_missing(row.split) and not row.reason:
            raise ValueError(
                f"{source.path!r}: the split of {row.key!r} is {row.split!r}, which stands for none; leave the "
                "field empty if --splits is to choose, or write train, validation or test"
            )
        row = row._replace(split=split_named(row.split))
    if source.split and row.split not in ("", source.split):
        raise ValueError(
            f"{source.flag} contradicts the split of {row.key!r} in it, {row.split!r}; "
            "leave out the split in --input, or take an input without splits"
        )
    return row


def remarks(source: Source, options: ConvertOptions) -> Iterator[str]:
    """Yields lines about how a source is read, and what it has that is not stored."""
    yield from kind_of(source).remarks(source, options)
    above, name = posixpath.split(source.path)
    split = split_of_path(name) or SPLIT_NAMES.get(posixpath.basename(above).lower(), "")
    if not source.split and not source.is_pattern and split not in ("", "train"):
        yield (
            f"{name!r} has the name of the split {split}, but --splits divides its images, most of them to train; "
            f"if they are to be one split, use {Source(source.path, split).flag}"
        )


def check_source(source: Source, options: ConvertOptions) -> None:
    """Checks a source in the driver, before the pipeline runs.

    Raises:
      ValueError: It does not exist, cannot be reached, or cannot be read as its kind.
    """
    storage.check(source.folder)
    check_exists(source)
    check_files_beside(source)
    kind_of(source).check(source, options)
    check_changes(source)
