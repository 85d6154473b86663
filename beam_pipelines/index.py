"""DATASET/index/SHARD.parquet: a row a record, in the order of the shard."""

from __future__ import annotations

from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipelines import storage


class IndexRow(NamedTuple):
    """One line of a shard's index: where its record lies and what it holds.

    Attributes:
      key: The example's.
      uri: The source's.
      label: Class index, 0-based.
      offset: Of the TFRecord in the shard, in bytes.
      length: Of the TFRecord with its framing, in bytes.
      height: Pixels.
      width: Pixels.
      sha256: Hex digest of the stored JPEG.
      dhash: 64-bit perceptual hash as a signed integer; near-duplicates differ in a few bits.
    """

    key: str
    uri: str
    label: int
    offset: int
    length: int
    height: int
    width: int
    sha256: str
    dhash: int


SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("uri", pa.string()),
        ("label", pa.int64()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("sha256", pa.string()),
        ("dhash", pa.int64()),
    ]
)


def index_path(shard: str) -> str:
    """Returns where, within the dataset, the index of a shard lies."""
    return f"index/{shard.removesuffix('.tfrecord')}.parquet"


def write_index(file: IO[bytes], rows: list[IndexRow]) -> None:
    """Writes one shard's index."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    pq.write_table(pa.table(columns, schema=SCHEMA), file)


def read_columns(path: str, num_rows: int | None = None, names: list[str] | None = None) -> pa.Table:
    """Returns one shard's index as columns: all, or those of these names in this order.

    Raises:
      ValueError: It has not `num_rows`, where that is given, which is known before they take memory.
      OSError: It cannot be read.
      pyarrow.ArrowException: It is no such index.
    """
    content = pa.BufferReader(storage.read_bytes(path))
    if num_rows not in (None, found := pq.read_metadata(content).num_rows):
        raise ValueError(f"it has {found} rows for {num_rows} records")
    return pq.read_table(content, columns=names, schema=SCHEMA)


def read_index(path: str, num_rows: int | None = None) -> list[IndexRow]:
    """Returns one shard's index; raises what read_columns() does."""
    table = read_columns(path, num_rows)
    return [IndexRow(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
