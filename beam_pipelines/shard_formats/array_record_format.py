"""ArrayRecord, which grain reads: tf.train.Examples with the features of a TFRecord, and random access to each.

array_record's writer needs a file of this machine, from which the shard is copied.
"""

from __future__ import annotations

import os
import shutil
import tempfile

from beam_pipelines.shard_formats.shard_format import Columns, Schema, ShardFile, ShardFormat, Writer
from tpu_input.dataset_format.records import Record, encode

# One record a chunk, so that one is read without others; images do not become smaller.
_OPTIONS = "group_size:1,uncompressed"
_PIECE_BYTES = 1 << 20


class _Records(Writer):
    """Writes records to a temporary file with array_record's own writer, and copies it."""

    def __init__(self, file: ShardFile, schema: Schema) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        super().__init__(file, schema)
        self._folder = tempfile.TemporaryDirectory()
        self._path = os.path.join(self._folder.name, "shard")
        self._writer = ArrayRecordWriter(self._path, _OPTIONS)

    def add(self, data: memoryview, columns: Columns, crc32c: int) -> None:
        for begin, num_bytes in zip(columns[3], columns[4], strict=True):  # offset and length, of IndexRow
            self._writer.write(bytes(data[begin : begin + num_bytes]))

    def close(self) -> None:
        self._writer.close()
        with self._folder, open(self._path, "rb") as content:
            shutil.copyfileobj(content, self.file, _PIECE_BYTES)


class ArrayRecord(ShardFormat):
    """ArrayRecord for grain."""

    name = library = "array_record"
    purpose = "for grain"
    writer = _Records

    def encode(self, record: Record, schema: Schema) -> bytes:
        return encode(record)
