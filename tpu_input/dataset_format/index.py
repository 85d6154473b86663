"""The index of a shard, DATASET/index/SHARD.parquet: one row per record, in the order of the shard."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tpu_input.dataset_format.label_kinds import stored_kind
from tpu_input.dataset_format.manifest import Shard

_ROW_BYTES = 1 << 12  # upper bound of the mean text size in a column; a path has no more, a SHA-256 has 64
_ROOM = 1 << 20
_MAX_ROWS = 100_000_000
_GROUP_ROWS = 1 << 14  # of a row group of the file
_BATCH_ROWS = 1 << 12  # that are put into columns together


class IndexRow(NamedTuple):
    """One row of a shard's index: position and content of one record.

    Attributes:
      key: Key of the example.
      uri: URI of the source file.
      label: Class index, 0-based; in a dataset with several labels per image, a list of them.
      offset: Offset of the TFRecord in the shard, in bytes.
      length: Length of the TFRecord with its framing, in bytes.
      height: Height in pixels.
      width: Width in pixels.
      sha256: Hex digest of the stored JPEG.
      dhash: 64-bit perceptual hash as a signed integer; near-duplicates differ in a few bits. None if the image was not
        decoded when it was stored.
      source_bytes: Size in bytes of the file that the image was made of; None in an index of an earlier version.
      source_height: Height in pixels of that image, before it was rotated or made smaller; None likewise.
      source_width: Its width.
      features: Further features of the record, as JSON; "" for none.
    """

    key: str
    uri: str
    label: Any  # int; tuple[int, ...] with several labels
    offset: int
    length: int
    height: int
    width: int
    sha256: str
    dhash: int | None
    source_bytes: int | None = None
    source_height: int | None = None
    source_width: int | None = None
    features: str = ""


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
        ("source_bytes", pa.int64()),
        ("source_height", pa.int32()),
        ("source_width", pa.int32()),
    ]
)


# Of a dataset with several labels per image.
SCHEMA_OF_SETS = pa.schema([("labels", pa.list_(pa.int64())) if field.name == "label" else field for field in SCHEMA])
# Of a dataset with further features, the last column of both.
_FEATURES = pa.field("features", pa.string())


def index_path(shard: str) -> str:
    """Returns the path of the index of a shard, relative to the dataset."""
    return f"index/{shard.removesuffix('.tfrecord')}.parquet"


class IndexWriter:
    """Writes the rows of one shard's index as they come, a row group at a time.

    Until a row group is complete, its rows are kept in Arrow's columns, which take a third of the memory of rows. So
    memory use does not depend on the number of rows. The bytes of the file do not depend on how many come at a time.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._schema = SCHEMA
        self._batches: list[pa.RecordBatch] = []  # of this row group
        self._num_rows = 0  # of this row group
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> IndexWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        # After an error of the file, Arrow's close() raises another one, which would hide the first.
        with contextlib.suppress(Exception) if kind else contextlib.nullcontext():
            self.close()

    def add(self, columns: Sequence[Sequence[Any]]) -> None:
        """Adds the rows of the next records, as columns in the order of IndexRow's fields."""
        num_rows = len(columns[0])
        begin = 0
        while begin < num_rows:
            end = min(num_rows, begin + _GROUP_ROWS - self._num_rows)
            self._add_batch([column[begin:end] for column in columns])
            self._num_rows += end - begin
            begin = end
            if self._num_rows == _GROUP_ROWS:
                self._end_group()

    def close(self) -> None:
        """Writes what is left of the index, and nothing when called again; the file itself stays open."""
        if self._num_rows or not self._writer:
            self._end_group()
        if self._writer:
            self._writer.close()

    def _end_group(self) -> None:
        self._writer = self._writer or pq.ParquetWriter(self._file, self._schema)
        # In one piece: the bytes of the file must not depend on the batches.
        self._writer.write_table(pa.Table.from_batches(self._batches, self._schema).combine_chunks())
        self._batches, self._num_rows = [], 0
        pa.default_memory_pool().release_unused()  # else some 15 MB stay with the allocator

    def _add_batch(self, columns: Sequence[Sequence[Any]]) -> None:
        first = IndexRow(*(column[0] for column in columns))
        self._schema = SCHEMA_OF_SETS if stored_kind(first.label).is_list else SCHEMA
        if first.features:
            self._schema = self._schema.append(_FEATURES)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=False)]
        self._batches.append(pa.record_batch(arrays, schema=self._schema))


def write_index(file: IO[bytes], rows: Iterable[IndexRow]) -> None:
    """Writes one shard's index."""
    rows = iter(rows)
    with IndexWriter(file) as writer:
        while batch := list(itertools.islice(rows, _BATCH_ROWS)):
            writer.add(list(zip(*batch, strict=True)))


