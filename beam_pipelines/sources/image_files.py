"""Folders of class folders, and archives of them.

A folder is opened as the class folders and archives in it. Labels come from the folders, or from the paths by
--label_pattern.
"""

from __future__ import annotations

import contextlib
import itertools
import marshal
import os
import re
import tempfile
from collections.abc import Iterator
from typing import IO

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources import archives, not_images, zips
from beam_pipelines.sources.archives import Member
from beam_pipelines.sources.folders import is_split
from beam_pipelines.sources.input_kinds import InputKind, Part
from beam_pipelines.sources.records.parquet_files import has_images
from beam_pipelines.sources.row_columns import BATCH_ROWS, Batch, batched
from beam_pipelines.sources.rows import Row, escaped
from beam_pipelines.sources.unpacking import decompressed


class Folder(InputKind):
    """A folder of class folders, of archives, or of images whose paths have their class."""

    name = "a folder of class folders"

    def is_kind(self, source: Source) -> bool:
        return True

    def has_paths_as_keys(self, source: Source) -> bool:
        return not source.is_archive

    def check(self, source: Source, options: ConvertOptions) -> None:
        if not source.is_archive and os.path.isfile(source.path):
            raise ValueError(
                f"input {source.path!r} is a file of unknown type; it must be a folder of class folders, a .tar, "
                "a .tar.gz, a .zip, a .csv, a .tsv, a .jsonl, or records (--record)"
            )

    def rows(self, part: Part, options: ConvertOptions) -> Iterator[Row | Part]:
        for file in files_of_part(part, options):
            if isinstance(file, Part):
                yield file
            else:
                yield _with_pattern(row_of_file(file, options), part.source.label_pattern)

    def batches(self, part: Part, options: ConvertOptions) -> Iterator[Batch | Part]:
        source = part.source
        if part.archive or (not part.folder and source.is_archive) or source.label_pattern or options.ignore:
            yield from super().batches(part, options)
            return
        for entries in batched(_listing(part), BATCH_ROWS):
            # Most files are images by their names; only of the others is a row made here.
            images = [not_images.is_ordinary_image(path) for path, _, _ in entries]
            rows = []
            for item in (_file(part, *file) for file, is_image in zip(entries, images, strict=True) if not is_image):
                if isinstance(item, Part):
                    yield item
                else:
                    rows.append(row_of_file(item, options))
            if rows:
                yield Batch.from_rows(rows)
            if any(images):
                keys, sizes, versions = map(list, zip(*itertools.compress(entries, images), strict=True))
                yield Batch(len(keys), {"key": keys, "num_bytes": sizes}).replace(version=versions)


class Archive(Folder):
    """A tar, also compressed, or a .zip, of class folders."""

    name = "an archive of class folders"

    def is_kind(self, source: Source) -> bool:
        return source.is_archive


def _with_pattern(row: Row, pattern: str) -> Row:
    """Returns the row of a file with the label that a pattern finds in its path."""
    if not pattern or row.reason:
        return row
    match = re.search(pattern, row.key)
    if not match or not match[1]:
        return row.reject("no_label", f"--label_pattern={pattern} does not match its path")
    return row._replace(label=match[1])


def row_of_file(file: Member, options: ConvertOptions) -> Row:
    if not file.path.isascii() and (path := escaped(file.path)) != file.path:
        return Row(path, escaped(file.uri)).reject("bad_name", "its name is not UTF-8")
    row = Row(file.path, file.uri, num_bytes=file.num_bytes, version=file.version, number=file.number)
    reason, detail = not_images.reason_of(file.path, options.ignore)
    if reason:
        return row.reject(reason, detail)
    if file.fault:
        return row.reject("bad_member", file.fault)
    if file.lost_target:
        message = f"it is a hard link to {escaped(file.lost_target)!r}, which is not a file before it in the archive"
        return row._replace(num_bytes=0).reject("missing", message)
    return row


def files_below(part: Part, options: ConvertOptions) -> Iterator[Member]:
    """Yields every file of a part of a source, including the members of archives inside it."""
    for item in files_of_part(part, options):
        if isinstance(item, Part):
            yield from files_below(item, options)
        else:
            yield item


