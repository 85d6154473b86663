"""Random access to a dataset's records through its index, for grain, PyTorch and DALI.

Reading needs no TensorFlow for local files and, where google-cloud-storage is installed, for gs://.

DATASET/index/SHARD.parquet ──▶ offsets and lengths ──▶ source[n] ──▶ Record (still encoded)
"""

from __future__ import annotations

import contextlib
import io
import operator
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import numpy.typing as npt

from tpu_input.dataset_format.records import MAX_INDEX_BYTES, Manifest, Record, Shard, decode, read_frames
from tpu_input.pipeline.byte_ranges import check_file, read_bytes

if TYPE_CHECKING:
    from tpu_input.datasets import DatasetLike

_IN_FLIGHT = 32  # index files that are read at the same time, because an object store takes 30 ms for each


def read_positions(manifest: Manifest, shard: Shard) -> npt.NDArray[np.int64]:
    """Returns [records, 2] int64: the offset, and the length with framing, of each record of a shard, in bytes.

    Raises:
      ValueError: The dataset has no index for the shard, or the index does not match the shard.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = f"{manifest.path}/index/{shard.name.removesuffix('.tfrecord')}.parquet"
    try:
        check_file(path, MAX_INDEX_BYTES)
        content = pa.BufferReader(read_bytes(path))
        file, names = pq.ParquetFile(content), ["offset", "length"]
        # Types and number of rows are known before the rows are loaded into memory.
        numbers = all(file.schema_arrow.field(name).type == pa.int64() for name in names)
        table = file.read(names) if numbers and file.metadata.num_rows == shard.num_examples else None
        columns = [table[name].to_numpy() for name in names] if table else []
    except Exception as error:  # OSError, pyarrow's, or TensorFlow's for a URI
        raise ValueError(
            f"cannot read the index {path!r}: {error}; python -m beam_pipelines convert writes it"
        ) from error
    if not columns or any(of.dtype != np.int64 for of in columns) or not shard.is_filled_by(*columns):
        raise ValueError(
            f"{path!r} does not match shard {shard.name!r}, which has {shard.num_examples} records in "
            f"{shard.num_bytes} bytes; repair it with: python -m beam_pipelines verify --repair {manifest.path}"
        )
    return np.stack(columns, axis=1)


def write_dali_index(manifest: Manifest) -> list[str]:
    """Writes DATASET/index/SHARD.idx, one line "offset length" per record, for DALI's tfrecord reader.

    https://docs.nvidia.com/deeplearning/dali/user-guide/docs/examples/general/data_loading/dataloading_tfrecord.html

    Returns:
      The paths of the files.

    Raises:
      ValueError: The dataset has no index, or its index folder is a symbolic link.
    """
    if os.path.islink(f"{manifest.path}/index"):
        raise ValueError(
            f"'{manifest.path}/index' is a symlink, so files would be written elsewhere; replace it with a folder"
        )
    written = []
    for split in manifest.splits.values():
        for shard in split.shards:
            lines = [f"{offset} {length}\n" for offset, length in read_positions(manifest, shard)]
            written.append(f"{manifest.path}/index/{shard.name.removesuffix('.tfrecord')}.idx")
            _write(written[-1], "".join(lines))
    return written


def _write(path: str, text: str) -> None:
    """Writes a file atomically: locally by renaming a temporary file; uploads of objects are always atomic."""
    if "://" not in path:
        temporary = f"{path}.{uuid.uuid4().hex}"
        try:
            with open(temporary, "w") as file:
                file.write(text)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)
        return
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "w") as file:
        file.write(text)


class RecordSource:
    """Sequence of the records of a split: len(source), source[n]; thread-safe, and picklable for other processes.

    Each access reads one record, from a bucket with one request. The only shared state is the index in memory (16 bytes
    per record) and, within a process, the connections to the bucket.
    """

    def __init__(self, dataset: DatasetLike, split: str) -> None:
        """Reads the index.

        Args:
          dataset: Manifest of the dataset; or its folder or URI, to read which TensorFlow is imported.
          split: Name of the split.

        Raises:
          ValueError: There is no such split, or no index.
        """
        if isinstance(dataset, Manifest):
            manifest = dataset
        else:
            from tpu_input.datasets import as_manifest

            manifest = as_manifest(dataset)
        shards = manifest.split(split).shards
        with ThreadPoolExecutor(_IN_FLIGHT) as pool:
            positions = list(pool.map(lambda shard: read_positions(manifest, shard), shards))
        self._paths = [f"{manifest.path}/{shard.name}" for shard in shards]
        self._first_label = manifest.first_label
        self._ends = np.cumsum([len(of) for of in positions])
        self._positions = np.concatenate(positions) if positions else np.zeros([0, 2], np.int64)

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, number: SupportsIndex) -> Record:
        """Returns one record.

        Raises:
          IndexError: There is no such record.
          ValueError: It is damaged; the message names shard and byte.
          OSError: The shard cannot be read.
        """
        number = operator.index(number)
        if not -len(self) <= number < len(self):
            raise IndexError(f"record {number} is out of range: there are {len(self)} records")
        number %= len(self)
        path = self._paths[int(np.searchsorted(self._ends, number, side="right"))]
        offset, length = map(int, self._positions[number])
        framed = read_bytes(path, offset, length)
        try:
            if len(framed) < length:
                raise ValueError(f"the shard ends before the end of the record of {length} bytes")
            ((_, payload),) = read_frames(io.BytesIO(framed))
            return decode(payload, self._first_label)
        except ValueError as error:
            raise ValueError(f"{path!r}, byte {offset}: {error}") from error
