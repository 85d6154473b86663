"""The work of a unit: its images are read, checked, encoded and framed; what comes out goes to the shard as it is.

    Unit ──begin()──▶ rows whose files are being read ──UnitWriter()──▶ WrittenUnit

It is all that needs many cores. Worker processes import this module alone, which has neither Beam nor Arrow.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import google_crc32c

from beam_pipelines.conversion.plan import is_measured
from beam_pipelines.conversion.receipts import Receipt, Rejection
from beam_pipelines.conversion.row_lines import Unit, rows_of
from beam_pipelines.options import WORK_NAME, ConvertOptions
from beam_pipelines.shard_formats.all_formats import EXPORTS, SHARD_FORMATS
from beam_pipelines.shard_formats.shard_format import Schema
from beam_pipelines.sources.read_ahead import Loaded, Reader, checked
from beam_pipelines.sources.rows import Row, features_of
from beam_pipelines.sources.url_names import origin
from beam_pipelines.sources.url_reading import UrlReader, url_reader
from tpu_input.dataset_format.label_kinds import Label
from tpu_input.dataset_format.manifest import FeatureType
from tpu_input.dataset_format.records import Record
from tpu_input.stored_images.check import CheckedImage, Rejected, check_image


class WrittenUnit(NamedTuple):
    """What a unit adds to its shard.

    Attributes:
      data: Bytes of its records as the format of the shard encodes them, one after another.
      crc32c: CRC-32C of them.
      index_columns: Columns of the index in the order of IndexRow's fields; none without records. Offsets begin at 0.
      receipt: Its part of the shard's receipt.
      num_inputs: Number of its rows.
    """

    data: Any  # pickle.PickleBuffer; from another process, memoryview
    crc32c: int
    index_columns: Sequence[Sequence[Any]]
    receipt: Receipt
    num_inputs: int

    def shifted_index(self, begin: int) -> Sequence[Sequence[Any]]:
        """Returns the columns of the index with the offsets in a shard where the first record is at `begin`."""
        columns = list(self.index_columns)
        columns[_OFFSET] = [begin + offset for offset in columns[_OFFSET]]
        return columns


@dataclasses.dataclass(frozen=True)
class UnitWriter:
    """Function for executors: it makes the records of a unit.

    Attributes:
      options: Options of the conversion: output, seed, labels, first_label, format and images are used.
      classes: Class names in label order.
      num_images: Number of images of the split, from which it follows which of them the statistics include.
      num_processes: Number of processes of the machine that make records, which share the limits of URLs.
    """

    options: ConvertOptions
    classes: tuple[str, ...]
    num_images: int
    num_processes: int = 1
    reader: Reader = dataclasses.field(default_factory=Reader, repr=False, compare=False)

    def begin(self, unit: Unit) -> Iterator[Loaded]:
        """Starts reading the files of a unit if that takes time; returns its rows with the bytes, in order."""
        return self.reader.begin(rows_of(unit), self._urls)

    @functools.cached_property
    def _urls(self) -> UrlReader:
        return url_reader(self.options.urls, self.num_processes, is_patient=self.options.max_rejected >= 1)

    def __call__(self, loaded: Iterator[Loaded]) -> WrittenUnit:
        receipt, parts, index = Receipt(""), list[bytes](), list[tuple[Any, ...]]()
        num_inputs = 0
        for row, content in loaded:
            num_inputs += 1
            uri = _origin(row.uri, self.options.output)
            framed = checked(row, content, self._framed)
            if isinstance(framed, Rejected):
                receipt.rejected.append(Rejection(row.key, uri, framed.reason, framed.detail))
                continue
            parts.append(framed.data)
            index.append(_index_row(row, uri, framed, receipt.num_bytes))
            receipt.add(framed.image, framed.label, len(framed.data))
        data = b"".join(parts)
        columns = tuple(zip(*index, strict=True))
        return WrittenUnit(pickle.PickleBuffer(data), google_crc32c.value(data), columns, receipt, num_inputs)

    @functools.cached_property
    def _labels(self) -> dict[str, int]:
        return {class_name: label for label, class_name in enumerate(self.classes)}

    @functools.cached_property
    def _schema(self) -> Schema:
        return schema_of(self.options, self.classes)

    def _framed(self, row: Row, data: bytes) -> _Framed:
        images, is_export = self.options.images, self.options.format in EXPORTS  # which has the dataset's statistics
        with_statistics = not is_export and is_measured(row.key, self.options.seed, self.num_images, images.check)
        image = check_image(data, self.options.images, with_statistics)
        sha256, kind = hashlib.sha256(image.encoded).hexdigest(), self.options.label_kind
        names = sorted(kind.names(row.label), key=self._labels.__getitem__)
        label, class_name = kind.label([self._labels[name] for name in names]), kind.class_name(names)
        size, features = (image.height, image.width, image.channels), features_of(row)
        record = Record(row.key, image.encoded, *size, label, class_name, sha256, features)
        return _Framed(image, label, sha256, SHARD_FORMATS[self.options.format].encode(record, self._schema))


def schema_of(options: ConvertOptions, classes: tuple[str, ...]) -> Schema:
    """Returns what the records of a conversion have in common."""
    features = {name: FeatureType.parse(text) for name, text in sorted(options.features)}
    return Schema(classes, options.first_label, options.label_kind, features)


class _Framed(NamedTuple):
    """An image with its label, the SHA-256 of its file, and the bytes that its record has in the shard."""

    image: CheckedImage
    label: Label
    sha256: str
    data: bytes


def _origin(uri: str, output: str) -> str:
    """Returns where an image comes from: its URI, or "" if the pipeline has handed it over in a working file.

    Of a URL, neither user info nor query are stored, in which secrets may be.
    """
    return "" if uri.startswith(f"{output}/{WORK_NAME}/images-") else origin(uri)


_OFFSET = 3  # column of an index row


def _index_row(row: Row, uri: str, framed: _Framed, offset: int) -> tuple[Any, ...]:
    """Returns the fields of an IndexRow, whose module needs Arrow."""
    image = framed.image
    source_width, source_height = image.source_size or (image.width, image.height)
    record = row.key, uri, framed.label, offset, len(framed.data), image.height, image.width, framed.sha256
    return (*record, image.dhash, row.num_bytes, source_height, source_width, row.features)
