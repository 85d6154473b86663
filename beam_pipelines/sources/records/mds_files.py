"""MDS of an export as rows, whose images are read in place: SHARD ──▶ Row(key, SHARD#bytes=BEGIN-END, class)."""

from __future__ import annotations

from collections.abc import Iterator

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, RecordFormat
from beam_pipelines.shard_formats.mds_format import read_samples
from beam_pipelines.sources.rows import Row, label_row, with_features


def rows_of_file(folder: str, name: str, record_format: RecordFormat, options: ConvertOptions) -> Iterator[Row]:
    """Yields a row for each sample of a shard, with what `record_format` names for key and label.

    Raises:
      ValueError: The shard is damaged, or was not made by an export.
    """
    path = f"{folder}/{name}"
    num_bytes, version = storage.look(path)
    with storage.open_file(path) as file:
        try:
            for sample in read_samples(file, num_bytes):
                uri = storage.slice_uri(path, sample.begin, sample.num_bytes)
                row = Row(str(sample.values[record_format.id]), uri, num_bytes=sample.num_bytes, version=version)
                row = with_features(row, sample.values, options)
                label = sample.values[record_format.label] if options.label_kind.needs_classes else ""
                yield row if row.reason else label_row(row, label, options, are_names=True)
        except (ValueError, LookupError, RecursionError) as error:
            raise ValueError(f"{path!r} is not a complete shard of MDS: {error}; copy it again") from error
