"""Lengths of the records of many shards in one file, DATASET/lengths.parquet: a row per record, in order.

    shard                           length
    train-00000-of-00042.tfrecord   112345      bytes of the record with its framing
    train-00000-of-00042.tfrecord    98765

A record begins at the sum of the lengths before it in its shard. Training needs these offsets of all records. To read
the index of each of 100,000 shards takes minutes; this file takes a second. The lengths of other programs' TFRecords
are kept in the same format (storage/positions.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tpu_input.dataset_format.index import check_size
from tpu_input.dataset_format.manifest import Shard, in_edition
from tpu_input.dataset_format.tfrecord import FRAME_BYTES

Positions = npt.NDArray[np.int64]

LENGTHS_NAME = "lengths.parquet"  # with the dataset's edition, if it has one: see lengths_name()
_MAX_BYTES = 1 << 32  # of the file: a record takes three bytes, and the name of a shard takes 30
_MAX_ROWS = 1 << 30  # as many records as a million shards have, which is the most that a manifest can name
_MAX_TOTAL_BYTES = 1 << 62  # so that no sum of lengths overflows an int64
# Apache Beam 2.54 needs PyArrow 14, which neither writes nor compares checksums of pages. Damage that keeps the sum of
# a shard's lengths is then found only when a record is read.
_PAGE_CHECKSUMS = int(pa.__version__.split(".")[0]) >= 15


@dataclasses.dataclass(frozen=True, eq=False)
class Lengths:
    """Content of a file of lengths.

    Attributes:
      names: Names of the shards, each once.
      begins: [shards + 1] number of the first record of each shard, and then the number of all records.
      lengths: [records] length of each record with its framing in bytes, at least FRAME_BYTES; their sum fits an int64.
    """

    names: list[str]
    begins: Positions
    lengths: Positions

    def by_shard(self) -> dict[str, Positions]:
        """Returns {shard: lengths of its records}."""
        return dict(zip(self.names, np.split(self.lengths, self.begins[1:-1]), strict=True)) if self.names else {}

    def shard_lengths(self, shards: Sequence[Shard]) -> Positions:
        """Returns the lengths of the records of some shards, one after another.

        Raises:
          ValueError: A shard is not listed, or not with as many records and bytes as it has.
        """
        numbers_by_name = {name: number for number, name in enumerate(self.names)}
        numbers = _int64((numbers_by_name.get(shard.name, -1) for shard in shards), len(shards))
        sums = np.add.reduceat(self.lengths, self.begins[:-1]) if self.names else np.empty(0, np.int64)
        counts = np.append(np.diff(self.begins), 0)[numbers]  # -1 takes the last, which belongs to no shard
        num_bytes = np.append(sums, 0)[numbers]
        differs = counts != _int64((shard.num_examples for shard in shards), len(shards))
        differs |= num_bytes != _int64((shard.num_bytes for shard in shards), len(shards))
        if differs.any():
            index = int(differs.argmax())
            raise ValueError(
                f"it lists {counts[index]} records in {num_bytes[index]} bytes for shard {shards[index].name!r}, "
                f"which has {shards[index].num_examples} records in {shards[index].num_bytes} bytes"
            )
        if len(numbers) and (np.diff(numbers) == 1).all():  # a split of a dataset: no copy is needed
            return self.lengths[self.begins[numbers[0]] : self.begins[numbers[-1] + 1]]
        parts = [self.lengths[self.begins[number] : self.begins[number + 1]] for number in numbers]
        return np.concatenate([np.empty(0, np.int64), *parts])


def lengths_name(edition: str) -> str:
    """Returns the name of the file of lengths of a dataset with this edition, "" for none."""
    return in_edition(LENGTHS_NAME, edition)


def max_bytes(num_rows: int | None = None) -> int:
    """Returns the most bytes that the lengths of so many records can take; more are not read into memory."""
    return _MAX_BYTES if num_rows is None else min(_MAX_BYTES, (1 << 20) + (1 << 8) * num_rows)


def _int64(numbers: Iterable[int], count: int) -> Positions:
    return np.fromiter(numbers, np.int64, count)


def write_lengths(file: IO[bytes], lengths: Mapping[str, Positions]) -> None:
    """Writes {shard: [records] lengths of its records with their framing}; the same lengths give the same bytes."""
    numbers = np.repeat(np.arange(len(lengths), dtype=np.int32), [len(values) for values in lengths.values()])
    shards = pa.DictionaryArray.from_arrays(pa.array(numbers), pa.array(list(lengths), pa.string()))
    all_lengths = np.concatenate([np.empty(0, np.int64), *lengths.values()])
    # Differences of the lengths take 39 MB for 13 million photographs; plain numbers take 68 MB and longer to write.
    pq.write_table(
        pa.table({"shard": shards, "length": pa.array(all_lengths)}),
        file,
        row_group_size=1 << 20,
        version="2.6",
        compression="snappy",
        use_dictionary=["shard"],
        dictionary_pagesize_limit=1 << 28,
        column_encoding={"length": "DELTA_BINARY_PACKED"},
        write_statistics=False,
        **({"write_page_checksum": True} if _PAGE_CHECKSUMS else {}),
    )


def parse_lengths(content: bytes, num_rows: int | None = None) -> Lengths:
    """Returns the content of a file of lengths.

    Args:
      content: Bytes of the file.
      num_rows: Number of records that it must have; None if unknown.

    Raises:
      ValueError: It is not a file of lengths, or has another number of records. Types, number of rows and sizes are
        checked before rows are loaded into memory.
    """
    try:
        return _parse(content, num_rows)
    except (pa.ArrowException, OSError, IndexError, KeyError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def _parse(content: bytes, num_rows: int | None) -> Lengths:
    checksums = {"page_checksum_verification": True} if _PAGE_CHECKSUMS else {}
    file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=["shard"], **checksums)
    types, rows = file.schema_arrow, file.metadata.num_rows
    if types.names != ["shard", "length"] or types.field("length").type != pa.int64():
        raise ValueError(f"it has the columns {', '.join(f'{field.name} ({field.type})' for field in types)}")
    if types.field("shard").type != pa.dictionary(pa.int32(), pa.string()):
        raise ValueError(f"its column shard has the type {types.field('shard').type}")
    if num_rows not in (None, rows) or not 0 <= rows <= _MAX_ROWS:
        raise ValueError(f"it has {rows} rows for {_MAX_ROWS if num_rows is None else num_rows} records")
    check_size(file.metadata)
    lengths, names, begins, row = np.empty(rows, np.int64), list[str](), [np.empty(0, np.int64)], 0
    for group in range(file.num_row_groups):  # one after another, which takes less memory than all
        table = file.read_row_group(group, use_threads=False).unify_dictionaries().combine_chunks()
        if not len(table):
            continue
        shard, length = table["shard"].chunk(0), table["length"]
        if shard.null_count or length.null_count or row + len(table) > rows:
            raise ValueError("a row has no value, or there are more rows than it says")
        lengths[row : row + len(table)] = length.to_numpy()
        numbers = shard.indices.to_numpy()
        first = np.flatnonzero(np.diff(numbers, prepend=-1))
        shard_names = shard.dictionary.take(pa.array(numbers[first])).to_pylist()
        if names and shard_names[0] == names[-1]:  # the shard continues from the group before
            first, shard_names = first[1:], shard_names[1:]
        names += shard_names
        begins.append(first + row)
        row += len(table)
    if row != rows:
        raise ValueError(f"it has {row} rows, not {rows}")
    if len(set(names)) < len(names):
        raise ValueError("the records of a shard are not together")
    if rows and lengths.min() < FRAME_BYTES:
        raise ValueError(f"a record of {lengths.min()} bytes is too short")
    if lengths.sum(dtype=np.float64) > _MAX_TOTAL_BYTES:
        raise ValueError("its records have more bytes than a dataset can have")
    return Lengths(names, np.concatenate([*begins, [rows]]), lengths)
