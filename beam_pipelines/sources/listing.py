"""Rows of sources: class folders and .tar archives of them. lists.py reads lists, archives.py the members of a tar."""

from __future__ import annotations

import contextlib
import marshal
import os
import posixpath
import tempfile
from collections.abc import Iterator
from typing import IO

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources import archives
from beam_pipelines.sources.archives import Member
from beam_pipelines.sources.folders import is_hidden, is_split
from beam_pipelines.sources.lists import list_columns, read_names, rows_of_list
from beam_pipelines.sources.rows import Row


def list_rows(source: Source, options: ConvertOptions) -> Iterator[Row]:
    """Yields a Row for every file or member of the source, or for every line of a list.

    Raises:
      ValueError: The source cannot be read as the kind that its name indicates, or a line of a list names another split
        than the source.
    """
    listed = rows_of_list(source.path, options.known_labels) if source.is_list else _rows_of_files(source)
    if not source.split:
        yield from listed
        return
    several = len(options.sources) > 1
    for row in listed:
        if row.split not in ("", source.split):
            raise ValueError(
                f"--input={source.split}={source.path} contradicts the split in the list, {row.split!r} for "
                f"{row.key!r}; leave out one of them"
            )
        yield row._replace(split=source.split, key=f"{source.split}/{row.key}" if several else row.key)


def check_source(source: Source) -> None:
    """Checks a source in the driver, before the pipeline runs.

    Raises:
      ValueError: It does not exist, cannot be reached, or is a list without the columns needed.
    """
    needed = {
        "input": "a folder of class folders, a .tar, a .csv or a .jsonl",
        "label list": "a text file with one class name per line",
    }
    for kind, path in zip(needed, (source.path, source.label_list), strict=True):
        if path:
            storage.check(path)
            if not storage.exists(path):
                raise ValueError(f"{kind} {path!r} does not exist; it must be {needed[kind]}")
    if source.path.endswith(".csv"):
        list_columns(source.path)
    elif not source.is_list and not source.path.endswith(".tar") and os.path.isfile(source.path):
        raise ValueError(
            f"input {source.path!r} is a file of unknown type; it must be a folder of class folders, a .tar, a .csv "
            "or a .jsonl"
        )


def _rows_of_files(source: Source) -> Iterator[Row]:
    files = _files(source)
    if not source.label_list:
        yield from map(_row_of_file, files)
        return
    labels = list(filter(None, read_names(source.label_list)))
    ordered = [_row_of_file(file) for file in sorted(files)]
    # System files and hidden files were not there when the labels were listed, so they take no label.
    unlabelled = [row for row in ordered if row.reason == "system_file" or is_hidden(row.key)]
    images = [row for row in ordered if not (row.reason == "system_file" or is_hidden(row.key))]
    if len(labels) != len(images):
        raise ValueError(
            f"{source.label_list!r} has {len(labels)} labels for the {len(images)} files of {source.path!r}; it must "
            "have one class name per line, in the order of the file names"
        )
    yield from unlabelled
    yield from (row._replace(label=label) for row, label in zip(images, labels, strict=True))


def _row_of_file(file: Member) -> Row:
    try:
        file.path.encode()
    except UnicodeEncodeError:
        return Row(_shown(file.path), _shown(file.uri)).reject("bad_name", "its name is not UTF-8")
    row = Row(file.path, file.uri, num_bytes=file.num_bytes, version=file.version, number=file.number)
    if posixpath.basename(file.path) in _SYSTEM_FILES:
        return row.reject("system_file", "created by a file manager of macOS or Windows")
    if file.fault:
        return row.reject("bad_member", file.fault)
    if file.lost_target:
        lost = f"it is a hard link to {_shown(file.lost_target)!r}, which is no file before it in the archive"
        return row._replace(num_bytes=0).reject("missing", lost)
    return row


_SYSTEM_FILES = {".DS_Store", "Thumbs.db", "desktop.ini"}


def _shown(name: str) -> str:
    """Returns a name in which bytes that are not UTF-8 are written as \\x escapes."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _files(source: Source) -> Iterator[Member]:
    """Yields every file of a folder or an archive, including the members of archives inside it."""
    root = source.path
    if root.endswith(".tar"):
        yield from _without_shared_folder(archives.members(root), keep_split=not source.split)
        return
    for path, size, version in storage.list_versions(root):
        uri = f"{root}/{path}"
        if path.endswith(".tar") and archives.is_archive(uri):
            for member in archives.members(uri):
                yield member._replace(path=f"{path[:-4]}/{member.path}")
        else:
            yield Member(path, "", size, 0, version=version)  # locate() sets the URI


def _without_shared_folder(members: Iterator[Member], keep_split: bool) -> Iterator[Member]:
    """Yields members without the one folder above all class folders, as `tar cf flowers.tar flowers` adds it.

    While all of them lie in one folder, they are kept in a temporary file, so that headers are read only once.

    Args:
      members: All members of an archive.
      keep_split: Whether a folder stays that has the name of a split.
    """
    top = None
    with tempfile.TemporaryFile() as held:
        for member in members:
            folder = member.path.partition("/")[0]
            top = folder if top is None else top
            if member.fault or member.path.count("/") < 2 or folder != top:
                yield from _held(held)
                yield member
                yield from members
                return
            marshal.dump(tuple(member), held)
        cut = 0 if top is None or (keep_split and is_split(top)) else len(top) + 1
        yield from (member._replace(path=member.path[cut:]) for member in _held(held))


def _held(file: IO[bytes]) -> Iterator[Member]:
    file.seek(0)
    with contextlib.suppress(EOFError):
        while True:
            yield Member(*marshal.load(file))
