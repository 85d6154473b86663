"""Verification of a dataset: re-reads all its files and compares them with the manifest.

manifest.json ──▶ every shard, on all cores: size, sha256, record checksums, labels, index, a decode of each image
              ──▶ lengths.parquet: the lengths of the records read
              ──▶ the sums: records + rejected = inputs; no missing files, no extra files
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from beam_pipelines import storage
from beam_pipelines.conversion import working_folder
from beam_pipelines.conversion.output_folder import (
    complete_manifest,
    dataset_files,
    index_content,
    list_dataset,
    optional_files,
    rejected_name,
)
from beam_pipelines.images.check import Rejected, check_image
from beam_pipelines.options import ImageOptions
from beam_pipelines.report.rejections import read_lines
from beam_pipelines.runners import phases
from tpu_input.command_line.cores import num_cores
from tpu_input.dataset_format.decode_limits import PILLOW_MAX_PIXELS
from tpu_input.dataset_format.index import IndexRow, index_path, read_index
from tpu_input.dataset_format.lengths import Positions, lengths_name, max_bytes, parse_lengths
from tpu_input.dataset_format.records import FRAME_BYTES, Manifest, Record, Shard, decode, frame, read_frames

# Options of the conversion may have kept color profiles, and images above the default of max_pixels.
_AS_STORED = ImageOptions(max_pixels=PILLOW_MAX_PIXELS, color_profiles="ignore")


@dataclasses.dataclass
class Findings:
    """Result of verify().

    Attributes:
      manifest: Manifest of the dataset.
      problems: One line per problem; empty if there are none.
      damaged: Names of the shards with a problem in the shard or its index.
      lengths_damaged: Whether lengths.parquet is damaged or missing. It is missing in datasets of earlier builds, too:
        nothing tells these from others, training is slow to start without it, and a repair writes it from the index.
    """

    manifest: Manifest
    problems: list[str] = dataclasses.field(default_factory=list)
    damaged: list[str] = dataclasses.field(default_factory=list)
    lengths_damaged: bool = False


def verify(dataset: str, decode_images: bool = True, num_threads: int | None = None) -> Findings:
    """Compares a dataset with its manifest; returns the problems found.

    Args:
      dataset: Folder or URI.
      decode_images: Whether to decode every image, which takes most of the time.
      num_threads: Maximum number of shards that are read at the same time; None for all cores.

    Raises:
      ValueError: There is no valid manifest, so no complete dataset.
    """
    manifest = complete_manifest(storage.absolute(dataset))
    findings = Findings(manifest, [*_check_files(manifest), *_check_rejected(manifest)])
    tasks = [(name, shard) for name, split in manifest.splits.items() for shard in split.shards]
    counts = {name: Counter[int]() for name in manifest.splits}
    keys: set[bytes] = set()
    lengths = dict[str, Positions]()  # by shard, of those without problems
    with ThreadPoolExecutor(num_threads or num_cores()) as pool:
        checked = pool.map(lambda task: _check_shard(manifest, task[1], decode_images), tasks)
        phases.begin("verifying", len(tasks))
        for (name, shard), (rows, problems) in zip(tasks, checked, strict=True):
            phases.advance("verifying")
            counts[name].update(row.label for row in rows)
            hashes = [hashlib.sha256(row.key.encode()).digest()[:16] for row in rows]
            problems += [
                f"key {row.key!r} occurs more than once" for row, key in zip(rows, hashes, strict=True) if key in keys
            ]
            keys.update(hashes)
            findings.problems += [f"{shard.name}: {problem}" for problem in problems]
            findings.damaged += [shard.name] if problems else []
            if not problems:
                lengths[shard.name] = np.array([row.length for row in rows], np.int64)
    if problem := _lengths_problem(manifest, lengths):
        findings.problems.append(problem)
        findings.lengths_damaged = True
    for name, split in manifest.splits.items():
        labels = tuple(counts[name][label] for label in range(len(manifest.classes)))
        if labels != split.class_counts:
            findings.problems.append(
                f"split {name!r} has {labels} examples by class, but the manifest has {split.class_counts}"
            )
    return findings


def _check_files(manifest: Manifest) -> Iterator[str]:
    shards = [shard.name for split in manifest.splits.values() for shard in split.shards]
    promised = dataset_files(shards)
    found = {path for path, _ in list_dataset(manifest.path)}
    for path in sorted(promised - found):
        if not path.endswith((".tfrecord", ".parquet")):  # reported by shard, or by _lengths_problem()
            yield f"{path} is missing"
    try:
        promised |= working_folder.files_in_transit(manifest.path)
    except ValueError as error:
        yield str(error)
    for path in sorted(found - promised - optional_files(shards)):
        if not working_folder.is_in_working_folder(path):
            yield f"{path} is not part of the dataset"


def _lengths_problem(manifest: Manifest, lengths: Mapping[str, Positions]) -> str:
    """Returns what is wrong with lengths.parquet, or "".

    Args:
      manifest: The manifest.
      lengths: Lengths of the records of the shards without problems; only the sums of the others are compared.
    """
    name = lengths_name(manifest.edition)
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    num_rows = sum(shard.num_examples for shard in shards)
    try:
        content = storage.read_bytes(f"{manifest.path}/{name}", most=max_bytes(num_rows))
        listed = parse_lengths(content, num_rows)
        listed.of_shards(shards)
    except FileNotFoundError:
        return f"{name} is missing"
    except (OSError, ValueError) as error:
        return f"{name} cannot be used: {error}"
    if listed.names != [shard.name for shard in shards]:
        return f"{name} lists the shards in another order than the manifest"
    found = listed.by_shard()
    wrong = [shard for shard, of in lengths.items() if not np.array_equal(of, found[shard])]
    return f"{name} does not match the records of {wrong[0]}" if wrong else ""


def _check_rejected(manifest: Manifest) -> Iterator[str]:
    name = rejected_name(manifest.edition)
    if not storage.exists(f"{manifest.path}/{name}"):  # reported by _check_files()
        return
    try:
        reasons = dict(sorted(Counter(rejection.reason for rejection in read_lines(manifest)).items()))
    except ValueError as error:
        yield f"{name} cannot be read: {error}"
        return
    if reasons != manifest.num_rejected:
        yield f"{name} lists {reasons}, but the manifest has {manifest.num_rejected}"


def _check_shard(manifest: Manifest, shard: Shard, decode_images: bool) -> tuple[list[IndexRow], list[str]]:
    """Returns (index rows of the readable records of a shard, problems with the shard)."""
    rows, problems, digest = list[IndexRow](), list[str](), hashlib.sha256()
    try:
        with storage.open_file(f"{manifest.path}/{shard.name}") as file:
            for offset, payload in read_frames(file):
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
    )
    named = f"record {record.key!r}"
    if not 0 <= record.label < len(manifest.classes):
        return row, f"{named} has label {record.label}, but there are {len(manifest.classes)} classes"
    if record.class_name != manifest.classes[record.label]:
        return row, f"{named} has the class name {record.class_name!r}, which contradicts its label {record.label}"
    if hashlib.sha256(record.encoded).hexdigest() != record.sha256:
        return row, f"the image of {named} does not match its SHA-256"
    return row, _check_decoded(record, named) if decode_image else ""


def _check_decoded(record: Record, named: str) -> str:
    try:
        image = check_image(record.encoded, _AS_STORED)
    except Rejected as rejected:
        return f"the image of {named} is rejected as {rejected.reason}: {rejected.detail}"
    if image.fixed or (image.height, image.width) != (record.height, record.width):
        return f"the image of {named} differs from its description in the record"
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
    # Records have neither the URI of the source nor dhash, so these are not compared.
    if [row._replace(uri="", dhash=0) for row in index] != rows:
        return ["its index does not match its records"]
    return []
