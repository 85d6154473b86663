"""Whether an input, and the files that are read with it, exist; without Beam, so that a mistyped path fails at once."""

from __future__ import annotations

import glob
import os

from beam_pipelines import storage
from beam_pipelines.options import Source


def check_exists(source: Source) -> None:
    """Raises ValueError if an input does not exist."""
    is_file = source.is_list or source.is_archive or source.is_file_of_records
    if not is_file and not storage.lists_files(source.path):
        raise ValueError(
            f"input {source.path!r} is on a web server, which lists no files; name one file: a .tar, .tar.gz or .zip, "
            "a .csv, .tsv or .jsonl, or a file of records such as x.parquet"
        )
    if source.record and not storage.is_uri(source.path):
        pattern = glob.escape(source.path)
        if not glob.glob(pattern.replace("[*]", "*") if source.is_pattern else pattern):
            raise ValueError(no_records(source))
    if not source.record and not storage.exists(source.path):
        raise ValueError(
            f"input {source.path!r} does not exist; it must be a folder of class folders, a .tar, .tar.gz or .zip of "
            "it, a .csv, a .tsv, a .jsonl or a dataset"
        )
    if source.image_folder and not storage.exists(source.image_folder):
        raise ValueError(f"the folder of images {source.image_folder!r} does not exist")


def no_records(source: Source) -> str:
    """Returns the message that an input has no files of records."""
    return (
        f"input {source.path!r} names no files of records; it must be a folder of files such as "
        "train-00000-of-00042, x.tfrecord, x.parquet or x.tar, or a pattern such as 'FOLDER/train-*'"
    )


def check_files_beside(source: Source) -> None:
    """Raises ValueError if a file that is read with a source does not exist, is a folder, or cannot be reached."""
    for name, path, needed in source.files:
        check_file(name, path, needed)


def check_file(name: str, path: str, needed: str) -> None:
    """Does the same for one of Source.files."""
    flag = {"new_labels": "labels"}.get(name, name)
    storage.check(path)
    if not storage.exists(path):
        raise ValueError(f"{path!r} of --{flag} does not exist; it must be {needed}")
    if os.path.isdir(path):
        raise ValueError(f"{path!r} of --{flag} is a folder; it must be {needed}")
