"""Indexes of all shards as columns of numbers: 20 bytes of memory per image, so 200 MB for ten million images.

DATASET/index/*.parquet ──label, dhash, sha256, length, sizes of image and source──▶ Columns

Keys are read later, and only for the records that are shown.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipelines.conversion.output_folder import index_content
from beam_pipelines.runners.executors import map_in_threads
from tpu_input.command_line.cores import num_cores
from tpu_input.dataset_format.index import as_labels, index_path, read_columns
from tpu_input.dataset_format.records import Manifest, Shard
from tpu_input.stored_images.check import NOT_DECODED

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
_LONGEST_SIDE = 65_535  # pixels; JPEG's own limit
SIZE_UNIT = 256  # bytes; records of 16 MB and more count as 16 MB


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns of the indexes, over all records. A record's number is its position, with shards in the manifest's order.

    Attributes:
      shards: Shards in the manifest's order.
      starts: [shards + 1] number of the first record of each shard; the last entry is the number of records.
      splits: [shards] position of the shard's split among the manifest's splits.
      labels: [records] class index, int32; with several labels per image, the position of its classes in `sets`.
      sets: Classes of each value in `labels`.
      hashes: [records] perceptual hash, uint64; of an image that was not decoded (--check=header) as `contents`.
      contents: [records] the first 64 bits of the SHA-256 of the stored image, uint64.
      shorter_sides: [65536] number of records by the length of the shorter side in pixels.
      source_sides: [65536] the same of the sources, before they were made smaller; of those that the indexes tell.
      sizes: [65536] number of records by their size in the shard, in units of SIZE_UNIT bytes, rounded down.
      shapes: Numbers of records that are (upright, square, wide); square means to within 5 %.
    """

    shards: tuple[Shard, ...]
    starts: Ints
    splits: Ints
    labels: npt.NDArray[np.int32]
    sets: list[tuple[int, ...]]
    hashes: Hashes
    contents: Hashes
    shorter_sides: Ints
    source_sides: Ints
    sizes: Ints
    shapes: tuple[int, int, int]

    def class_records(self, label: int) -> Ints:
        """Returns the numbers of the records of a class."""
        positions = [number for number, labels in enumerate(self.sets) if label in labels]
        return np.flatnonzero(np.isin(self.labels, positions))

    def names(self, label: int, manifest: Manifest) -> str:
        """Returns the names of the classes of a value in `labels`."""
        return ", ".join(manifest.classes[index] for index in self.sets[label]) or "no class"

    def shard_of(self, numbers: npt.ArrayLike) -> Ints:
        """Returns the position of each record's shard."""
        return np.searchsorted(self.starts, numbers, side="right") - 1

    def split_of(self, numbers: npt.ArrayLike) -> Ints:
        """Returns the position of each record's split."""
        return np.asarray(self.splits[self.shard_of(numbers)])


def read_all(manifest: Manifest) -> Columns:
    """Returns the columns of a dataset.

    Raises:
      ValueError: An index is missing, cannot be read, or does not fit the manifest.
    """
    shards = manifest.shards
    splits = [position for position, split in enumerate(manifest.splits.values()) for _ in split.shards]
    starts = np.cumsum([0, *(shard.num_examples for shard in shards)])
    try:
        labels = np.empty(starts[-1], np.int32)
        hashes, contents = np.empty((2, starts[-1]), np.uint64)
    except MemoryError as error:
        raise ValueError(
            f"the manifest of {manifest.path!r} lists {starts[-1]} records, which need more memory than is available"
        ) from error
    is_set = manifest.label_kind.is_list
    sets: dict[tuple[int, ...], int] = {} if is_set else {(label,): label for label in range(len(manifest.classes))}
    counts = np.zeros((4, _LONGEST_SIDE + 1), np.int64)
    parts = map_in_threads(functools.partial(_read_part, manifest), shards, 4 * num_cores())
    for start, end, part in zip(starts, starts[1:], parts, strict=False):
        part_labels, hashes[start:end], contents[start:end], part_counts = part
        labels[start:end] = [sets.setdefault(classes, len(sets)) for classes in part_labels] if is_set else part_labels
        for total, part_count in zip(counts, part_counts, strict=True):
            total[: len(part_count)] += part_count
    upright, square, wide = counts[3, :3].tolist()
    return Columns(
        shards=shards,
        starts=starts,
        splits=np.array(splits),
        labels=labels,
        sets=list(sets),
        hashes=hashes,
        contents=contents,
        shorter_sides=counts[0],
        source_sides=counts[1],
        sizes=counts[2],
        shapes=(upright, square, wide),
    )


