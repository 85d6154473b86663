"""Files of records that other programs have written, as parts of an input: each file is listed by one worker.

    train-00000-of-01024, x.tfrecord ──tfrecord_files──▶ Row        records in place
    train-00000-of-00042.parquet     ──parquet_files───▶ Row        images copied once
    train-000000.tar[.gz]            ──webdataset──────▶ Row        members in place

What the records hold is given by --record: the name of one of options.FORMATS, or features, columns or endings by name.
Labels that are numbers need the names of the classes, from the records or from --labels: sorted as names, numbers would
be other labels, as "10" comes before "2".
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import os
import posixpath
import re
from collections.abc import Iterator
from types import ModuleType

from beam_pipelines import storage
from beam_pipelines.options import RECORDS, TAR, ConvertOptions, RecordFormat, Source
from beam_pipelines.sources.existence import no_records
from beam_pipelines.sources.exported_shards import read_export
from beam_pipelines.sources.folders import is_hidden
from beam_pipelines.sources.input_kinds import InputKind, Part
from beam_pipelines.sources.not_images import OTHER_FILE, ending, ignored_by, reason_of
from beam_pipelines.sources.records import parquet_files, tfrecord_files, webdataset
from beam_pipelines.sources.rows import IMAGE_ENDINGS, Row
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format.split_names import split_named, split_of_path

_MAX_DEPTH = 3  # folders of Parquet: Hugging Face has CONFIGURATION/SPLIT/0000.parquet


# NAME-NUMBER-of-COUNT; missing files are not looked for if COUNT is above _MAX_NUMBERED.
_NUMBERED = re.compile(r"(.*-)(\d+)-of-(\d+)(\D.*)?", re.DOTALL)
_MAX_NUMBERED = 1_000_000
_LOOKED_AT = 50  # entries of a folder, among which a file of records is looked for


class Records(InputKind):
    """Files of records of another program: TFRecords, Parquet, or WebDataset."""

    name = "records"

    def is_kind(self, source: Source) -> bool:
        return bool(source.record)

    def check(self, source: Source, options: ConvertOptions) -> None:
        """Checks that there are files of records, and that the first of them has records of the format."""
        names = list_record_files(source)
        if not names:
            raise ValueError(no_records(source))
        unlabelled = not options.label_kind.needs_classes
        record_format = RecordFormat.parse(source.record)
        _kind(names[0]).check_first(f"{source.folder}/{names[0]}", record_format, unlabelled)

    def rows(self, part: Part, options: ConvertOptions) -> Iterator[Row | Part]:
        if part.shard:
            yield from rows_of_file(part.source, part.shard, options)
        else:
            yield from (Part(part.source, shard=name) for name in list_record_files(part.source))
            yield from _others(part.source, options)

    def remarks(self, source: Source, options: ConvertOptions) -> Iterator[str]:
        """Yields lines about how files are read: their splits, and parts of the records that are not stored."""
        names = list_record_files(source)
        by_split: dict[str, list[str]] = {}
        for name in names if not source.split else ():
            by_split.setdefault(split_of_path(name), []).append(name)
        if set(by_split) - {""}:
            files = {split: enumerated(group, 1) for split, group in by_split.items()}
            yield f"{source.path}: " + ", ".join(
                f"{files[split]} {f'as {split}' if split else 'by --splits'}" for split in sorted(files)
            )
        yield from _missing(names)
        path = f"{source.folder}/{names[0]}"
        parts, unstored = _kind(names[0]).not_stored(path, RecordFormat.parse(source.record), options)
        if unstored:
            yield f"{path}: the {parts} {', '.join(map(repr, unstored))} are not stored"


def recognised(source: Source, options: ConvertOptions) -> tuple[Source, str]:
    """Returns the source, with record="webdataset" if its content can be nothing else, and then a line that says so.

    A tar, or a folder with a tar, is WebDataset if an image in it is followed by its label, a file .cls.

    Raises:
      ValueError: The image lies in a folder, which may be its class.
    """
    is_explicit = source.record or source.is_list or source.label_list or source.label_pattern or source.is_of_dataset
    is_tar = bool(TAR.fullmatch(source.path))
    if is_explicit or (os.path.isfile(source.path) and not is_tar):
        return source, ""
    try:
        tars = [source.path] if is_tar else _tars(source.path)
        label = next(filter(None, map(webdataset.first_label, tars)), "")
    except OSError:  # it is not there, or cannot be reached, which check_source() describes
        return source, ""
    if not label or ignored_by(label, options.ignore):
        return source, ""
    if "/" in label:
        raise ValueError(
            f"{tars[0]!r} can be read in two ways, as it has {label!r}: add --record=webdataset if such files are the "
            f"labels, or --ignore='*.cls' if the folder {posixpath.dirname(label)!r} is a class"
        )
    if read_export(source.path):  # an export for WebDataset has tars too, but says of itself what it is
        return source, ""
    remark = f"{source.path}: read as WebDataset, because it has {label}; this is --record=webdataset"
    return dataclasses.replace(source, record="webdataset"), remark


def _tars(folder: str) -> list[str]:
    """Returns a tar among the first entries of a folder."""
    entries = itertools.islice(storage.list_level(folder, ""), _LOOKED_AT)
    return [f"{folder}/{path}" for path, _, _ in entries if path.endswith(".tar")][:1]


def list_record_files(source: Source) -> list[str]:
    """Returns the paths, relative to the folder of a source, of the files of records that it names, sorted."""
    if source.is_file_of_records:
        return [posixpath.basename(source.path)] if storage.file_bytes(source.path) >= 0 else []
    folder, pattern = source.folder, posixpath.basename(source.path)
    if source.is_pattern:
        paths = [path for path, _, _ in storage.list_level(folder) if fnmatch.fnmatchcase(path, pattern)]
        return sorted(path for path in paths if not path.endswith("/"))
    return sorted(path for path, _ in storage.list_files(folder) if _is_of_source(path, source))


def _is_of_source(path: str, source: Source) -> bool:
    """Returns whether a file below the folder of a source has a name of its records."""
    if path.count("/") > _MAX_DEPTH or _is_hidden(path) or not (RECORDS.fullmatch(path) or TAR.fullmatch(path)):
        return False
    module = {"webdataset": webdataset, "huggingface": parquet_files}.get(source.record.partition(",")[0])
    return not module or _kind(path) is module


def _is_hidden(path: str) -> bool:
    return any(map(is_hidden, path.split("/")))


def _others(source: Source, options: ConvertOptions) -> Iterator[Row]:
    """Yields a rejected row for each file of a folder that is not one of its records."""
    if source.is_file_of_records or source.is_pattern:
        return
    for path, size in storage.list_files(source.folder):
        if _is_of_source(path, source):
            continue
        row = Row(path, "", num_bytes=max(size, 0))
        reason, detail = reason_of(path, options.ignore)
        if _is_hidden(path):
            yield row.reject("hidden", "it is in a hidden folder")
        elif reason != OTHER_FILE and reason:
            yield row.reject(reason, detail)
        elif ending(path) in IMAGE_ENDINGS or _is_of_source(path.lower(), source):
            yield row.reject("no_label", f"by its name, it is not a file of --record={source.record}")
        else:
            yield row.reject(OTHER_FILE, detail or "by its name, it is not a file of records")


def _kind(path: str) -> ModuleType:
    """Returns the module that reads a file, by its name."""
    return webdataset if TAR.fullmatch(path) else parquet_files if path.endswith(".parquet") else tfrecord_files


def rows_of_file(source: Source, name: str, options: ConvertOptions) -> Iterator[Row]:
    """Yields a row for each record of a file.

    Raises:
      ValueError: The file is damaged or of another kind, so that records behind the damage cannot be found.
    """
    split, record_format = split_of_path(name), RecordFormat.parse(source.record)
    for row in _kind(name).rows_of_file(source.folder, name, record_format, options):
        if split and split_named(row.split) not in ("", split):
            raise ValueError(
                f"the name of {name!r} stands for the split {split}, but {row.key!r} in it has the split "
                f"{row.split!r}; rename the file, or correct the splits in it"
            )
        yield row._replace(split=row.split or split)


def _missing(names: list[str]) -> Iterator[str]:
    """Yields lines about files that the names of others count, as train-00000-of-00003 counts two more."""
    numbers: dict[tuple[str, str, str], set[int]] = {}
    for match in filter(None, map(_NUMBERED.fullmatch, names)):
        numbers.setdefault((match[1], match[3], match[4]), set()).add(int(match[2]))
    for (prefix, count, suffix), present in sorted(numbers.items()):
        if missing := sorted(set(range(int(count))) - present) if int(count) <= _MAX_NUMBERED else []:
            first = f"{prefix}{missing[0]:0{len(count)}d}-of-{count}{suffix or ''}"
            more = f" and {len(missing) - 1:,} more" * (len(missing) > 1)
            yield f"{len(present):,} of {int(count):,} files are there: without {first}{more}"
