"""TFRecords that other programs have written, as rows: each record is read once to be listed, and again to be stored.

    train-00000-of-01024 ──▶ tf.train.Example ──▶ Row(key, FILE#record=BEGIN-END:FEATURE, class name, split)

The format is given by --record: the name of one of options.FORMATS, or the features by name. Labels that are numbers
need the names of the classes, from a feature or from --labels: sorted as names, numbers would be other labels, as "10"
comes before "2".
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, RecordFormat, Source
from beam_pipelines.sources.folders import SPLIT_FOLDERS
from beam_pipelines.sources.rows import Row
from tpu_input.dataset_format.records import FRAME_BYTES, read_frames
from tpu_input.dataset_format.tfrecord import Example

# train-00000-of-01024, and imagenet2012-train.tfrecord-00000-of-01024 as TFDS writes it.
_SHARD = re.compile(r"(?:.*[-_])?([A-Za-z]+)(?:\.tfrecords?)?-\d+-of-\d+(?:\.tfrecords?)?", re.DOTALL)
_IS_TFRECORD = re.compile(r".*(\.tfrecords?$|\.tfrecords?-\d+-of-\d+$|-\d+-of-\d+$)", re.DOTALL)
_GZIP = b"\x1f\x8b"


def list_tfrecords(source: Source) -> list[str]:
    """Returns the paths, relative to the folder of a source, of the TFRecords that it names, sorted."""
    folder, pattern = source.folder, posixpath.basename(source.path)
    found = []
    for path, _, _ in storage.list_level(folder):
        is_meant = fnmatch.fnmatchcase(path, pattern) if source.is_pattern else _IS_TFRECORD.fullmatch(path)
        if is_meant and not path.endswith("/"):
            found.append(path)
    return sorted(found)


def check_files(source: Source, classes: tuple[str, ...] | None = None) -> None:
    """Checks that there are TFRecords, and that the first of them has records of the format.

    Args:
      source: The source.
      classes: Class names in label order, which may be none; None if it is not known whether they are given.

    Raises:
      ValueError: There are none, or the first record lacks a feature.
    """
    storage.check(source.folder)
    names = list_tfrecords(source)
    if not names:
        raise ValueError(
            f"input {source.path!r} names no TFRecords; it must be a folder of files such as train-00000-of-00042 or "
            "x.tfrecord, or a pattern such as 'FOLDER/train-*'"
        )
    of_format = RecordFormat.parse(source.record)
    with _opened(f"{source.folder}/{names[0]}") as file:
        for _, payload in read_frames(file):
            features = Example.FromString(payload).features.feature
            needed = [name for name in (of_format.image, of_format.label, of_format.name, of_format.key) if name]
            if missing := [name for name in needed if name not in features]:
                raise ValueError(
                    f"{names[0]!r} has records without the feature {missing[0]!r}, only with "
                    f"{', '.join(sorted(features))}; name the features: --record=image=NAME,label=NAME"
                )
            is_number = bool(features[of_format.label].int64_list.value)
            if is_number and not of_format.name and classes == ():
                raise ValueError(
                    f"the labels of {source.path!r} are numbers; name the classes with --labels=FILE, one per line in "
                    "the order of the numbers, or name the feature with the class name: --record=…,name=FEATURE"
                )
            return


def _opened(path: str) -> Any:
    file = storage.open_file(path)
    if file.read(2) == _GZIP:
        file.close()
        raise ValueError(f"{path!r} is compressed with gzip; decompress it first")
    file.seek(0)
    return file


def rows_of_tfrecords(source: Source, name: str, options: ConvertOptions) -> Iterator[Row]:
    """Yields a row for each record of a file.

    Raises:
      ValueError: The file is damaged or is no TFRecord file, so that records behind the damage cannot be found.
    """
    of_format, path = RecordFormat.parse(source.record), f"{source.folder}/{name}"
    match = _SHARD.fullmatch(name)
    split = SPLIT_FOLDERS.get(match[1].lower(), "") if match else ""
    _, version = storage.look(storage.record_uri(path, 0, 0))
    with _opened(path) as file:
        frames = enumerate(read_frames(file))
        while True:
            try:
                number, (offset, payload) = next(frames)
            except StopIteration:
                return
            except ValueError as error:
                raise ValueError(f"{path!r} is no complete TFRecord file: {error}; copy it again") from error
            size = len(payload) + FRAME_BYTES
            uri = storage.record_uri(path, offset, size, of_format.image)
            row = Row(f"{name}/{number:06d}", uri, split=split, num_bytes=size, version=version)
            yield _labelled(row, payload, of_format, options.labels)


def _labelled(row: Row, payload: bytes, of_format: RecordFormat, classes: tuple[str, ...]) -> Row:
    """Returns the row of a record with its key and label, or with the reason why it has none."""
    try:
        features = Example.FromString(payload).features.feature
    except Exception as error:  # the public location of protobuf's DecodeError differs between its versions
        return row.reject("bad_record", f"it is no tf.train.Example: {error}")
    if len(features[of_format.image].bytes_list.value) != 1:
        return row.reject("bad_record", f"it has no image in the feature {of_format.image!r}")
    try:
        if of_format.key and (found := _text(features[of_format.key])):
            row = row._replace(key=f"{row.key.rpartition('/')[0]}/{posixpath.basename(found)}")
        if name := _text(features[of_format.name or of_format.label]):
            return row._replace(label=name)
    except UnicodeDecodeError as error:
        return row.reject("bad_record", f"a text in it is not UTF-8: {error}")
    numbers = features[of_format.label].int64_list.value
    if of_format.name or len(numbers) != 1:
        return row.reject("no_label", f"it has no class in the feature {of_format.name or of_format.label!r}")
    number = numbers[0] - of_format.first_label
    if not 0 <= number < len(classes):
        return row.reject("unknown_label", f"its label is {numbers[0]}, but --labels has {len(classes)} names")
    return row._replace(label=classes[number])


def _text(feature: Any) -> str:
    values = feature.bytes_list.value
    text: str = values[0].decode() if len(values) == 1 else ""
    return text
