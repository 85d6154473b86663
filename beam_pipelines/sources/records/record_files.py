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
import re
from collections.abc import Iterator
from types import ModuleType

from beam_pipelines import storage
from beam_pipelines.options import RECORDS, TAR, ConvertOptions, RecordFormat, Source
from beam_pipelines.sources.folders import SPLIT_FOLDERS
from beam_pipelines.sources.records import parquet_files, tfrecord_files, webdataset
from beam_pipelines.sources.rows import Row

_HASH = re.compile(r"-[0-9a-f]{16}(?=\.)")  # in names of files of Hugging Face
# What surrounds the words of a file's name: numbers and endings.
_NO_WORD = re.compile(r"(?<![^\W_])(?:tfrecords?|parquet|tar|tgz|tbz2|txz|gz|bz2|xz|zstd?|of)(?![^\W_])|[\W\d_]+")
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
    split, of_format = split_of(name), RecordFormat.parse(source.record)
    for row in _kind(name).rows_of_file(source.folder, name, of_format, options):
        yield row._replace(split=split)


def split_of(name: str) -> str:
    """Returns the split that is the last word in the name of a file, or the folder that it lies in; "" for others.

    As in imagenet2012-train.tfrecord-00000-of-01024, train-000000.tar and train/0000.parquet.
    """
    folder, _, base = name.rpartition("/")
    words = [*_NO_WORD.sub(" ", _HASH.sub("", base)).split()[-1:], posixpath.basename(folder)]
    return next((SPLIT_FOLDERS[word.lower()] for word in words if word.lower() in SPLIT_FOLDERS), "")


def remark(source: Source, options: ConvertOptions) -> str:
    """Returns a line about the parts of the records that are not stored, as the first file has them; "" if none are."""
    name = list_record_files(source)[0]
    path = f"{source.folder}/{name}"
    what, left = _kind(name).not_stored(path, RecordFormat.parse(source.record), options)
    return f"{path}: the {what} {', '.join(map(repr, left))} are not stored" if left else ""


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
