"""Sources → rows: class folders and .tar archives of them; lists.py has the lists.

An archive is read in place: a row of a member names the bytes of the archive that are its own. An archive inside a
folder or an archive counts as a folder, so ImageNet's tar of tars reads as synset folders.
"""

from __future__ import annotations

import os
import posixpath
import tarfile
from collections.abc import Iterator
from typing import IO

from beam_pipelines import storage
from beam_pipelines.lists import list_columns, read_names, rows_of_list
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.rows import Row, is_split, label_by_folder

_PIECE_BYTES = 1 << 20


def list_rows(source: Source, options: ConvertOptions) -> Iterator[Row]:
    """Yields a Row for every file or member of the source, or for every line of a list.

    Raises:
      ValueError: The source cannot be read as what it seems to be, or is of another split than a line of it says.
    """
    classes = frozenset(options.labels)
    listed = rows_of_list(source.path, classes) if source.is_list else _rows_of_files(source)
    if not source.split:
        yield from listed
        return
    several = len(options.sources) > 1
    for row in listed:
        if row.split not in ("", source.split):
            raise ValueError(
                f"--input={source.split}={source.path} and the list's own split, {row.split!r} of {row.key!r}, differ; "
                "leave out one of them"
            )
        row = label_by_folder(row._replace(split=source.split), set())
        yield row._replace(key=f"{source.split}/{row.key}") if several else row


def check_source(source: Source) -> None:
    """Refuses what is no source, in the driver, before anything runs.

    Raises:
      ValueError: It does not exist, cannot be reached, or is a list without the columns needed.
    """
    needed = {"input": "a folder of class folders, a .tar, a .csv or a .jsonl", "label list": "a class name a line"}
    for kind, path in zip(needed, (source.path, source.label_list), strict=True):
        if path:
            storage.check(path)
            if not storage.exists(path):
                raise ValueError(f"{kind} {path!r} does not exist; it is {needed[kind]}")
    if source.path.endswith(".csv"):
        list_columns(source.path)
    elif not source.is_list and not source.path.endswith(".tar") and os.path.isfile(source.path):
        raise ValueError(
            f"input {source.path!r} is a file; it is a folder of class folders, a .tar, a .csv or a .jsonl"
        )


def _rows_of_files(source: Source) -> Iterator[Row]:
    files = _files(source)
    if not source.label_list:
        yield from (_row_of_file(*file) for file in files)
        return
    labels = list(filter(None, read_names(source.label_list)))
    ordered = [_row_of_file(*file) for file in sorted(files)]
    unlabelled = [row for row in ordered if row.reason == "system_file"]  # were not there when the labels were listed
    images = [row for row in ordered if row.reason != "system_file"]
    if len(labels) != len(images):
        raise ValueError(
            f"{source.label_list!r} has {len(labels)} labels for the {len(images)} files of {source.path!r}; it needs "
            "a class name a line, in the order of the files' names"
        )
    yield from unlabelled
    yield from (row._replace(label=label) for row, label in zip(images, labels, strict=True))


def _row_of_file(path: str, uri: str, size: int, number: int = 0) -> Row:
    try:
        path.encode()
    except UnicodeEncodeError:
        return Row(_shown(path), _shown(uri)).reject("bad_name", "its name is not UTF-8")
    row = Row(path, uri, num_bytes=size, number=number)
    if posixpath.basename(path) in _SYSTEM_FILES:
        return row.reject("system_file", "made by the file manager of macOS or Windows")
    return row


_SYSTEM_FILES = {".DS_Store", "Thumbs.db", "desktop.ini"}


def _shown(name: str) -> str:
    """Returns a name with the bytes spelled out that are not UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _files(source: Source) -> Iterator[tuple[str, str, int, int]]:
    """Yields (path within the source, uri, bytes, number) of every file, archives opened."""
    root = source.path
    if root.endswith(".tar"):
        shared = _shared_folder(root)
        if not source.split and is_split(shared.rstrip("/")):
            shared = ""  # it says something
        for path, uri, size, number in _tar_members(root):
            yield path[len(shared) :], uri, size, number
        return
    for path, size in storage.list_files(root):
        uri = f"{root}/{path}"
        if path.endswith(".tar") and _is_tar(uri):
            for name, member, member_size, number in _tar_members(uri):
                yield f"{path[:-4]}/{name}", member, member_size, number
        else:
            yield path, "", size, 0  # locate() knows the URI


def _shared_folder(archive: str) -> str:
    """Returns the folder above all class folders of an archive, as `tar cf flowers.tar flowers` makes it; or ""."""
    tops = set()
    for path, *_ in _tar_members(archive):
        tops.add(path.partition("/")[0])
        if path.count("/") < 2 or len(tops) > 1:  # no need to read on
            return ""
    return tops.pop() + "/" if tops else ""


def _is_tar(uri: str) -> bool:
    with storage.open_file(uri) as file:
        return tarfile.is_tarfile(file)


def _tar_members(archive: str) -> Iterator[tuple[str, str, int, int]]:
    try:
        with storage.open_file(archive) as file:
            yield from _members(archive, file, 0)
    except tarfile.TarError as error:
        raise ValueError(f"{archive!r} is no whole, uncompressed tar archive: {error}") from error


def _members(archive: str, file: IO[bytes], start: int) -> Iterator[tuple[str, str, int, int]]:
    """Yields the members of the tar that lies `start` bytes into the archive."""
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # else a million headers stay in memory
            name, first = posixpath.normpath(member.name), start + member.offset_data
            if not member.isfile():
                if not member.isdir():
                    yield name, f"{archive}#{name} (a link)", -1, -first
            elif name.endswith(".tar"):
                inner = tar.extractfile(member)
                assert inner is not None  # it is a file
                for path, uri, size, number in _members(archive, inner, first):
                    yield f"{name[:-4]}/{path}", uri, size, number
            else:
                yield name, storage.slice_uri(archive, first, member.size), member.size, -first
        _check_end(file, tar.offset)


def _check_end(file: IO[bytes], end: int) -> None:
    """Refuses a tar that goes on where tarfile takes it to end, as it does at any damaged header but the first.

    Raises:
      tarfile.ReadError: There is not at least one empty block at `end`, or something comes after it.
    """
    file.seek(end)
    rest = file.read(_PIECE_BYTES)
    whole = len(rest) >= tarfile.BLOCKSIZE and not any(rest)
    while whole and (rest := file.read(_PIECE_BYTES)):
        whole = not any(rest)
    if not whole:
        raise tarfile.ReadError(
            f"at byte {end} is neither a member nor the end; copy it again, or pack the files anew if tars were joined"
        )
