"""Byte positions of the records of a shard: where each begins, and its length.

    DATASET/lengths.parquet, else DATASET/index/SHARD.parquet of each shard                 ──▶ positions
    FOLDER/.tpu_input_records.parquet, else the index, else the length before every record  ──▶ positions

A conversion writes what the first line names; datasets of earlier builds have the index alone. The second line is for
TFRecords of other programs: the lengths of the records are read once, 12 bytes of each, and stored next to the shards,
in the format of lengths.parquet. What a conversion wrote is read without TensorFlow.
"""

from __future__ import annotations

import functools
import io
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from tpu_input.dataset_format.records import FRAME_BYTES, MAX_INDEX_BYTES, Manifest, Shard
from tpu_input.dataset_format.tfrecord import Compressed, check_uncompressed
from tpu_input.storage.byte_ranges import check_file, read_bytes, read_existing

Positions = npt.NDArray[np.int64]

CACHE_NAME = ".tpu_input_records.parquet"
_HEADER = struct.Struct("<QI")
_IN_FLIGHT = 32  # index files that are read at the same time, because an object store takes 30 ms for each


def split_offsets(manifest: Manifest, split: str) -> Positions:
    """Returns the offset in bytes of every record of a split within its shard, [records] int64.

    Records are in the order of the shards.

    Raises:
      ValueError: lengths.parquet or an index cannot be read or does not match its shards, or a shard is not a TFRecord
        file.
    """
    shards = manifest.split(split).shards
    lengths = _listed_lengths(manifest, shards)
    if lengths is not None:
        return _offsets_of(shards, lengths)
    cached = {} if manifest.fingerprint else cached_lengths(manifest.path)

    def offsets(shard: Shard) -> Positions:
        lengths = cached.get(shard.name)
        if lengths is None or len(lengths) != shard.num_examples or lengths.sum() != shard.num_bytes:
            return shard_offsets(manifest.path, shard)
        return lengths.cumsum() - lengths

    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        return np.concatenate([np.empty(0, np.int64), *pool.map(offsets, shards)])


def split_positions(manifest: Manifest, split: str) -> tuple[Positions, Positions]:
    """Returns (offsets as from split_offsets(), lengths with framing) of every record of a split of a conversion.

    Raises:
      ValueError: lengths.parquet does not match its shards, or the dataset has neither it nor an index.
    """
    shards = manifest.split(split).shards
    lengths = _listed_lengths(manifest, shards)
    if lengths is not None:
        return _offsets_of(shards, lengths), lengths
    read = functools.partial(read_positions, manifest.path)
    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        positions = np.concatenate([np.empty([0, 2], np.int64), *pool.map(read, shards)])
    return np.ascontiguousarray(positions[:, 0]), np.ascontiguousarray(positions[:, 1])


def _listed_lengths(manifest: Manifest, shards: Sequence[Shard]) -> Positions | None:
    """Returns the lengths of the records of some shards, one after another; None if there is no lengths.parquet."""
    from tpu_input.dataset_format.lengths import lengths_name, max_bytes, parse_lengths

    if not manifest.fingerprint:  # TFRecords of other programs
        return None
    path = f"{manifest.path}/{lengths_name(manifest.edition)}"
    num_rows = manifest.num_examples
    try:
        content = read_existing(path, max_bytes(num_rows))
    except OSError as error:
        raise ValueError(f"cannot read {path!r}: {error}") from error
    if content is None:
        return None
    try:
        return parse_lengths(content, num_rows).shard_lengths(shards)
    except ValueError as error:
        raise ValueError(
            f"{path!r} does not match {manifest.path!r}: {error}; repair it with: jpeg2tpu verify "
            f"--repair {manifest.path}"
        ) from error


def check_stands(dataset: str, shard: Shard) -> None:
    """Checks that a shard that a manifest names exists.

    Raises:
      ValueError: It does not, for instance because another dataset has replaced the manifest's.
    """
    path = f"{dataset}/{shard.name}"
    try:
        read_bytes(path, 0, 1)
    except FileNotFoundError as error:
        raise ValueError(
            f"{path!r} does not exist: the dataset was replaced or moved after its manifest was read, or is not "
            f"complete; read the manifest again, or check the dataset with: jpeg2tpu verify {dataset}"
        ) from error


def _offsets_of(shards: Sequence[Shard], lengths: Positions) -> Positions:
    """Returns the offset of each record within its shard, from the lengths of the records of all of these shards."""
    offsets = np.zeros(len(lengths), np.int64)
    offsets[1:] = lengths[:-1]
    begins = np.cumsum(np.fromiter((shard.num_examples for shard in shards), np.int64, len(shards)))[:-1]
    offsets[begins] -= np.fromiter((shard.num_bytes for shard in shards[:-1]), np.int64, len(shards) - 1)
    return np.cumsum(offsets, out=offsets)  # in place, as the offsets of 13 million records are 104 MB


