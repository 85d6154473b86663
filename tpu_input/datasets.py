"""Manifests of datasets, whether written by a conversion or by another program; and the search for undecodable records.

    FOLDER/manifest.json ──read_manifest()──▶ Manifest
    pattern ──manifest_from_shards()──▶ Manifest

TFRecords of other programs have no manifest. Their records are counted by their lengths, which are read once and kept
beside the shards (storage/positions.py); nothing is decoded.

find_undecodable() finds the record that TensorFlow's parser or decoder rejected. It searches after the error, so that
good records have no overhead: an error that contains a size leads to the records of about that length, which are
decoded one by one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.dataset_format.record_spec import RecordSpec
from tpu_input.dataset_format.records import (
    FRAME_BYTES,
    MANIFEST_NAME,
    MAX_INDEX_BYTES,
    MAX_MANIFEST_BYTES,
    Manifest,
    Shard,
    Split,
    manifest_name,
    parse,
)
from tpu_input.dataset_format.tfrecord import Example
from tpu_input.pipeline.images import decode_whole
from tpu_input.storage.byte_ranges import check_file, check_files
from tpu_input.storage.positions import (
    KEPT_NAME,
    Positions,
    keep_lengths,
    kept_lengths,
    read_lengths,
    walk_lengths,
)

_THREADS = 16  # which mostly wait for storage


DatasetLike = Manifest | str | os.PathLike[str]  # what as_manifest() takes


def as_manifest(dataset: DatasetLike) -> Manifest:
    """Returns a manifest as it is, and reads that of a dataset given by its folder or URI.

    Raises:
      ValueError: It is neither, or there is no dataset.
    """
    if isinstance(dataset, Manifest):
        return dataset
    if isinstance(dataset, (str, os.PathLike)):
        return read_manifest(os.fspath(dataset))
    raise ValueError(f"a dataset is a Manifest from read_manifest(), or a path or URI, got {dataset!r}")


def shard_patterns(text: str) -> dict[str, str]:
    """Returns the glob of each split, from a glob of the split "train", or "train=GLOB,validation=GLOB".

    Where the name of the files of one glob contains "train", and there are files with "validation" in its place, these
    are the split "validation".
    """
    if re.match(r"\w+=", text):  # not gs://bucket/date=2026/train-*
        parts = (part.partition("=") for part in text.split(","))
        return {split.strip(): pattern.strip() for split, _, pattern in parts}
    folder, slash, name = text.rpartition("/")
    held_out = f"{folder}{slash}{name.replace('train', 'validation', 1)}"
    has_both = held_out != text and bool(tf.io.gfile.glob(held_out))
    return {"train": text, **({"validation": held_out} if has_both else {})}


def manifest_from_shards(
    pattern: str | Mapping[str, str], record: RecordSpec | None = None, classes: int | Sequence[str] = 1000
) -> Manifest:
    """Returns a manifest of another program's TFRecords; reads their lengths once and keeps these beside them.

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
    found = {split: _match(pattern) for split, pattern in patterns.items()}
    folders = {os.path.dirname(path) for paths in found.values() for path in paths}
    if len(folders) != 1:
        raise ValueError(f"the shards must be in one folder, got {len(folders)}: {sorted(folders)}")
    (folder,) = folders
    kept, lengths = kept_lengths(folder), dict[str, Positions]()
    with ThreadPoolExecutor(_THREADS) as pool:
        counted = {split: pool.map(lambda path: _shard(path, kept, lengths), paths) for split, paths in found.items()}
        shards = {split: tuple(filter(None, of)) for split, of in counted.items()}
    for split, of in shards.items():
        _require(of, patterns[split])
    if any(kept.get(name) is not of for name, of in lengths.items()):
        keep_lengths(folder, kept | lengths)
    for of in shards.values():
        _check_first(f"{folder}/{of[0].name}", record)
    splits = {split: _split(of) for split, of in shards.items()}
    total = sum(split.num_examples for split in splits.values())
    return Manifest(folder, names, record.label_offset, splits, total, {}, {}, "", record=record)


def _match(pattern: str) -> list[str]:
    """Returns the paths that match a pattern, except the counts that this module caches beside the shards."""
    paths = sorted(path for path in tf.io.gfile.glob(pattern) if not os.path.basename(path).startswith(KEPT_NAME))
    _require(paths, pattern)
    return paths


def _require(found: Sequence[object], pattern: str) -> None:
    if not found:
        raise ValueError(f"no file matches {pattern!r}; quote the pattern, and check it with: ls {pattern}")


def _split(shards: tuple[Shard, ...]) -> Split:
    """Returns a split with unknown image sizes, and ImageNet's mean and standard deviation of the pixels."""
    return Split(shards, (), (0, 0.0, 0), (0, 0.0, 0), InputConfig.mean, InputConfig.std)


def _shard(path: str, kept: Mapping[str, Positions], found: dict[str, Positions]) -> Shard | None:
    """Returns a shard with its number of records; None for a folder, which a glob can match too.

    Args:
      path: Path of the shard.
      kept: Lengths of the records by shard, as kept beside the shards.
      found: Lengths of the records by shard, to which those of this shard are added if it has no index.
    """
    name, status = os.path.basename(path), tf.io.gfile.stat(path)
    num_bytes = status.length
    if status.is_directory:
        return None
    check_file(path)
    index = f"{os.path.dirname(path)}/index/{name.removesuffix('.tfrecord')}.parquet"
    if name in kept and kept[name].sum() == num_bytes:
        found[name] = kept[name]
    elif tf.io.gfile.exists(index):
        return Shard(name, _count_index(index, num_bytes), num_bytes, "")
    else:
        found[name] = read_lengths(path, num_bytes)
    return Shard(name, len(found[name]), num_bytes, "")


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


