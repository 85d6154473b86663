"""All formats of shards, by name."""

from __future__ import annotations

from beam_pipelines.shard_formats.array_record_format import ArrayRecord
from beam_pipelines.shard_formats.mds_format import MDS
from beam_pipelines.shard_formats.parquet_format import Parquet
from beam_pipelines.shard_formats.shard_format import Schema, ShardFormat
from beam_pipelines.shard_formats.webdataset_format import WebDataset
from tpu_input.dataset_format.manifest import parse_shard_name
from tpu_input.dataset_format.records import Record, encode, frame


class TFRecord(ShardFormat):
    """Framed tf.train.Examples, the shards of a dataset, which has an index, lengths and rejected.jsonl besides."""

    name = "tfrecord"

    def encode(self, record: Record, schema: Schema) -> bytes:
        return frame(encode(record, schema.first_label))


TFRECORD = TFRecord()
EXPORTS: dict[str, ShardFormat] = {
    shard_format.name: shard_format for shard_format in (WebDataset(), Parquet(), ArrayRecord(), MDS())
}
SHARD_FORMATS: dict[str, ShardFormat] = {TFRECORD.name: TFRECORD} | EXPORTS


def format_of(shard: str) -> ShardFormat:
    """Returns the format of a shard, which its name shows."""
    parts = parse_shard_name(shard)
    return SHARD_FORMATS[parts.format] if parts else TFRECORD
