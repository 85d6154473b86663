"""WebDataset: tars in which files that follow each other and share a name up to its first dot are one example.

    000001.jpg, 000001.cls, 000001.json ──▶ Row(SHARD/000001.jpg, SHARD#bytes=BEGIN-END, class)

Of labels, the content is read with the headers of the tar; of images, nothing is.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, RecordFormat
from beam_pipelines.sources import archives
from beam_pipelines.sources.rows import IMAGE_ENDINGS, Row, escaped, label_row, with_features
from beam_pipelines.sources.unpacking import decompressed
from tpu_input.dataset_format.split_names import split_column

_LABEL = "cls"
_WHOLE_NUMBER = re.compile(r"-?\d{1,9}")


_FIRST_MEMBERS = 20  # of a tar, among which a label is looked for


def first_label(uri: str) -> str:
    """Returns the path of an image's label among the first members of a tar; "" if there is none."""
    with storage.open_headers(uri) as file:
        if not archives.is_header(file.read(512)):
            return ""  # it is compressed, and is read later
    paths: list[str] = []
    with contextlib.suppress(ValueError):  # of a tar that is not complete, as listing will say
        paths += (member.path for member in itertools.islice(archives.members(uri), _FIRST_MEMBERS))
    images = {_stem(path) for path in paths if _ending(path) != _LABEL}
    return next((path for path in paths if _ending(path) == _LABEL and _stem(path) in images), "")


def may_be_labels(uri: str) -> list[str]:
    """Returns the endings of the files next to images of the same name, among the first members of a tar."""
    paths: list[str] = []
    with contextlib.suppress(ValueError):
        paths += (member.path for member in itertools.islice(archives.members(uri), _FIRST_MEMBERS))
    images = {_stem(path) for path in paths if _is_image(path, RecordFormat())}
    others = {_ending(path) for path in paths if _stem(path) in images and not _is_image(path, RecordFormat())}
    return sorted(filter(None, others))


def check_first(path: str, record_format: RecordFormat, unlabelled: bool) -> None:
    """Raises ValueError if a shard is empty, or its first example has no label."""
    with storage.open_headers(path) as file:
        if not archives.is_header(file.read(512)):
            return  # it is decompressed by the first step of the conversion
    first = next(_examples(path, path, record_format), None)
    if first is None:
        raise ValueError(f"{path!r} is an empty archive; it must have examples such as 0.jpg and 0.cls")
    endings, ending = {_ending(member.path) for member in first}, _label_ending(record_format)
    if not unlabelled and ending not in endings:
        raise ValueError(
            f"{path!r} has examples without a file .{ending} for the label, only with "
            f"{', '.join(f'.{suffix}' for suffix in sorted(endings))}; name its ending: --record=webdataset,label=txt, "
            "or a field of a JSON file: --record=webdataset,label=json.FIELD"
        )


def not_stored(path: str, record_format: RecordFormat, options: ConvertOptions) -> tuple[str, list[str]]:
    """Returns what the parts of an example are called, and which of the first example are neither stored nor read.

    Of a compressed shard, which is decompressed later, none are known.
    """
    with storage.open_headers(path) as file:
        if not archives.is_header(file.read(512)):
            return "parts", []
    members = next(_examples(path, path, record_format))
    label = "" if not options.label_kind.needs_classes else record_format.label or _LABEL
    unstored = []
    for member in members:
        ending = _ending(member.path)
        if ending == "json":
            used = {label.partition(".")[2], split_column(_fields(members)), *dict(options.features)}
            unstored += [f"{ending}.{name}" for name in _fields(members) if name not in used]
        elif ending != label.lower() and not _is_image(member.path, record_format):
            unstored.append(ending)
    return "parts", unstored


def rows_of_file(folder: str, name: str, record_format: RecordFormat, options: ConvertOptions) -> Iterator[Row]:
    """Yields a row for each example of a shard.

    Raises:
      ValueError: It is not a complete tar.
    """
    path = f"{folder}/{name}"
    for members in _examples(decompressed(path, options.output), path, record_format):
        yield _row(members, name, record_format, options)