def files_of_part(part: Part, options: ConvertOptions) -> Iterator[Member | Part]:
    """Yields the files of a part of a source, or its parts if it has any.

    A source is opened as its folders, and a folder with the name of a split as those in it; other folders are listed
    with all that is below them.
    """
    source = part.source
    if part.archive or (not part.folder and source.is_archive):
        members = _members(part.archive, source.path, options) if part.archive else _members_of_source(source, options)
        for member in members:
            yield Part(source, archive=member) if member.is_archive else member
        return
    yield from (_file(part, *file) for file in _listing(part))


def _listing(part: Part) -> Iterator[tuple[str, int, int]]:
    """Returns what lies in a folder: (path, bytes, version) of files, and of folders that are parts."""
    root, folder = part.source.path, part.folder
    has_classes = not folder or (folder.count("/") == 1 and is_split(folder[:-1]))
    return storage.list_level(root, folder) if has_classes else storage.list_versions(root, folder)


def _file(part: Part, path: str, num_bytes: int, version: int) -> Member | Part:
    source, file = part.source, Member(path, "", num_bytes, 0, version=version)  # locate() sets the URI
    if path.endswith("/"):
        return Part(source, path)
    if archives.without_ending(path):
        return Part(source, archive=file)
    if path.endswith(".parquet") and has_images(f"{source.path}/{path}"):
        raise ValueError(
            f"{source.path!r} has {path!r}, which is Parquet with images, as Hugging Face's datasets are; add "
            "--record=huggingface"
        )
    return file


def _members(archive: Member, root: str, options: ConvertOptions) -> Iterator[Member]:
    """Yields every file of what may be an archive within a source; a file that is none itself."""
    uri = name = archive.uri or f"{root}/{archive.path}"
    if not archive.uri:
        if not archives.is_archive(uri):
            yield archive
            return
        uri = _tar(uri, options.output)
    folder = archives.without_ending(archive.path)
    for member in _not_webdataset(name, archives.members(uri, name=name), options):
        yield member._replace(path=f"{folder}/{member.path}", fault=member.fault or archive.fault)


def _tar(uri: str, output: str) -> str:
    """Returns the path of the tar in what may be a compressed one, by its name: to look costs two requests."""
    return uri if uri.endswith(".tar") else decompressed(uri, output)


def _not_webdataset(archive: str, members: Iterator[Member], options: ConvertOptions) -> Iterator[Member]:
    """Yields members; raises ValueError if one is a label as WebDataset has them, and --ignore does not name it."""
    for member in members:
        if member.path.endswith(".cls") and not not_images.ignored_by(member.path, options.ignore):
            raise ValueError(
                f"{archive!r} has {member.path!r}, the label of an image in WebDataset's archives; add "
                "--record=webdataset to read such files; or if the folder or the name of the archive is the class, add "
                "--ignore='*.cls'"
            )
        yield member


def _members_of_source(source: Source, options: ConvertOptions) -> Iterator[Member]:
    """Yields the files of an archive without the folder above all class folders, as `tar cf flowers.tar flowers` adds.

    System files may lie anywhere, and files that are not images by name, such as a README, above the class folders.
    Nested archives are yielded unopened, unless their files decide whether there is such a folder. While all files lie
    in one folder, they are kept in a temporary file, so that headers are read only once.
    """
    is_known, top = False, None
    members = (
        zips.members(source.path)
        if source.path.endswith(".zip")
        else archives.members(_tar(source.path, options.output), lambda name: is_known or "/" in name, name=source.path)
    )
    members = _not_webdataset(source.path, members, options)
    with tempfile.TemporaryFile() as spool:
        for member in members:
            folder, depth = member.path.partition("/")[0], member.path.count("/") + member.is_archive
            is_aside = bool(not_images.creator(member.path)) or (
                depth < 2 and not member.is_archive and not not_images.is_image_by_name(member.path)
            )
            top = folder if top is None and not is_aside else top
            if member.fault or not (is_aside or (depth > 1 and folder == top)):
                is_known = True
                yield from _read_spool(spool)
                yield member
                yield from members
                return
            marshal.dump(tuple(member), spool)
        keeps_folder = not top or (not source.split and is_split(top))  # a split's name is not a class's
        prefix = "" if keeps_folder else f"{top}/"
        yield from (member._replace(path=member.path.removeprefix(prefix)) for member in _read_spool(spool))


def _read_spool(file: IO[bytes]) -> Iterator[Member]:
    file.seek(0)
    with contextlib.suppress(EOFError):
        while True:
            yield Member(*marshal.load(file))
