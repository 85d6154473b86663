"""Files of records that other programs have written, as parts of an input: each file is listed by one worker.

    train-00000-of-01024, x.tfrecord ──tfrecord_files──▶ Row        records in place
    train-00000-of-00042.parquet     ──parquet_files───▶ Row        images copied once
    train-000000.tar[.gz]            ──webdataset──────▶ Row        members in place

What the records hold is given by --record: the name of one of options.FORMATS, or features, columns or endings by name.
Labels that are numbers need the names of the classes, from the records or from --labels: sorted as names, numbers would
be other labels, as "10" comes before "2".
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterator
from types import ModuleType

from beam_pipelines import storage
from beam_pipelines.options import RECORDS, TAR, ConvertOptions, RecordFormat, Source
from beam_pipelines.sources.records import parquet_files, tfrecord_files, webdataset
from beam_pipelines.sources.rows import Row
from beam_pipelines.sources.split_names import split_of_path

_MAX_DEPTH = 3  # folders of Parquet: Hugging Face has CONFIGURATION/SPLIT/0000.parquet


def list_record_files(source: Source) -> list[str]:
    """Returns the paths, relative to the folder of a source, of the files of records that it names, sorted."""
    if source.is_file_of_records:
        return [posixpath.basename(source.path)] if storage.file_bytes(source.path) >= 0 else []
    folder, pattern = source.folder, posixpath.basename(source.path)
    if source.is_pattern:
        found = [path for path, _, _ in storage.list_level(folder) if fnmatch.fnmatchcase(path, pattern)]
        return sorted(path for path in found if not path.endswith("/"))
    wanted = {"webdataset": webdataset, "huggingface": parquet_files}.get(source.record.partition(",")[0])
    found = [path for path, _ in storage.list_files(folder) if path.count("/") <= _MAX_DEPTH]
    kinds = {path: _kind(path) for path in found if RECORDS.fullmatch(path) or TAR.fullmatch(path)}
    return sorted(path for path, kind in kinds.items() if kind is wanted or not wanted)


def _kind(path: str) -> ModuleType:
    """Returns the module that reads a file, by its name."""
    return webdataset if TAR.fullmatch(path) else parquet_files if path.endswith(".parquet") else tfrecord_files


def rows_of_file(source: Source, name: str, options: ConvertOptions) -> Iterator[Row]:
    """Yields a row for each record of a file.

    Raises:
      ValueError: The file is damaged or of another kind, so that records behind the damage cannot be found.
    """
    split, of_format = split_of_path(name), RecordFormat.parse(source.record)
    for row in _kind(name).rows_of_file(source.folder, name, of_format, options):
        yield row._replace(split=split)


def remarks(source: Source, options: ConvertOptions) -> Iterator[str]:
    """Yields lines about how files are read: their splits, and parts of the records that are not stored."""
    names = list_record_files(source)
    by_split: dict[str, list[str]] = {}
    for name in names if not source.split else ():
        by_split.setdefault(split_of_path(name), []).append(name)
    if set(by_split) - {""}:
        files = {
            split: f"{some[0]}{f' and {len(some) - 1:,} more' * (len(some) > 1)}" for split, some in by_split.items()
        }
        yield f"{source.path}: " + ", ".join(
            f"{files[split]} {f'as {split}' if split else 'by --splits'}" for split in sorted(files)
        )
    path = f"{source.folder}/{names[0]}"
    what, left = _kind(names[0]).not_stored(path, RecordFormat.parse(source.record), options)
    if left:
        yield f"{path}: the {what} {', '.join(map(repr, left))} are not stored"


def check_files(source: Source, classes: tuple[str, ...] | None = None, unlabelled: bool = False) -> None:
    """Checks that there are files of records, and that the first of them has records of the format.

    Args:
      source: The source.
      classes: Class names in label order, which may be none; None if it is not known whether they are given.
      unlabelled: Whether no labels are stored.

    Raises:
      ValueError: There are none, or the first record lacks a feature.
    """
    storage.check(source.folder)
    names = list_record_files(source)
    if not names:
        raise ValueError(
            f"input {source.path!r} names no files of records; it must be a folder of files such as "
            "train-00000-of-00042, x.tfrecord, x.parquet or x.tar, or a pattern such as 'FOLDER/train-*'"
        )
    _kind(names[0]).check_first(f"{source.folder}/{names[0]}", RecordFormat.parse(source.record), unlabelled)
