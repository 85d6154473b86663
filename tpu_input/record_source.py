"""Random access to a dataset's records by their positions in the shards, for grain, PyTorch and DALI.

It needs no TensorFlow for local files and, where google-cloud-storage is installed, for gs://.

DATASET/lengths.parquet, else the index ──▶ offsets and lengths ──▶ source[n] ──▶ Record (still encoded)
"""

from __future__ import annotations

import io
import operator
import os
from typing import SupportsIndex

import numpy as np

from tpu_input.config import MOST_BLOCK_RECORDS
from tpu_input.dataset_format.records import Manifest, Record, decode, read_frames
from tpu_input.datasets import DatasetLike, as_manifest
from tpu_input.pipeline.order import Order
from tpu_input.storage.byte_ranges import read_bytes, write_bytes
from tpu_input.storage.positions import check_stands, read_positions, split_positions


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
            lines = [f"{offset} {length}\n" for offset, length in read_positions(manifest.path, shard)]
            written.append(f"{manifest.path}/index/{shard.name.removesuffix('.tfrecord')}.idx")
            write_bytes(written[-1], "".join(lines).encode())
    return written


class RecordSource:
    """Sequence of the records of a split: len(source), source[n]; thread-safe, and picklable for other processes.

    Each access reads one record, from a bucket with one request. The only shared state is the positions in memory (16
    bytes per record) and, within a process, the connections to the bucket.
    """

    def __init__(self, dataset: DatasetLike, split: str) -> None:
        """Reads the lengths of all records.

        Args:
          dataset: Manifest of the dataset, or its folder or URI.
          split: Name of the split.

        Raises:
          ValueError: There is no such split, or neither lengths.parquet nor an index, or they do not match the shards.
        """
        manifest = as_manifest(dataset)
        shards = manifest.split(split).shards
        self._offsets, self._lengths = split_positions(manifest, split)
        self._path, self._shards = manifest.path, shards
        self._first_label = manifest.first_label
        self._ends = np.cumsum([shard.num_examples for shard in shards])

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, number: SupportsIndex) -> Record:
        """Returns one record.

        Raises:
          IndexError: There is no such record.
          ValueError: It is damaged, or the dataset was replaced; the message names the shard, and the byte.
          OSError: The shard cannot be read.
        """
        number = operator.index(number)
        if not -len(self) <= number < len(self):
            raise IndexError(f"record {number} is out of range: there are {len(self)} records")
        number %= len(self)
        shard = self._shards[int(np.searchsorted(self._ends, number, side="right"))]
        path = f"{self._path}/{shard.name}"
        offset, length = int(self._offsets[number]), int(self._lengths[number])
        try:
            framed = read_bytes(path, offset, length)
        except FileNotFoundError:
            check_stands(self._path, shard)
            raise
        try:
            if len(framed) < length:
                raise ValueError(f"the shard ends before the end of the record of {length} bytes")
            ((_, payload),) = read_frames(io.BytesIO(framed))
            return decode(payload, self._first_label)
        except ValueError as error:
            raise ValueError(f"{path!r}, byte {offset}: {error}") from error


def training_order(
    dataset: DatasetLike,
    batch_size: int,
    split: str = "train",
    seed: int = 0,
    block_records: int = MOST_BLOCK_RECORDS,
) -> Order:
    """Returns the order in which make_train_input_fn takes the records of a split, to follow it with RecordSource.

    With InputConfig.echo, step s takes the records of the order's step s // echo. With a cache or a service, and with
    deterministic=False, training does not follow it.

    Args:
      dataset: Manifest of the dataset, or its folder or URI.
      batch_size: Number of examples that all hosts together take in a step.
      split: Name of the split.
      seed: InputConfig.seed.
      block_records: InputConfig.block_records.

    Raises:
      ValueError: There is no such split.
    """
    return Order.of(as_manifest(dataset), split, batch_size, seed, block_records)
