"""TFRecords that other programs have written, as rows: each record is read once to be listed, and again to be stored.

    train-00000-of-01024 ──▶ tf.train.Example ──▶ Row(key, FILE#record=BEGIN-END:FEATURE, class name)

Files compressed with gzip are decompressed once to a working file of the conversion.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import IO, Any

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, RecordFormat
from beam_pipelines.sources.rows import Row, label_row
from beam_pipelines.sources.unpacking import decompressed
from tpu_input.dataset_format.record_spec import IMAGE_KEY, LABEL_KEY
from tpu_input.dataset_format.records import FEATURES, FRAME_BYTES, read_frames
from tpu_input.dataset_format.tfrecord import Compressed, Example

_GZIP = b"\x1f\x8b"


def check_first(path: str, record_format: RecordFormat, unlabelled: bool) -> None:
    """Raises ValueError if a feature is missing in the first record."""
    image, label = record_format.image or IMAGE_KEY, record_format.label or LABEL_KEY
    if (features := _first_features(path)) is None:
        return
    needed = (image, *(() if unlabelled else (label, record_format.name)), record_format.key)
    if missing := [name for name in needed if name and name not in features]:
        raise ValueError(
            f"{posixpath.basename(path)!r} has records without the feature {missing[0]!r}, only with "
            f"{', '.join(sorted(features))}; name the features: --record=image=NAME,label=NAME"
        )


def not_stored(path: str, record_format: RecordFormat, options: ConvertOptions) -> tuple[str, list[str]]:
    """Returns what the parts of a record are called, and which of the first record are neither stored nor read.

    Features in FEATURES are stored as conversion finds them.
    """
    used = {record_format.image, record_format.key, *FEATURES}
    if options.label_kind.needs_classes:
        used |= {record_format.label, record_format.name}
    return "features", sorted((_first_features(path) or {}).keys() - used)


def _first_features(path: str) -> Mapping[str, Any] | None:
    """Returns the features of the first record; None without one, or if the file is decompressed later."""
    with storage.open_file(path) as file:
        if file.read(2) == _GZIP:
            return None
        file.seek(0)
        _, payload = next(_frames(file, path), (0, None))
    return None if payload is None else Example.FromString(payload).features.feature


def rows_of_file(folder: str, name: str, record_format: RecordFormat, options: ConvertOptions) -> Iterator[Row]:
    """Yields a row for each record of a file.

    Raises:
      ValueError: The file is damaged or is not a TFRecord file, so that records behind the damage cannot be found.
    """
    path = decompressed(f"{folder}/{name}", options.output)
    _, version = storage.look(storage.record_uri(path, 0, 0))
    with storage.open_file(path) as file:
        for number, (offset, payload) in enumerate(_frames(file, f"{folder}/{name}")):
            size = len(payload) + FRAME_BYTES
            uri = storage.record_uri(path, offset, size, record_format.image or IMAGE_KEY)
            row = Row(f"{name}/{number:06d}", uri, num_bytes=size, version=version)
            yield _labelled(row, payload, record_format, options)


def _frames(file: IO[bytes], path: str) -> Iterator[tuple[int, bytes]]:
    try:
        yield from read_frames(file)
    except Compressed as error:
        raise ValueError(f"{path!r} {error}") from None
    except ValueError as error:
        raise ValueError(f"{path!r} is not a complete TFRecord file: {error}; copy it again") from error


def _labelled(row: Row, payload: bytes, record_format: RecordFormat, options: ConvertOptions) -> Row:
    """Returns the row of a record with its key and label, or with the reason why it has none."""
    image, label = record_format.image or IMAGE_KEY, record_format.label or LABEL_KEY
    try:
        features = Example.FromString(payload).features.feature
    except Exception as error:  # the public location of protobuf's DecodeError differs between its versions
        return row.reject("bad_record", f"it is not a tf.train.Example: {error}")
    kind = features[label].WhichOneof("kind") if label in features else "nothing"  # None: a list without values
    if len(features[image].bytes_list.value) != 1:
        return row.reject("bad_record", f"it has no image in the feature {image!r}")
    try:
        if record_format.key and (file_name := _text(features[record_format.key])):
            row = row._replace(key=f"{row.key.rpartition('/')[0]}/{posixpath.basename(file_name)}")
        if not options.label_kind.needs_classes:
            return label_row(row, "", options)
        if names := [value.decode() for value in features[record_format.name or label].bytes_list.value]:
            return label_row(row, names, options)
    except UnicodeDecodeError as error:
        return row.reject("bad_record", f"a text in it is not UTF-8: {error}")
    numbers = features[label].int64_list.value
    is_empty = options.label_kind.is_list and kind in (None, "int64_list", "bytes_list")
    if record_format.name or not (numbers or is_empty):
        return row.reject("no_label", f"it has no class in the feature {record_format.name or label!r}")
    return label_row(row, list(numbers), options)


def _text(feature: Any) -> str:
    values = feature.bytes_list.value
    text: str = values[0].decode() if len(values) == 1 else ""
    return text