def _read_part(manifest: Manifest, shard: Shard) -> tuple[Any, Hashes, Hashes, list[Ints]]:
    """Returns labels, hashes and contents of a shard's records, and its shorter_sides, source_sides, sizes and shapes.

    With several labels per image, the labels are tuples.
    """
    sources = ["source_height", "source_width"]
    nullable = [*sources, *(["dhash"] if NOT_DECODED in manifest.num_noted else [])]
    table = read_rows(
        manifest.path, shard, ["label", "height", "width", "length", "sha256", "dhash", *sources], nullable
    )
    height, width, length = (column.to_numpy() for column in table.columns[1:4])
    labels = as_labels(table.column(0)) if manifest.label_kind.is_list else table.column(0).to_numpy()
    if not are_classes(table.column(0), manifest):
        raise ValueError(
            f"the index of {shard.name!r} has labels that are not classes of the manifest; {_advice(manifest.path)}"
        )
    source_sizes = table.select(sources).drop_null()
    source_height, source_width = (column.to_numpy() for column in source_sizes.columns)
    shape = np.digitize(width / np.maximum(height, 1), [1 / 1.05, 1.05])  # 0: upright, 1: square, 2: wide
    values = np.minimum(height, width), np.minimum(source_height, source_width), length // SIZE_UNIT, shape
    contents = _contents(manifest, shard, table["sha256"].to_pylist())
    counts = [np.bincount(np.clip(column, 0, _LONGEST_SIDE)) for column in values]
    return labels, _hashes(table["dhash"], contents), contents, counts


def are_classes(column: pa.ChunkedArray, manifest: Manifest) -> bool:
    """Returns whether the column of labels of an index has classes of the manifest only, one or several per row."""
    if (column.type == pa.int64()) == manifest.label_kind.is_list:
        return False
    values = column if column.type == pa.int64() else pc.list_flatten(column)
    limits = pc.min_max(values).as_py()
    return not values.null_count and (not len(values) or 0 <= limits["min"] <= limits["max"] < len(manifest.classes))


def _hashes(dhash: pa.ChunkedArray, contents: Hashes) -> Hashes:
    """Returns the perceptual hashes; for an image which was not decoded, it is its content's hash.

    That is equal for images with the same bytes, and as far from any other hash as a random number.
    """
    if not dhash.null_count:
        return np.asarray(dhash.to_numpy()).view(np.uint64)
    return np.where(dhash.is_null().to_numpy(), contents, dhash.fill_null(0).to_numpy().view(np.uint64))


def _contents(manifest: Manifest, shard: Shard, digests: list[str]) -> Hashes:
    """Returns the first 64 bits of hex digests."""
    try:
        words = np.frombuffer(bytes.fromhex("".join(digest[:16] for digest in digests)), ">u8")
    except ValueError:
        words = np.empty(0, ">u8")
    if len(words) != len(digests):
        raise ValueError(f"the index of {shard.name!r} has an invalid SHA-256; {_advice(manifest.path)}")
    return words.astype(np.uint64)


def read_rows(dataset: str, shard: Shard, names: list[str], nullable: Collection[str] = ()) -> pa.Table:
    """Returns columns of one shard's index; those in `nullable` may have rows without a value.

    Raises:
      ValueError: It is missing, cannot be read, or does not have one row for each record.
    """
    path = f"{dataset}/{index_path(shard.name)}"
    try:
        table = read_columns(index_content(path), shard.num_examples, names)
    except FileNotFoundError as error:
        raise ValueError(f"{path!r} is missing; {_advice(dataset)}") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"{path!r} cannot be read: {error}; {_advice(dataset)}") from error
    columns = dict(zip(names, table.columns, strict=True))
    if absent := [name for name in names if columns[name].null_count and name not in nullable]:
        raise ValueError(
            f"{path!r} has no column {', '.join(absent)}, because an earlier version wrote it; convert the dataset "
            "again"
        )
    return table


def _advice(dataset: str) -> str:
    return f"run: jpeg2tpu verify --repair {dataset}"