@functools.cache
def shard_offsets(folder: str, shard: Shard) -> Positions:
    """Returns the offset in bytes of every record of one shard, [records] int64; raises as split_offsets().

    It is read once in a process, from the shard's own index, which is small.
    """
    import tensorflow as tf

    if tf.io.gfile.exists(_index_path(folder, shard)):
        return np.ascontiguousarray(read_positions(folder, shard)[:, 0])
    lengths = cached_lengths(folder).get(shard.name, np.empty(0, np.int64))
    if len(lengths) != shard.num_examples or lengths.sum() != shard.num_bytes:
        lengths = read_lengths(f"{folder}/{shard.name}", shard.num_bytes)
    if len(lengths) != shard.num_examples:
        raise ValueError(
            f"'{folder}/{shard.name}' has {len(lengths)} records, the manifest says {shard.num_examples}; "
            "copy the dataset again"
        )
    return np.cumsum(lengths) - lengths


def _index_path(folder: str, shard: Shard) -> str:
    return f"{folder}/index/{shard.name.removesuffix('.tfrecord')}.parquet"


def unread(manifest: Manifest) -> str:
    """Returns the message about the first record of a shard that cannot be read, with what a user can do about it."""
    repair = f"repair the shard with: jpeg2tpu verify --repair {manifest.path}"
    others = "copy the shard again"  # TFRecords that another program wrote have no fingerprint
    # The command is not at the end, where TensorFlow adds a bracket, so that it can be copied.
    return (
        f"cannot be read; {repair if manifest.fingerprint else others} "
        "(the shard is truncated or damaged there or before, or has fewer records than the manifest states)"
    )


def read_positions(folder: str, shard: Shard) -> Positions:
    """Returns [records, 2] int64: the offset, and the length with framing, of each record of a shard, from its index.

    Raises:
      ValueError: The dataset has no index for the shard, or the index does not match the shard.
    """
    from tpu_input.dataset_format import index

    path = _index_path(folder, shard)
    try:
        check_file(path, MAX_INDEX_BYTES)
        positions = index.read_positions(read_bytes(path), shard)
    except Exception as error:  # OSError, pyarrow's, or TensorFlow's for a URI
        if isinstance(error, FileNotFoundError):
            check_stands(folder, shard)
        raise ValueError(f"cannot read the index {path!r}: {error}; jpeg2tpu convert writes it") from error
    if positions is None:
        raise ValueError(
            f"{path!r} does not match shard {shard.name!r}, which has {shard.num_examples} records in "
            f"{shard.num_bytes} bytes; repair it with: jpeg2tpu verify --repair {folder}"
        )
    return positions


def read_lengths(path: str, num_bytes: int) -> Positions:
    """Returns the length of each record of a shard with its framing, [records] int64; raises as walk_lengths()."""
    return np.array([length + FRAME_BYTES for _, length in walk_lengths(path, num_bytes)], np.int64)


def walk_lengths(path: str, num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields (offset, length) of the payload of each record of a shard, in bytes; reads only the lengths.

    Raises:
      ValueError: The file ends within a record, or is not a TFRecord file.
    """
    import tensorflow as tf

    number = offset = 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while offset < num_bytes:
            file.seek(offset)
            header = file.read(_HEADER.size)
            length = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else num_bytes
            if offset + length + FRAME_BYTES > num_bytes:
                if not number:
                    _check_uncompressed(path, header)
                raise ValueError(
                    f"{path!r} is truncated in record {number}, at byte {offset} of {num_bytes}, or is not a TFRecord "
                    "file; copy it again"
                )
            yield offset + _HEADER.size, length
            number, offset = number + 1, offset + length + FRAME_BYTES


def _check_uncompressed(path: str, header: bytes) -> None:
    try:
        check_uncompressed(header)
    except Compressed as error:
        raise ValueError(f"{path!r} {error}") from None


def cached_lengths(folder: str) -> dict[str, Positions]:
    """Returns {shard: lengths of its records with their framing} as kept next to the shards; empty if nothing is kept.

    Raises:
      ValueError: The file is damaged.
    """
    from tpu_input.dataset_format.lengths import max_bytes, parse_lengths

    path = f"{folder}/{CACHE_NAME}"
    try:
        content = read_existing(path, max_bytes())
        return {} if content is None else parse_lengths(content).by_shard()
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{path!r} does not contain valid lengths of records: {error}; remove it to read them again"
        ) from error


def keep_lengths(folder: str, lengths: Mapping[str, Positions]) -> None:
    """Writes the lengths of the records of shards next to them, unless the folder cannot be written."""
    import tensorflow as tf

    from tpu_input.dataset_format.lengths import write_lengths

    content = io.BytesIO()
    write_lengths(content, lengths)
    temporary = f"{folder}/{CACHE_NAME}.{uuid.uuid4().hex}"  # unique, as several hosts may do this at the same time
    try:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(content.getvalue())
        tf.io.gfile.rename(temporary, f"{folder}/{CACHE_NAME}", overwrite=True)
    except tf.errors.OpError:
        return