def _examples(uri: str, path: str, record_format: RecordFormat) -> Iterator[list[archives.Member]]:
    endings = (f".{_label_ending(record_format)}", ".json")
    members = archives.members(uri, with_content=lambda name: name.lower().endswith(endings), name=path)
    for _, example in itertools.groupby(members, lambda member: _stem(member.path)):
        yield list(example)


def _row(members: list[archives.Member], name: str, record_format: RecordFormat, options: ConvertOptions) -> Row:
    images = [member for member in members if _is_image(member.path, record_format)]
    image = images[0] if images else members[0]
    key = f"{name}/{image.path}"
    if not key.isascii() and (escaped_key := escaped(key)) != key:
        return Row(escaped_key).reject("bad_name", "its name is not UTF-8")
    row = Row(key, image.uri, num_bytes=max(image.num_bytes, 0), version=image.version, number=image.number)
    if len(images) != 1:
        endings = ", ".join(_ending(member.path) for member in (images or members)[:5])
        problem = f"{len(images)} images" if images else "no image"
        return row.reject("bad_record", f"it has {problem}: {endings}; name one: --record=webdataset,image=ENDING")
    if image.fault or image.num_bytes < 0:
        return row.reject("bad_member", image.fault or "it is a link, which has no bytes of its own")
    fields = _fields(members)
    if record_format.id:
        record_key = fields.get(record_format.id.removeprefix("json."))
        if not isinstance(record_key, str) or not record_key:
            return row.reject("bad_record", f"it has no key in {record_format.id}")
        row = row._replace(key=record_key)
    split = fields.get(split_column(fields))
    if split is not None and not isinstance(split, str):
        return row.reject("bad_split", f"the split in its .json is {json.dumps(split)[:80]}; it must be text")
    row = with_features(row._replace(split=split or ""), fields, options)
    if row.reason:
        return row
    if not options.label_kind.needs_classes:
        return label_row(row, "", options)
    try:
        label = _label(members, record_format)
    except ValueError as error:
        return row.reject("bad_record", str(error))
    if label is None:
        return row.reject("no_label", f"it has no .{_label_ending(record_format)} of at most 1 MiB")
    return label_row(row, label, options)


def _label(members: list[archives.Member], record_format: RecordFormat) -> str | int | list[str | int] | None:
    """Returns the label of an example, None if it has none; raises ValueError if it cannot be read."""
    ending, field = _label_ending(record_format), record_format.label.partition(".")[2]
    contents = [member.content for member in members if _ending(member.path) == ending and member.content]
    if not contents:
        return None
    try:
        text = contents[0].decode().strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"its .{ending} is not UTF-8: {error}") from error
    if not field:
        return int(text) if _WHOLE_NUMBER.fullmatch(text) else text or None
    try:
        value = json.loads(text)[field]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"its .{ending} has no field {field!r}: {type(error).__name__}: {error}") from error
    if isinstance(value, list) and all(isinstance(item, int | str) and not isinstance(item, bool) for item in value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(
            f"the field {field!r} of its .{ending} is {json.dumps(value)[:80]}; it must be text or a number"
        )
    return value or None if isinstance(value, str) else value


def _fields(members: list[archives.Member]) -> dict[str, Any]:
    """Returns the fields of the JSON of an example; {} if it has none that can be read."""
    for member in members:
        if _ending(member.path) == "json":
            with contextlib.suppress(ValueError, RecursionError):
                fields = json.loads(member.content)
                return fields if isinstance(fields, dict) else {}
    return {}


def _label_ending(record_format: RecordFormat) -> str:
    return (record_format.label or _LABEL).partition(".")[0].lower()


def _stem(path: str) -> str:
    folder, _, base = path.rpartition("/")
    return f"{folder}/{base.partition('.')[0]}"


def _ending(path: str) -> str:
    return posixpath.basename(path).partition(".")[2].lower()


def _is_image(path: str, record_format: RecordFormat) -> bool:
    ending = _ending(path)
    return (
        ending == record_format.image.lower()
        if record_format.image
        else f".{ending.rpartition('.')[2]}" in IMAGE_ENDINGS
    )
