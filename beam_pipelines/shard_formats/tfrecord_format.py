"""TFRecords, the shards of a dataset, which has an index, lengths.parquet and rejected.jsonl besides."""

from __future__ import annotations

from beam_pipelines.shard_formats.shard_format import Schema, ShardFormat
from tpu_input.dataset_format.records import Record, encode, frame


class TFRecord(ShardFormat):
    """tf.train.Examples, framed."""

    name = "tfrecord"

    def encode(self, record: Record, schema: Schema) -> bytes:
        return frame(encode(record, schema.first_label))
