"""Manifests of TFRecords that another program wrote: they have none on disk.

    pattern ──manifest_from_shards()──▶ Manifest

Records are counted by their lengths, which are read once and stored next to the shards (positions.py); nothing is
decoded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from tpu_input.command_line.paths import named_patterns
from tpu_input.config import InputConfig
from tpu_input.dataset_format.record_spec import RecordSpec
from tpu_input.dataset_format.records import FRAME_BYTES, MAX_INDEX_BYTES, Manifest, Shard, Split
from tpu_input.dataset_format.tfrecord import Example
from tpu_input.storage.byte_ranges import check_file
from tpu_input.storage.patterns import no_match
from tpu_input.storage.positions import CACHE_NAME, Positions, cached_lengths, keep_lengths, read_lengths

_THREADS = 16  # which mostly wait for storage


def shard_patterns(text: str) -> dict[str, str]:
    """Returns the glob of each split, from a glob of the split "train", or "train=GLOB,validation=GLOB".

    Where the name of the files of one glob contains "train", and there are files with "validation" in its place, these
    are the split "validation".
    """
    pairs = named_patterns(text)
    if pairs[0].name:
        if unnamed := [path for name, path in pairs if not name]:
            raise ValueError(f"{unnamed[0]!r} has no split; write SPLIT={unnamed[0]}, or one glob without a split")
        return dict(pairs)
    text = pairs[0].path
    folder, slash, name = text.rpartition("/")
    held_out = f"{folder}{slash}{name.replace('train', 'validation', 1)}"
    has_both = held_out != text and bool(tf.io.gfile.glob(held_out))
    return {"train": text, **({"validation": held_out} if has_both else {})}


def manifest_from_shards(
    pattern: str | Mapping[str, str], record: RecordSpec | None = None, classes: int | Sequence[str] = 1000
) -> Manifest:
    """Returns a manifest of another program's TFRecords; reads their lengths once and stores these next to them.

    Args:
      pattern: Glob of the shards, e.g. "gs://bucket/imagenet/train-*", which become the split "train"; or a mapping
        from the name of a split to its glob. All shards must be in one folder.
      record: Format of a record, e.g. records.IMAGENET; None means the format that this package writes.
      classes: Names of the classes in label order, or their number.

    Raises:
      ValueError: No file matches, the shards are in several folders, a shard is truncated, or its first record does not
        have the format `record`.
    """
    patterns = {"train": pattern} if isinstance(pattern, str) else pattern
    record = record or RecordSpec()
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    matches = {split: _match(pattern) for split, pattern in patterns.items()}
    folders = {os.path.dirname(path) for paths in matches.values() for path in paths}
    if len(folders) != 1:
        raise ValueError(f"the shards must be in one folder, got {len(folders)}: {sorted(folders)}")
    (folder,) = folders
    cached, lengths = cached_lengths(folder), dict[str, Positions]()
    with ThreadPoolExecutor(_THREADS) as pool:
        counted = {
            split: pool.map(lambda path: _shard(path, cached, lengths), paths) for split, paths in matches.items()
        }
        shards = {split: tuple(filter(None, results)) for split, results in counted.items()}
    for split, split_shards in shards.items():
        _require(split_shards, patterns[split])
    if any(cached.get(name) is not values for name, values in lengths.items()):
        keep_lengths(folder, cached | lengths)
    for split_shards in shards.values():
        _check_first(f"{folder}/{split_shards[0].name}", record)
    # Sizes of images are unknown; mean and standard deviation of the pixels are ImageNet's.
    splits = {
        split: Split(split_shards, (), (0, 0.0, 0), (0, 0.0, 0), InputConfig.mean, InputConfig.std)
        for split, split_shards in shards.items()
    }
    total = sum(split.num_examples for split in splits.values())
    return Manifest(folder, names, record.label_offset, splits, total, {}, {}, "", record=record)


def _match(pattern: str) -> list[str]:
    """Returns the paths that match a pattern, except the counts that this module caches next to the shards."""
    paths = sorted(path for path in tf.io.gfile.glob(pattern) if not os.path.basename(path).startswith(CACHE_NAME))
    _require(paths, pattern)
    return paths


def _require(matches: Sequence[object], pattern: str) -> None:
    if not matches:
        raise ValueError(no_match(pattern))


def _shard(path: str, cached: Mapping[str, Positions], lengths: dict[str, Positions]) -> Shard | None:
    """Returns a shard with its number of records; None for a folder, which a glob can match too.

    Without an index, the lengths of its records are `cached` ones, or are read, and are added to `lengths`.
    """
    name, status = os.path.basename(path), tf.io.gfile.stat(path)
    num_bytes = status.length
    if status.is_directory:
        return None
    check_file(path)
    index = f"{os.path.dirname(path)}/index/{name.removesuffix('.tfrecord')}.parquet"
    if name in cached and cached[name].sum() == num_bytes:
        lengths[name] = cached[name]
    elif tf.io.gfile.exists(index):
        return Shard(name, _count_index(index, num_bytes), num_bytes, "")
    else:
        lengths[name] = read_lengths(path, num_bytes)
    return Shard(name, len(lengths[name]), num_bytes, "")


def _count_index(path: str, num_bytes: int) -> int:
    """Returns the number of records in the index of a shard of num_bytes bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_file(path, MAX_INDEX_BYTES)
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    try:
        count = int(pq.read_metadata(pa.BufferReader(content)).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path!r} is not an index: {error}; remove it to count the records instead") from error
    if count * FRAME_BYTES > num_bytes:
        raise ValueError(f"{path!r} has {count} rows, more records than fit into {num_bytes} bytes; remove it")
    return count


def _check_first(path: str, record: RecordSpec) -> None:
    """Raises ValueError unless the first record of a shard has the features of `record`."""
    first = next(iter(tf.data.TFRecordDataset(path).take(1).as_numpy_iterator()), None)
    if first is None:
        return
    try:
        features = Example.FromString(first).features.feature
    except Exception as error:  # protobuf's DecodeError has no public name that all its versions share
        raise ValueError(f"record 0 of {path!r} is not a tf.train.Example: {error}") from error
    for key, values in ((record.image_key, "bytes_list"), (record.label_key, "int64_list")):
        if key not in features or not getattr(features[key], values).value:
            raise ValueError(
                f"record 0 of {path!r} has no {values} feature {key!r}; it has {', '.join(sorted(features))}; "
                "choose the features with record=RecordSpec(image_key=…, label_key=…)"
            )
