"""Rows of sources: class folders and archives of them. lists.py reads lists, archives.py the members of a tar.

A source is opened as its parts, which workers list side by side: class folders, archives in folders or in an archive.
A list, and files whose labels are in a list, are one part, as labels follow the order of names.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import posixpath
import re
import tempfile
from collections.abc import Iterator
from typing import IO, NamedTuple

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources import archives, lists, not_images, zips
from beam_pipelines.sources.archives import Member
from beam_pipelines.sources.dataset_examples import check_changes, check_kind, rows_of_shard, shards_of
from beam_pipelines.sources.folders import is_hidden, is_split
from beam_pipelines.sources.lists import list_columns, read_names, rows_of_list
from beam_pipelines.sources.records import record_files
from beam_pipelines.sources.records.parquet_files import has_images
from beam_pipelines.sources.records.record_files import check_files, list_record_files, rows_of_file
from beam_pipelines.sources.rows import Row, label_row
from beam_pipelines.sources.split_names import split_named, split_of_path
from beam_pipelines.sources.unpacking import decompressed


class Part(NamedTuple):
    """Part of a source, which one worker lists.

    Attributes:
      source: The source.
      folder: Folder within it, which ends with a slash; "" for the source, or with `archive`.
      archive: What may be an archive within it.
      shard: Name of a shard, if the source is a dataset or records of another program.
    """

    source: Source
    folder: str = ""
    archive: Member | None = None
    shard: str = ""


def list_rows(source: Source, options: ConvertOptions) -> Iterator[Row]:
    """Yields a Row for every file or member of the source, or for every line of a list; raises as list_part()."""
    return list_below(Part(source), options)


def list_below(part: Part, options: ConvertOptions) -> Iterator[Row]:
    """Yields a Row for every file, member or line of a part of a source; raises as list_part()."""
    for found in list_part(part, options):
        if isinstance(found, Part):
            yield from list_below(found, options)
        else:
            yield found


def list_part(part: Part, options: ConvertOptions) -> Iterator[Row | Part]:
    """Yields a Row for every file, member or line of a part of a source, or the parts of which it consists.

    Raises:
      ValueError: The source cannot be read as the kind that its name indicates, or a line of a list names another split
        than the source.
    """
    source, several = part.source, len(options.sources) > 1
    for row in _rows(part, options):
        if isinstance(row, Part):
            yield row
            continue
        if options.ignore and not row.reason and not_images.is_ignored(row.key, options.ignore):
            row = row.reject(not_images.IGNORED, "--ignore names it")
        if not source.split:
            yield row
            continue
        if split_named(row.split) not in ("", split_named(source.split)):
            raise ValueError(
                f"--input={source.split}={source.path} contradicts the split of {row.key!r} in it, {row.split!r}; "
                "leave out the split in --input, or take an input without splits"
            )
        yield row._replace(split=source.split, key=f"{source.split}/{row.key}" if several else row.key)


def _rows(part: Part, options: ConvertOptions) -> Iterator[Row | Part]:
    if part.source.is_list:
        yield from rows_of_list(part.source, options)
    elif part.source.label_list:
        yield from _rows_with_labels(part.source, options)
    elif part.source.record and part.shard:
        yield from rows_of_file(part.source, part.shard, options)
    elif part.source.record:
        yield from (Part(part.source, shard=name) for name in list_record_files(part.source))
    elif part.shard:
        yield from rows_of_shard(part.source, part.shard, options)
    elif _is_whole_folder(part) and (shards := shards_of(part.source.path)):
        yield from (Part(part.source, shard=shard) for shard in shards)
    else:
        for file in _files(part, options.output):
            yield (
                file
                if isinstance(file, Part)
                else _with_pattern(_row_of_file(file, options), part.source.label_pattern)
            )


def _with_pattern(row: Row, pattern: str) -> Row:
    """Returns the row of a file with the label that a pattern finds in its path."""
    if not pattern or row.reason:
        return row
    match = re.search(pattern, row.key)
    if not match or not match[1]:
        return row.reject("no_label", f"--label_pattern={pattern} does not match its path")
    return row._replace(label=match[1])


def _is_whole_folder(part: Part) -> bool:
    return not (part.folder or part.archive or part.source.is_archive)


def remarks(source: Source, options: ConvertOptions) -> Iterator[str]:
    """Yields lines about how a source is read, and what it has that is not stored."""
    if source.record:
        yield from record_files.remarks(source, options)
    elif source.is_list:
        yield from filter(None, [lists.remark(source, options)])
    if not source.split and not source.is_pattern and (split := split_of_path(source.path)) not in ("", "train"):
        name = posixpath.basename(source.path)
        yield (
            f"{name!r} has the name of the split {split}, but --splits divides its images, most of them to train; "
            f"if they are to be one split, use --input={split}={source.path}"
        )


def check_files_beside(source: Source) -> None:
    """Raises ValueError if a file that is read beside a source does not exist, is a folder, or cannot be reached."""
    for name, path, needed in source.files:
        flag = {"new_labels": "labels"}.get(name, name)
        storage.check(path)
        if not storage.exists(path):
            raise ValueError(f"{path!r} of --{flag} does not exist; it must be {needed}")
        if os.path.isdir(path):
            raise ValueError(f"{path!r} of --{flag} is a folder; it must be {needed}")


def check_source(source: Source, options: ConvertOptions, classes: tuple[str, ...] | None = None) -> None:
    """Checks a source in the driver, before the pipeline runs.

    Args:
      source: The source.
      options: Options of the conversion, for its labels and features.
      classes: Class names in label order, which may be none; None if it is not known whether they are given.

    Raises:
      ValueError: It does not exist, cannot be reached, or is a list without the columns needed.
    """
    if source.record:
        check_files(source, classes, options.label_type == "none")
        return
    storage.check(source.path)
    if not storage.exists(source.path):
        raise ValueError(
            f"input {source.path!r} does not exist; it must be a folder of class folders, a .tar, .tar.gz or .zip of "
            "it, a .csv, a .tsv, a .jsonl or a dataset"
        )
    check_files_beside(source)
    if source.image_folder and not storage.exists(source.image_folder):
        raise ValueError(f"the folder of images {source.image_folder!r} does not exist")
    if source.path.endswith((".csv", ".tsv")):
        list_columns(source, options)
    elif not source.is_list and not source.is_archive and os.path.isfile(source.path):
        raise ValueError(
            f"input {source.path!r} is a file of unknown type; it must be a folder of class folders, a .tar, "
            "a .tar.gz, a .zip, a .csv, a .tsv, a .jsonl, or records (--record)"
        )
    check_kind(source, options)
    check_changes(source)


def _rows_with_labels(source: Source, options: ConvertOptions) -> Iterator[Row]:
    """Yields the rows of the files of a source whose labels are in a list, in the order of the files' names."""
    labels = list(filter(None, read_names(source.label_list)))
    ordered = [_row_of_file(file, options) for file in sorted(_files_below(Part(source), options.output))]
    # Files that are no images have no line among the labels.
    unlabelled = [row for row in ordered if row.reason in not_images.REASONS or is_hidden(row.key)]
    images = [row for row in ordered if not (row.reason in not_images.REASONS or is_hidden(row.key))]
    yield from unlabelled
    by_name = _labels_by_name(labels, images, source)
    if by_name:
        yield from (label_row(row, by_name[row.key], options) for row in images)
        return
    if len(labels) != len(images):
        raise ValueError(
            f"{source.label_list!r} has {len(labels)} labels for the {len(images)} files of {source.path!r}; it must "
            "have one class name per line, in the order of the file names"
        )
    yield from (label_row(row, label, options) for row, label in zip(images, labels, strict=True))