# Messages of the decoders:
# "Invalid JPEG data or crop window, data size 318", "jpeg::Uncompress failed. Invalid …", "Invalid PNG data, size 90".
_UNDECODED = re.compile(r"Invalid (?:JPEG|PNG)|Uncompress failed|Unknown image file format")
# Messages of the parser: tensorflow/core/util/example_proto_fast_parsing.cc and example_proto_helper.cc.
_UNPARSED = re.compile(
    r"Could not parse example input|Can't parse serialized Example|values != expected|Data types don't match"
)
_SIZE = re.compile(r"size (\d+)")
_MOST_OTHER_FEATURES = 1 << 16  # largest size of a record without its image, in bytes; this package's have some 500


def find_undecodable(dataset: DatasetLike, split: str, message: str) -> str | None:
    """Returns "record N of 'SHARD'" for the record that TensorFlow's parser or decoder rejected; None if none is found.

    For an error of the decoder, it reads the lengths of all records up to the rejected one, and decodes the few whose
    length agrees with the message. For an error of the parser, whose message has no length, it reads and parses all
    records up to the rejected one.

    Args:
      dataset: Manifest of the dataset, or its folder or URI.
      split: Name of the split to search.
      message: Message of the tf.errors.InvalidArgumentError that stopped a run.

    Raises:
      ValueError: There is no such split, or a shard is truncated.
    """
    manifest = as_manifest(dataset)
    parsing = bool(_UNPARSED.search(message))
    if not parsing and not _UNDECODED.search(message):
        return None
    size = None if parsing else _SIZE.search(message)
    lengths = range(int(size[1]), int(size[1]) + _MOST_OTHER_FEATURES) if size else range(2**63 - 1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        serialized = tf.compat.v1.placeholder(tf.string, [])
        example = parse(serialized, manifest.first_label, manifest.record, manifest.num_labels)
        tried = example if parsing else tf.shape(decode_whole(example["encoded"], manifest.record))
        for place, payload in _records(manifest, split, lengths):
            try:
                session.run(tried, {serialized: payload})
            except tf.errors.InvalidArgumentError:
                return place
    return None


def _records(manifest: Manifest, split: str, lengths: range) -> Iterator[tuple[str, bytes]]:
    for shard in manifest.split(split).shards:
        path = f"{manifest.path}/{shard.name}"
        with tf.io.gfile.GFile(path, "rb") as file:
            for number, (offset, length) in enumerate(walk_lengths(path, shard.num_bytes)):
                if length in lengths:
                    file.seek(offset)
                    yield f"record {number} of {path!r}", file.read(length)


def read_manifest(path: str | os.PathLike[str], version: int | None = None) -> Manifest:
    """Returns the manifest of the dataset in a folder or at a URI, e.g. "gs://bucket/flowers".

    Args:
      path: The folder or URI.
      version: Version of a dataset that was extended, from 1; None for the last one.

    Raises:
      ValueError: There is no complete dataset (a conversion writes the manifest last), or no such version, or the
        manifest or a shard is not a regular file, but e.g. a pipe.
    """
    folder = os.fspath(path).rstrip("/")
    manifest = _read_manifest(folder, MANIFEST_NAME)
    if version is not None and version != manifest.version:
        if not 1 <= version < manifest.version:
            raise ValueError(f"{folder!r} has no version {version}; it has 1 to {manifest.version}")
        manifest = _read_manifest(folder, manifest_name(version))
    check_files(folder, (shard.name for split in manifest.splits.values() for shard in split.shards))
    return manifest


def version_with(manifest: Manifest, fingerprint: str) -> Manifest:
    """Returns the version of a dataset that has this fingerprint; the manifest itself if no earlier version has it.

    Raises:
      ValueError: The manifest of that version is missing or damaged.
    """
    if fingerprint not in manifest.earlier:
        return manifest
    return read_manifest(manifest.path, manifest.earlier.index(fingerprint) + 1)


def _read_manifest(folder: str, name: str) -> Manifest:
    check_file(f"{folder}/{name}")
    try:
        with tf.io.gfile.GFile(f"{folder}/{name}", "rb") as file:
            num_bytes = file.size()
            if num_bytes > MAX_MANIFEST_BYTES:
                raise ValueError(
                    f"{folder}/{name} has {num_bytes:,} bytes, more than a manifest can have; copy it again"
                )
            text = file.read(num_bytes)
    except tf.errors.NotFoundError:
        if _is_no_bucket(folder):
            raise ValueError(f"bucket {folder.split('/')[2]!r} of {folder!r} does not exist; check its name") from None
        raise ValueError(
            f"{folder!r} has no {name}, so it is not a complete dataset; "
            "create one with: python -m beam_pipelines convert --input=IMAGES --output=" + folder
        ) from None
    return Manifest.from_json(text, folder)


def _is_no_bucket(folder: str) -> bool:
    """Returns whether a folder is in a bucket that does not exist; False also if that cannot be determined."""
    if not folder.startswith("gs://"):
        return False
    try:
        return not tf.io.gfile.exists("/".join(folder.split("/")[:3]))
    except tf.errors.OpError:
        return False
