"""Random access to a dataset's records through its index, for grain, PyTorch and DALI; without TensorFlow for files.

DATASET/index/SHARD.parquet ──▶ offsets and lengths ──▶ source[n] ──▶ Record (still encoded)
"""

from __future__ import annotations

import io
import operator
from typing import IO, Any, SupportsIndex, cast

import numpy as np

from tpu_input.schema import Manifest, Record, decode, read_frames


def open_bytes(path: str, mode: str = "rb") -> IO[Any]:
    """Opens a local file, or one at a URI by TensorFlow."""
    if "://" not in path:
        return open(path, mode)
    import tensorflow as tf

    return cast(IO[Any], tf.io.gfile.GFile(path, mode))


def read_positions(manifest: Manifest, shard: str) -> np.ndarray[Any, Any]:
    """Returns [records, 2] int64: the offset and length with framing of each record of a shard, in bytes.

    Raises:
      ValueError: The dataset has no index for it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = f"{manifest.path}/index/{shard.removesuffix('.tfrecord')}.parquet"
    try:
        with open_bytes(path) as file:
            table = pq.read_table(pa.BufferReader(file.read()), columns=["offset", "length"])
    except Exception as error:  # OSError, or TensorFlow's for a URI
        raise ValueError(f"no index at {path!r}: {error}; python -m beam_pipelines convert writes one") from error
    return np.stack([table[name].to_numpy() for name in ("offset", "length")], axis=1)


def write_dali_index(manifest: Manifest) -> list[str]:
    """Writes DATASET/index/SHARD.idx, a line "offset length" a record, as DALI's tfrecord reader wants.

    https://docs.nvidia.com/deeplearning/dali/user-guide/docs/examples/general/data_loading/dataloading_tfrecord.html

    Returns:
      The files.

    Raises:
      ValueError: The dataset has no index.
    """
    written = []
    for split in manifest.splits.values():
        for shard in split.shards:
            lines = [f"{offset} {length}\n" for offset, length in read_positions(manifest, shard.name)]
            written.append(f"{manifest.path}/index/{shard.name.removesuffix('.tfrecord')}.idx")
            with open_bytes(written[-1], "w") as file:
                file.write("".join(lines))
    return written


class RecordSource:
    """A split as a sequence: len(source), source[n]; from any number of threads, and picklable for processes.

    Each access opens its shard and reads one record, so that nothing is shared but the index in memory (16 bytes a
    record).
    """

    def __init__(self, manifest: Manifest, split: str) -> None:
        """Reads the index.

        Raises:
          ValueError: There is no such split, or no index.
        """
        shards = manifest.split(split).shards
        positions = [read_positions(manifest, shard.name) for shard in shards]
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
        """
        number = operator.index(number)
        if not -len(self) <= number < len(self):
            raise IndexError(f"record {number} of {len(self)}")
        number %= len(self)
        path = self._paths[int(np.searchsorted(self._ends, number, side="right"))]
        offset, length = map(int, self._positions[number])
        with open_bytes(path) as file:
            file.seek(offset)
            framed = file.read(length)
        try:
            ((_, payload),) = read_frames(io.BytesIO(framed))
            return decode(payload, self._first_label)
        except ValueError as error:
            raise ValueError(f"{path!r}, byte {offset}: {error}") from error
