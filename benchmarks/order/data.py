"""Records of which __main__.py compares the orders: written once, and copied into the formats of the peers.

    FOLDER/tfrecord/     manifest.json, lengths.parquet and shards, as a conversion writes them
    FOLDER/array_record/ the same records for grain
    FOLDER/mds/          the same records for MosaicML streaming

A record has random bytes in the place of a JPEG, as nothing decodes it, and its own number as its key.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import measure
from benchmarks.measure import PEERS, PEERS_TORCH
from tpu_input.dataset_format.lengths import LENGTHS_NAME, write_lengths
from tpu_input.dataset_format.manifest import MANIFEST_NAME, Manifest, Shard, Split, shard_name
from tpu_input.dataset_format.records import Record, encode, frame

PHOTOGRAPH_BYTES = 88_000  # of those of benchmarks/corpus.py, on average
TINY_BYTES = 60  # where only the order counts
FORMATS = {"array_record": PEERS, "mds": PEERS_TORCH}  # and the environment that writes each


def make_records(folder: Path, shards: Sequence[int], mean_bytes: int) -> Path:
    """Returns the folder of a dataset in all formats whose environments are there; made, if it is not there.

    Args:
      folder: Folder of all datasets.
      shards: Number of records of each shard.
      mean_bytes: Bytes in the place of a JPEG: two thirds to four thirds of this, evenly distributed.
    """
    layout = hashlib.sha256(repr(tuple(shards)).encode()).hexdigest()[:8]
    output = folder / f"{sum(shards)}in{len(shards)}of{mean_bytes}-{layout}"
    if not (output / "tfrecord" / MANIFEST_NAME).exists():
        write_tfrecords(output / "tfrecord", shards, mean_bytes)
    for name, python in FORMATS.items():
        if python.exists() and not (output / name / "complete").exists():
            shutil.rmtree(output / name, ignore_errors=True)  # of a run that was interrupted
            command = [python, "-W", "ignore", "-m", "benchmarks.order.peers", "write", name, output]
            measure.check(measure.run(command), command)
            (output / name / "complete").touch()
    return output


def even_shards(count: int, shards: int) -> list[int]:
    """Returns the numbers of records of so many shards, which differ by one at most."""
    return [count // shards + (number < count % shards) for number in range(shards)]


def write_tfrecords(folder: Path, shards: Sequence[int], mean_bytes: int) -> None:
    """Writes the shards, the lengths of their records and the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    pool, entries, lengths, first = random.bytes(4 * mean_bytes), [], {}, 0
    for place, count in enumerate(shards):
        name, sha256 = shard_name("train", place, len(shards)), hashlib.sha256()
        framed_bytes = []
        with (folder / name).open("wb") as file:
            for number in range(first, first + count):
                begin, length = (
                    random.integers(2 * mean_bytes),
                    random.integers(2 * mean_bytes // 3, 4 * mean_bytes // 3),
                )
                framed = frame(encode(_record(number, b"\xff\xd8" + pool[begin : begin + length] + b"\xff\xd9")))
                file.write(framed)
                sha256.update(framed)
                framed_bytes.append(len(framed))
        size, first = sum(framed_bytes), first + count
        lengths[name] = np.array(framed_bytes, np.int64)
        entries.append(Shard(name, count, size, sha256.hexdigest()))
    with (folder / LENGTHS_NAME).open("wb") as lengths_file:
        write_lengths(lengths_file, lengths)
    split = Split(tuple(entries), (first,), (1, 1.0, 1), (1, 1.0, 1), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    manifest = Manifest(str(folder), ("any",), 0, {"train": split}, first, {}, {}, hashlib.sha256().hexdigest())
    (folder / MANIFEST_NAME).write_text(manifest.to_json())


def _record(number: int, encoded: bytes) -> Record:
    return Record(f"key{number:09d}", encoded, 1, 1, 3, 0, "any", "0" * 64)
