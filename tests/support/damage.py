"""Damage to the dataset of digits, of many kinds at once."""

from __future__ import annotations

import json
from pathlib import Path

from tpu_input.dataset_format.index import read_index, write_index
from tpu_input.dataset_format.lengths import parse_lengths, write_lengths


def damage_in_many_ways(dataset: Path) -> None:
    """Damages shards, indexes, lengths and manifest of a dataset with at least seven training shards."""
    shards = sorted(dataset.glob("train-*.tfrecord"))
    data = bytearray(shards[0].read_bytes())
    data[len(data) // 2] ^= 1
    shards[0].write_bytes(data)
    shards[1].unlink()
    index = [dataset / "index" / shard.with_suffix(".parquet").name for shard in shards]
    index[2].unlink()
    rows = read_index(index[3].read_bytes())
    with index[3].open("wb") as file:
        write_index(file, [rows[0]._replace(offset=1), *rows[1:]])
    shards[5].write_bytes(shards[4].read_bytes())  # its keys occur twice
    (dataset / "train-00001-of-00002.tfrecord").write_bytes(b"")
    lengths = parse_lengths((dataset / "lengths.parquet").read_bytes()).by_shard()
    with (dataset / "lengths.parquet").open("wb") as file:
        write_lengths(file, {name: values[::-1] for name, values in lengths.items()})
    manifest = json.loads((dataset / "manifest.json").read_text())
    manifest["splits"]["train"]["class_counts"].reverse()
    (dataset / "manifest.json").write_text(json.dumps(manifest))