def _labels_by_name(lines: list[str], images: list[Row], source: Source) -> dict[str, str]:
    """Returns the label of each image by its key, if the lines name the images, as "IMAGE LABEL" of Caffe's val.txt.

    Returns {} if no line names an image.

    Raises:
      ValueError: Some lines name images, but not each image has one line.
    """
    keys = {posixpath.basename(row.key): row.key for row in images} | {row.key: row.key for row in images}
    found: dict[str, str] = {}
    others = []
    for line in lines:
        ways = [
            re.split(r"\s*[,;\t]\s*|\s+", line, maxsplit=1),
            re.split(r"\s*[,;\t]\s*|\s+(?=\S+$)", line, maxsplit=1),
        ]
        pairs = [pair for way in ways if len(way) == 2 for pair in (way, way[::-1])]
        pair = next(((keys[name.strip('"')], label) for name, label in pairs if name.strip('"') in keys), None)
        if pair is None:
            others.append(line)
        elif found.setdefault(*pair) != pair[1]:
            raise ValueError(
                f"{source.label_list!r} has two labels for {pair[0]!r}: {found[pair[0]]!r} and {pair[1]!r}"
            )
    if found and (len(others) > 1 or len(found) < len(images)):  # one line may be a header
        seen = f"{others[-1]!r} names no file" if len(others) > 1 else "not all of the files have a line"
        raise ValueError(
            f"{source.label_list!r} has lines of an image and its label, but {seen} of {source.path!r}; correct the "
            "list, or write it as a .csv with the header image,label: --input=LIST.csv"
        )
    return found