def read_columns(
    content: bytes, num_rows: int | None = None, names: list[str] | None = None, most_rows: int = _MAX_ROWS
) -> pa.Table:
    """Returns one shard's index as columns.

    Args:
      content: Bytes of the index file.
      num_rows: Number of rows that it must have; None if unknown.
      names: Names of the columns to return, in this order; None for all. With several labels per image, the column
        instead of "label" is "labels".
      most_rows: Largest number of rows that it may have.

    Raises:
      ValueError: It has another number of rows, or a column has more bytes than that many rows can have; both are
        checked before the memory is allocated.
      pyarrow.ArrowException: The content is not a valid index.
    """
    file = pa.BufferReader(content)
    schema = pq.ParquetFile(file).schema
    # For a nested column, these are the paths of its leaves.
    paths = {schema.column(number).path for number in range(len(schema))}
    full = SCHEMA_OF_SETS if any(path.startswith("labels.") for path in paths) else SCHEMA
    full = full.append(_FEATURES) if _FEATURES.name in paths else full
    by_name = {_FEATURES.name: _FEATURES, "label": full.field(2)} | {field.name: field for field in full}
    target_schema = full if names is None else pa.schema([by_name[name] for name in names])
    texts = [field.name for field in target_schema if field.type == pa.string()]
    # Reads text columns dictionary-encoded: otherwise, a long text that the file stores once would take memory per row.
    parquet = pq.ParquetFile(file, read_dictionary=[name for name in texts if name in paths])
    rows = parquet.metadata.num_rows
    if num_rows not in (None, rows) or rows > most_rows:
        raise ValueError(f"it has {rows} rows for {most_rows if num_rows is None else num_rows} records")
    check_size(parquet.metadata)
    present = [name for name in target_schema.names if name in parquet.schema_arrow.names]
    table = parquet.read(columns=present, use_threads=False)
    if len(table) != rows or sorted(table.schema.names) != sorted(present):
        raise ValueError(f"it has {len(table)} rows of {table.schema.names}, not {rows} of {present}")
    check_room(rows, max((text_bytes(table[name]) for name in texts if name in present), default=0))
    columns = [
        table[field.name].cast(field.type) if field.name in present else pa.nulls(rows, field.type)
        for field in target_schema
    ]
    return pa.table(columns, schema=target_schema)


def check_room(rows: int, num_bytes: int) -> None:
    """Raises ValueError if a column has more bytes than that many rows can have."""
    room = _ROOM + _ROW_BYTES * rows
    if num_bytes > room:
        raise ValueError(f"a column has {num_bytes:,} bytes, but {rows:,} rows can have at most {room:,}")


def check_size(metadata: pq.FileMetaData) -> None:
    """Raises ValueError if all columns together have more bytes, encoded but uncompressed, than their rows can have.

    Row groups are asked, not their columns: pyarrow aborts the process where it looks at a column whose statistics
    contradict a damaged schema.
    """
    num_bytes = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    room = metadata.num_columns * (_ROOM + _ROW_BYTES * metadata.num_rows)
    if num_bytes > room:
        rows = metadata.num_rows
        raise ValueError(f"its columns have {num_bytes:,} bytes, but {rows:,} rows can have at most {room:,}")


def text_bytes(column: pa.ChunkedArray) -> int:
    """Returns the size in bytes of a text column once decoded: a dictionary stores a text once for many rows."""
    total = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            lengths = pc.binary_length(chunk.dictionary).to_numpy(zero_copy_only=False).astype(np.int64)
            total += int(lengths[chunk.indices.drop_null().to_numpy()].sum())
    return total


def read_index(content: bytes, num_rows: int | None = None) -> list[IndexRow]:
    """Returns one shard's index as rows; raises the same exceptions as read_columns()."""
    table = read_columns(content, num_rows)
    columns = [column.to_pylist() for column in table.columns]
    columns[2] = as_labels(table.column(2))
    return [IndexRow(*row) for row in zip(*columns, strict=True)]


def as_labels(column: pa.ChunkedArray) -> list[Any]:
    """Returns the third column of an index as Python's values: integers, or tuples of integers."""
    values = column.to_pylist()
    return values if column.type == pa.int64() else [None if value is None else tuple(value) for value in values]


def features_json(features: dict[str, tuple[Any, ...]]) -> str:
    """Returns the features of a record as the index has them."""
    return json.dumps({name: list(values) for name, values in sorted(features.items())}) if features else ""


def read_positions(content: bytes, shard: Shard) -> npt.NDArray[np.int64] | None:
    """Returns [records, 2] int64: the offset, and the length with framing, of each record of a shard, from its index.

    Returns None if the index does not match the shard. Types and number of rows are checked before rows are loaded into
    memory.

    Raises:
      KeyError: It has no column of offsets or of lengths.
      pyarrow.ArrowException: The content is not a valid index.
    """
    file, names = pq.ParquetFile(pa.BufferReader(content)), ["offset", "length"]
    is_typed = all(file.schema_arrow.field(name).type == pa.int64() for name in names)
    if not is_typed or file.metadata.num_rows != shard.num_examples:
        return None
    table = file.read(names, use_threads=False)
    columns = [table[name].to_numpy() for name in names]
    if any(column.dtype != np.int64 for column in columns) or not shard.is_filled_by(*columns):
        return None
    positions: npt.NDArray[np.int64] = np.stack(columns, axis=1)
    return positions
