"""Datasets by their folder or URI: their manifests, and what follows from a manifest alone. TensorFlow-free.

FOLDER/manifest.json ──read_manifest()──▶ Manifest

TFRecords of other programs have no manifest; storage/foreign_shards.py makes one.
"""

from __future__ import annotations

import os

from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.command_line.distribution import needing_extras
from tpu_input.dataset_format.records import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, manifest_name
from tpu_input.storage.byte_ranges import check_file, check_files, is_no_bucket, read_bytes
from tpu_input.storage.patterns import is_pattern

DatasetLike = Manifest | str | os.PathLike[str]  # what as_manifest() takes


def as_manifest(dataset: DatasetLike) -> Manifest:
    """Returns a manifest as it is, or reads the manifest of a dataset given by its folder or URI.

    Raises:
      ValueError: It is neither, or there is no dataset.
    """
    if isinstance(dataset, Manifest):
        return dataset
    if isinstance(dataset, (str, os.PathLike)):
        return read_manifest(os.fspath(dataset))
    raise ValueError(f"a dataset is a Manifest from read_manifest(), or a path or URI, got {dataset!r}")


@checks_arguments
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
    check_files(folder, (shard.name for shard in manifest.shards))
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
    path = f"{folder}/{name}"
    try:
        check_file(path, MAX_MANIFEST_BYTES)
        text = read_bytes(path, 0, MAX_MANIFEST_BYTES + 1)
    except NotADirectoryError:
        raise ValueError(f"{folder!r} is a file, but a dataset is a folder; name the folder that it is in") from None
    except FileNotFoundError:
        if is_pattern(folder):
            raise ValueError(
                f"{folder!r} is a pattern, but a dataset is a folder; name the folder, or for shards of another "
                "program use tpu_input.manifest_from_shards()"
            ) from None
        if is_no_bucket(folder):
            raise ValueError(f"bucket {folder.split('/')[2]!r} of {folder!r} does not exist; check its name") from None
        raise ValueError(
            f"{folder!r} has no {name}, so it is not a complete dataset; "
            "create one with: jpeg2tpu convert --input=IMAGES --output=" + folder
        ) from None
    if len(text) > MAX_MANIFEST_BYTES:
        raise ValueError(f"{path} has more than {MAX_MANIFEST_BYTES:,} bytes, which no manifest has; copy it again")
    return Manifest.from_json(text, folder)


@checks_arguments
def eval_steps(dataset: DatasetLike, split: str, eval_batch_size: int, num_hosts: int = 1) -> int:
    """Returns the number of steps that evaluate every example of a split: its examples by the batch, rounded up.

    Args:
      dataset: Manifest of the dataset, or its folder or URI.
      split: Name of the split.
      eval_batch_size: Global batch size.
      num_hosts: Input hosts; each feeds an equal part of the batch.

    Raises:
      ValueError: The batch is not a positive multiple of the hosts, or there is no such split.
    """
    if eval_batch_size < 1 or eval_batch_size % num_hosts:
        raise ValueError(f"eval_batch_size must be a positive multiple of {num_hosts} hosts, got {eval_batch_size}")
    return -(-as_manifest(dataset).split(split).num_examples // eval_batch_size)


@checks_arguments
def find_undecodable(dataset: DatasetLike, split: str, message: str) -> str | None:
    """Returns "record N of 'SHARD'" for the record that TensorFlow's parser or decoder rejected; None if none is found.

    For an error of the decoder, it reads the lengths of all records up to the rejected one, and decodes the few whose
    length agrees with the message. For an error of the parser, whose message has no length, it reads and parses all
    records up to the rejected one. It needs TensorFlow.

    Args:
      dataset: Manifest of the dataset, or its folder or URI.
      split: Name of the split to search.
      message: Message of the tf.errors.InvalidArgumentError that stopped a run.

    Raises:
      ValueError: There is no such split, or a shard is truncated.
    """
    with needing_extras("find_undecodable()"):
        from tpu_input.pipeline.decoding import search_undecodable

    return search_undecodable(as_manifest(dataset), split, message)