def _row_of_file(file: Member, options: ConvertOptions) -> Row:
    try:
        file.path.encode()
    except UnicodeEncodeError:
        return Row(_shown(file.path), _shown(file.uri)).reject("bad_name", "its name is not UTF-8")
    row = Row(file.path, file.uri, num_bytes=file.num_bytes, version=file.version, number=file.number)
    reason, detail = not_images.reason_of(file.path, options.ignore)
    if reason:
        return row.reject(reason, detail)
    if file.fault:
        return row.reject("bad_member", file.fault)
    if file.lost_target:
        lost = f"it is a hard link to {_shown(file.lost_target)!r}, which is not a file before it in the archive"
        return row._replace(num_bytes=0).reject("missing", lost)
    return row


def _shown(name: str) -> str:
    """Returns a name in which bytes that are not UTF-8 are written as \\x escapes."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _files_below(part: Part, output: str) -> Iterator[Member]:
    """Yields every file of a part of a source, including the members of archives inside it."""
    for found in _files(part, output):
        if isinstance(found, Part):
            yield from _files_below(found, output)
        else:
            yield found


def _files(part: Part, output: str) -> Iterator[Member | Part]:
    """Yields the files of a part of a source, or the parts of which it consists.

    A source is opened as its folders, and a folder with the name of a split as those in it; other folders are listed
    with all that is below them.
    """
    source, folder = part.source, part.folder
    if part.archive or (not folder and source.is_archive):
        opened = _members(part.archive, source.path, output) if part.archive else _members_of_source(source, output)
        for member in opened:
            yield Part(source, archive=member) if member.is_archive else member
        return
    has_classes = not folder or (folder.count("/") == 1 and is_split(folder[:-1]))
    listing = storage.list_level(source.path, folder) if has_classes else storage.list_versions(source.path, folder)
    for path, size, version in listing:
        file = Member(path, "", size, 0, version=version)  # locate() sets the URI
        if path.endswith("/"):
            yield Part(source, path)
        elif archives.without_ending(path):
            yield Part(source, archive=file)
        elif path.endswith(".parquet") and has_images(f"{source.path}/{path}"):
            raise ValueError(
                f"{source.path!r} has {path!r}, which is Parquet with images, as Hugging Face's datasets are; add "
                "--record=huggingface"
            )
        else:
            yield file


def _members(archive: Member, root: str, output: str) -> Iterator[Member]:
    """Yields every file of what may be an archive within a source; a file that is none itself."""
    uri = name = archive.uri or f"{root}/{archive.path}"
    if not archive.uri:
        if not archives.is_archive(uri):
            yield archive
            return
        uri = _tar(uri, output)
    folder = archives.without_ending(archive.path)
    for member in archives.members(uri, name=name):
        _refuse_webdataset(name, member)
        yield member._replace(path=f"{folder}/{member.path}", fault=member.fault or archive.fault)


def _tar(uri: str, output: str) -> str:
    """Returns the path of the tar in what may be a compressed one, by its name: to look costs two requests."""
    return uri if uri.endswith(".tar") else decompressed(uri, output)


def _refuse_webdataset(archive: str, member: Member) -> None:
    if member.path.endswith(".cls"):
        raise ValueError(
            f"{archive!r} has {member.path!r}, the label of an image, as WebDataset's archives have; add "
            "--record=webdataset"
        )


def _members_of_source(source: Source, output: str) -> Iterator[Member]:
    """Yields the files of an archive without the folder above all class folders, as `tar cf flowers.tar flowers` adds.

    Files of macOS and Windows may lie anywhere beside it, and files that are no images by their names, such as a
    README, above the class folders. Archives in it are yielded as they are, unless it depends on their files whether
    there is such a folder. While all files lie in one folder, they are kept in a temporary file, so that headers are
    read only once.
    """
    is_known, top = False, None
    members = (
        zips.members(source.path)
        if source.path.endswith(".zip")
        else archives.members(_tar(source.path, output), lambda name: is_known or "/" in name, name=source.path)
    )
    with tempfile.TemporaryFile() as held:
        for member in members:
            _refuse_webdataset(source.path, member)
            folder, depth = member.path.partition("/")[0], member.path.count("/") + member.is_archive
            is_aside = bool(not_images.creator(member.path)) or (
                depth < 2 and not member.is_archive and not not_images.is_image_by_name(member.path)
            )
            top = folder if top is None and not is_aside else top
            if member.fault or not (is_aside or (depth > 1 and folder == top)):
                is_known = True
                yield from _held(held)
                yield member
                for other in members:
                    _refuse_webdataset(source.path, other)
                    yield other
                return
            marshal.dump(tuple(member), held)
        is_kept = not top or (not source.split and is_split(top))  # a split's name is not that of a class
        above = "" if is_kept else f"{top}/"
        yield from (member._replace(path=member.path.removeprefix(above)) for member in _held(held))


def _held(file: IO[bytes]) -> Iterator[Member]:
    file.seek(0)
    with contextlib.suppress(EOFError):
        while True:
            yield Member(*marshal.load(file))
