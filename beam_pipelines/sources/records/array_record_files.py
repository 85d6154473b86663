"""ArrayRecord of an export as rows, whose images are copied once: SHARD ──▶ Row(key, COPY#bytes=BEGIN-END, class)."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, RecordFormat
from beam_pipelines.shard_formats.all_formats import EXPORTS
from beam_pipelines.shard_formats.shard_format import Schema
from beam_pipelines.sources.records.parquet_files import copied_rows
from beam_pipelines.sources.rows import Row, label_row, with_features
from tpu_input.dataset_format.label_kinds import stored_kind
from tpu_input.dataset_format.manifest import FeatureType
from tpu_input.dataset_format.records import decode

_ROWS_A_BATCH = 64
_ROW_BYTES = 1 << 10  # of memory that a row takes
_PIECE_BYTES = 1 << 20


def rows_of_file(folder: str, name: str, record_format: RecordFormat, options: ConvertOptions) -> Iterator[Row]:
    """Yields a row for each record of a shard.

    Raises:
      ValueError: The shard is damaged, was not made by an export, or array_record is missing.
    """
    path = f"{folder}/{name}"
    EXPORTS["array_record"].check()
    return copied_rows(path, options, lambda write: _rows(path, options, write))


def _rows(path: str, options: ConvertOptions, write: Callable[[bytes, int], Any]) -> Iterator[Row]:
    from array_record.python.array_record_module import ArrayRecordReader

    features = {name: FeatureType.parse(text) for name, text in options.features}
    schema = Schema((), 0, options.label_kind, features)
    with _local(path) as local:
        try:
            reader = ArrayRecordReader(local, "readahead_buffer_size:0,max_parallelism:0")
            for begin in range(0, reader.num_records(), _ROWS_A_BATCH):
                for content in reader.read(begin, min(begin + _ROWS_A_BATCH, reader.num_records())):
                    record = decode(content)
                    write(record.encoded, _ROW_BYTES)
                    row = Row(record.key, num_bytes=len(record.encoded))
                    row = with_features(row, schema.values_of(record), options)
                    names = list(record.class_name) if stored_kind(record.label).is_list else record.class_name
                    label = names if options.label_kind.needs_classes else ""
                    yield row if row.reason else label_row(row, label, options, are_names=True)
        except (ValueError, RuntimeError) as error:
            line = str(error).partition("\n")[0]
            raise ValueError(f"{path!r} is not a complete ArrayRecord of an export: {line}; copy it again") from error


@contextlib.contextmanager
def _local(path: str) -> Iterator[str]:
    """Context manager: the path of a file of this machine with the content of one, as the reader opens no other."""
    if not storage.is_uri(path):
        with storage.open_file(path):  # refuses a pipe, for which the reader would wait forever
            yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "shard")
        with storage.open_file(path) as file, open(local, "wb") as copy:
            shutil.copyfileobj(file, copy, _PIECE_BYTES)
        yield local
