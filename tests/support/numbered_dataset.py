"""A dataset whose records are their own numbers, to follow the order of training through readers and hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tpu_input.dataset_format.index import IndexRow, index_path, write_index
from tpu_input.dataset_format.manifest import Manifest, Shard, Split, shard_name
from tpu_input.dataset_format.records import frame


def write_numbered(
    folder: Path, counts: Sequence[int], payload_bytes: int = 20, labels: Sequence[int] | None = None
) -> Manifest:
    """Writes shards of so many records each, with their indexes; the payload of a record begins with its number.

    Payloads differ in length, so that offsets do. All records are of one class if there are no labels.
    """
    labels = labels or [0] * sum(counts)
    (folder / "index").mkdir(parents=True)
    shards, number = [], 0
    for place, count in enumerate(counts):
        name, content, rows = shard_name("train", place, len(counts)), bytearray(), []
        for _ in range(count):
            framed = frame(b"%d:" % number + bytes(payload_bytes + number % 7))
            rows.append(IndexRow(str(number), "", labels[number], len(content), len(framed), 1, 1, "0" * 64, 0))
            content += framed
            number += 1
        (folder / name).write_bytes(content)
        with (folder / index_path(name)).open("wb") as file:
            write_index(file, rows)
        shards.append(Shard(name, count, len(content), "0" * 64))
    class_counts = tuple(labels.count(label) for label in range(max(labels) + 1))
    split = Split(tuple(shards), class_counts, (1, 1.0, 1), (1, 1.0, 1), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    return Manifest(
        str(folder), tuple(map(str, range(len(class_counts)))), 0, {"train": split}, number, {}, {}, "0" * 64
    )
