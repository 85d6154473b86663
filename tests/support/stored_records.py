"""What a test looks up in the shards of a dataset."""

from __future__ import annotations

from pathlib import Path

from tpu_input.dataset_format.records import decode, read_frames


def splits_by_key(path: Path) -> dict[str, str]:
    """Returns the split of each record of all shards in a folder, by key."""
    splits = {}
    for shard in path.glob("*.tfrecord"):
        with open(shard, "rb") as file:
            for _, payload in read_frames(file):
                splits[decode(payload).key] = shard.name.partition("-")[0]
    return splits
