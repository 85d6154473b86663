"""Check of one shard: size, SHA-256, checksums of records, labels, index, a decode of each image.

    shard ──read_frames──▶ records ──▶ problems, class counts, digest of the lengths, hashes of the keys

What is kept of a shard takes eight bytes for each record, so that a dataset of any size can be verified; its workers
send no more than that either. All records of one shard are in memory while it is checked, without their images.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipelines import storage
from beam_pipelines.conversion.duplicate_keys import Hashes, hash_keys
from beam_pipelines.conversion.output_folder import index_content
from beam_pipelines.options import ImageOptions
from tpu_input.dataset_format.decode_limits import PILLOW_MAX_PIXELS
from tpu_input.dataset_format.index import IndexRow, features_json, index_path, read_index
from tpu_input.dataset_format.label_kinds import stored_kind
from tpu_input.dataset_format.lengths import Positions
from tpu_input.dataset_format.records import FRAME_BYTES, Manifest, Record, Shard, decode, frame, read_frames
from tpu_input.stored_images.check import Rejected, check_image

# Columns of an index about the source, which the records do not have.
_SOURCE_COLUMNS: dict[str, Any] = dict.fromkeys(("source_bytes", "source_height", "source_width"))
# Options of the conversion may have kept color profiles, and images above the default of max_pixels.
_AS_STORED = ImageOptions(max_pixels=PILLOW_MAX_PIXELS, color_profiles="ignore")


class CheckedShard(NamedTuple):
    """Result of check_shard().

    Attributes:
      problems: One line per problem.
      class_counts: Number of readable records by label.
      lengths_digest: lengths_digest() of the records; "" if there is a problem.
      key_hashes: [readable records] int64, sorted.
    """

    problems: list[str]
    class_counts: Counter[int]
    lengths_digest: str
    key_hashes: Hashes


def check_shard(manifest: Manifest, shard: Shard, decode_images: bool) -> CheckedShard:
    """Reads a shard and its index and compares them with each other and with the manifest.

    Args:
      manifest: Manifest of the dataset.
      shard: One of its shards.
      decode_images: Whether to decode every image, which takes most of the time.

    Raises:
      OSError: The storage failed.
    """
    rows, problems = _check_records(manifest, shard, decode_images)
    digest = "" if problems else lengths_digest(np.array([row.length for row in rows], np.int64))
    counts = Counter(index for row in rows for index in stored_kind(row.label).indices(row.label))
    return CheckedShard(problems, counts, digest, hash_keys(row.key for row in rows))


def lengths_digest(lengths: Positions) -> str:
    """Returns the SHA-256 of [records] lengths, by which lengths.parquet is compared with what was read."""
    return hashlib.sha256(lengths.astype("<i8").tobytes()).hexdigest()


def keys_with(manifest: Manifest, shard: Shard, hashes: Iterable[int]) -> list[str]:
    """Returns the keys of the readable records of a shard that have one of these hashes, in the order of the shard."""
    hash_set, matches = set(hashes), list[str]()
    with contextlib.suppress(FileNotFoundError, ValueError):
        for _, payload in _payloads(manifest, shard):
            key = decode(payload, manifest.first_label).key
            matches += [key] if int(hash_keys([key])[0]) in hash_set else []
    return matches


def _payloads(manifest: Manifest, shard: Shard) -> Iterator[tuple[int, bytes]]:
    with storage.open_file(f"{manifest.path}/{shard.name}") as file:
        yield from read_frames(file)


def _check_records(manifest: Manifest, shard: Shard, decode_images: bool) -> tuple[list[IndexRow], list[str]]:
    """Returns (index rows of the readable records of a shard, problems with the shard)."""
    rows, problems, digest = list[IndexRow](), list[str](), hashlib.sha256()
    try:
        for offset, payload in _payloads(manifest, shard):
            digest.update(frame(payload))
            row, problem = _check_record(manifest, offset, payload, decode_images)
            rows.append(row)
            problems += [problem] if problem else []
    except FileNotFoundError:
        return rows, ["is missing"]
    except ValueError as error:
        problems.append(str(error))
    if len(rows) != shard.num_examples:
        problems.append(f"contains {len(rows)} readable records, but the manifest has {shard.num_examples}")
    elif digest.hexdigest() != shard.sha256:
        problems.append("its SHA-256 differs from the one in the manifest")
    return rows, problems + _check_index(manifest, shard, rows)


def _check_record(manifest: Manifest, offset: int, payload: bytes, decode_image: bool) -> tuple[IndexRow, str]:
    """Returns (index row of one record, the problem with the record or "")."""
    record = decode(payload, manifest.first_label)
    row = IndexRow(
        key=record.key,
        uri="",
        label=record.label,
        offset=offset,
        length=len(payload) + FRAME_BYTES,
        height=record.height,
        width=record.width,
        sha256=record.sha256,
        dhash=0,
        features=features_json(record.features),
    )
    subject, kind = f"record {record.key!r}", manifest.label_kind
    if problem := _feature_problem(manifest, record):
        return row, f"{subject} {problem}"
    if not kind.fits(record.label):
        record_kind = stored_kind(record.label)
        return row, f"{subject} has {record_kind.phrase.removesuffix(' each')}, but the manifest says {kind.phrase}"
    labels = kind.indices(record.label)
    if not kind.are_classes(record.label, len(manifest.classes)):
        return row, f"{subject} has label {record.label}, but there are {len(manifest.classes)} classes"
    class_name = kind.class_name([manifest.classes[label] for label in labels])
    if record.class_name != class_name or list(labels) != sorted(set(labels)):
        return row, f"{subject} has the class name {record.class_name!r}, which contradicts its label {record.label}"
    if hashlib.sha256(record.encoded).hexdigest() != record.sha256:
        return row, f"the image of {subject} does not match its SHA-256"
    return row, _check_decoded(record, subject, is_lossless(manifest)) if decode_image else ""


def _feature_problem(manifest: Manifest, record: Record) -> str:
    """Returns the problem with the features of a record other than image and label, or ""."""
    kinds = {"float": float, "int": int, "string": str}
    for name, feature in manifest.features.items():
        values = record.features.get(name, ())
        if len(values) != (feature.length or 1) or not all(isinstance(value, kinds[feature.kind]) for value in values):
            return f"has {len(values)} values of {name}, which are not those that the manifest declares"
    if unknown := record.features.keys() - manifest.features.keys():
        return f"has the feature {min(unknown)!r}, which the manifest does not declare"
    return ""


def is_lossless(manifest: Manifest) -> bool:
    """Returns whether a dataset may have PNGs among its images."""
    images = manifest.options.get("images")
    return isinstance(images, dict) and images.get("lossless") is True


def _check_decoded(record: Record, subject: str, lossless: bool) -> str:
    try:
        image = check_image(record.encoded, dataclasses.replace(_AS_STORED, lossless=lossless))
    except Rejected as rejected:
        return f"the image of {subject} is rejected as {rejected.reason}: {rejected.detail}"
    if image.fixed or (image.height, image.width) != (record.height, record.width):
        return f"the image of {subject} differs from its description in the record"
    return ""


def _check_index(manifest: Manifest, shard: Shard, rows: list[IndexRow]) -> list[str]:
    path = f"{manifest.path}/{index_path(shard.name)}"
    try:
        index = read_index(index_content(path), shard.num_examples)
    except FileNotFoundError:
        return ["its index is missing"]
    except (OSError, ValueError, pa.ArrowException) as error:
        return [f"its index cannot be read: {error}"]
    if any(row.uri is None for row in index):
        return ["its index has no column uri, which contains the URIs of the source images"]
    # Records have neither URI nor size of the source, nor dhash, so these are not compared.
    if [row._replace(uri="", dhash=0, **_SOURCE_COLUMNS) for row in index] != rows:
        return ["its index does not match its records"]
    return []
