"""Re-reads everything that a manifest promises.

manifest.json ──▶ every shard, on all cores: size, sha256, record checksums, labels, index, a decode of each image
              ──▶ the sums: records + rejected = inputs; nothing missing, nothing extra
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from beam_pipelines import storage
from beam_pipelines.commit import REJECTED_NAME
from beam_pipelines.images import Rejected, check_image
from beam_pipelines.index import IndexRow, index_path, read_index
from tpu_input.schema import FRAME_BYTES, MANIFEST_NAME, Manifest, Shard, decode, frame, read_frames

REPORT_NAME = "report.html"


def verify(dataset: str) -> tuple[Manifest, list[str]]:
    """Returns the manifest of a dataset and everything that does not hold; an empty list if all does.

    Raises:
      ValueError: There is no manifest, so no complete dataset.
    """
    path = f"{dataset}/{MANIFEST_NAME}"
    if not storage.exists(path):
        raise ValueError(f"{dataset!r} holds no {MANIFEST_NAME}, so no complete dataset; run convert first, or again")
    manifest = Manifest.from_json(storage.read_bytes(path).decode(), dataset)
    problems = list(_check_files(manifest)) + list(_check_rejected(manifest))
    tasks = [(name, shard) for name, split in manifest.splits.items() for shard in split.shards]
    counts = {name: Counter[int]() for name in manifest.splits}
    keys: set[str] = set()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        checked = pool.map(lambda task: _check_shard(manifest, task[1]), tasks)
        for (name, shard), (rows, found) in zip(tasks, checked, strict=True):
            counts[name].update(row.label for row in rows)
            problems += found
            problems += [
                f"{shard.name}: key {row.key!r} occurs twice in the dataset" for row in rows if row.key in keys
            ]
            keys.update(row.key for row in rows)
    for name, split in manifest.splits.items():
        labels = tuple(counts[name][label] for label in range(len(manifest.classes)))
        if labels != split.class_counts:
            problems.append(f"split {name!r} has {labels} examples by class, the manifest says {split.class_counts}")
    return manifest, problems


def _check_files(manifest: Manifest) -> Iterator[str]:
    shards = {shard.name for split in manifest.splits.values() for shard in split.shards}
    indexes = {index_path("", name).lstrip("/") for name in shards}
    promised = shards | indexes | {MANIFEST_NAME, REJECTED_NAME}
    found = {path for path, _ in storage.list_files(manifest.path)}
    for path in sorted(promised - found):
        yield f"{path} is missing"
    for path in sorted(found - promised - {REPORT_NAME}):
        yield f"{path} is no part of the dataset"


def _check_rejected(manifest: Manifest) -> Iterator[str]:
    path = f"{manifest.path}/{REJECTED_NAME}"
    if not storage.exists(path):
        return
    try:
        lines = storage.read_bytes(path).splitlines()
        reasons = dict(sorted(Counter(json.loads(line)["reason"] for line in lines).items()))
    except (ValueError, KeyError, TypeError) as error:
        yield f"{REJECTED_NAME} cannot be read: {error!r}"
        return
    if reasons != manifest.num_rejected:
        yield f"{REJECTED_NAME} lists {reasons}, the manifest says {manifest.num_rejected}"
    records = sum(split.num_examples for split in manifest.splits.values())
    if records + len(lines) != manifest.num_inputs:
        yield f"{records} records and {len(lines)} rejected are not the {manifest.num_inputs} inputs"


def _check_shard(manifest: Manifest, shard: Shard) -> tuple[list[IndexRow], list[str]]:
    """Returns the index that a shard's records make, as far as they can be read, and what is wrong with the shard."""
    path, rows, problems = f"{manifest.path}/{shard.name}", list[IndexRow](), list[str]()
    if not storage.exists(path):
        return rows, problems
    digest = hashlib.sha256()
    try:
        with storage.open_file(path) as file:
            for offset, payload in read_frames(file):
                digest.update(frame(payload))
                row, problem = _check_record(manifest, offset, payload)
                rows.append(row)
                problems += [problem] if problem else []
    except ValueError as error:
        problems.append(str(error))
    if len(rows) != shard.num_examples:
        problems.append(f"holds {len(rows)} readable records, the manifest says {shard.num_examples}")
    elif digest.hexdigest() != shard.sha256:
        problems.append("its sha256 differs from the manifest's")
    problems += _check_index(manifest, shard, rows)
    return rows, [f"{shard.name}: {problem}" for problem in problems]


def _check_record(manifest: Manifest, offset: int, payload: bytes) -> tuple[IndexRow, str]:
    """Returns the index row of one record, and what is wrong with the record or ""."""
    record = decode(payload, manifest.first_label)
    length = len(payload) + FRAME_BYTES
    row = IndexRow(record.key, "", record.label, offset, length, record.height, record.width, record.sha256)
    if not 0 <= record.label < len(manifest.classes):
        return row, f"record {record.key!r} has label {record.label}, there are {len(manifest.classes)} classes"
    if record.class_name != manifest.classes[record.label]:
        return row, f"record {record.key!r} is called {record.class_name!r}, its label says {record.label}"
    if hashlib.sha256(record.encoded).hexdigest() != record.sha256:
        return row, f"the image of record {record.key!r} does not match its sha256"
    try:
        image = check_image(record.encoded)
    except Rejected as rejected:
        return row, f"the image of record {record.key!r} is {rejected.reason}: {rejected.detail}"
    if image.fixed or (image.height, image.width) != (record.height, record.width):
        return row, f"the image of record {record.key!r} is not as the record describes it"
    return row, ""


def _check_index(manifest: Manifest, shard: Shard, rows: list[IndexRow]) -> list[str]:
    path = index_path(manifest.path, shard.name)
    if not storage.exists(path):
        return []  # said already
    try:
        index = read_index(path)
    except (OSError, pa.ArrowException) as error:
        return [f"its index cannot be read: {error}"]
    if [row._replace(uri="") for row in index] != rows:
        return ["its index does not agree with its records"]
    return []
