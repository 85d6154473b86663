"""Shards with damaged records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpu_input.dataset_format import records as record_format

SHARD = "train-00002-of-00009.tfrecord"


def rewrite(folder: Path, change: Callable[[bytes], bytes]) -> int:
    """Passes record 5 of the third shard through `change`, as if written so; returns how many records the shard has."""
    with (folder / SHARD).open("rb") as file:
        payloads = [payload for _, payload in record_format.read_frames(file)]
    payloads[5] = change(payloads[5])
    (folder / SHARD).write_bytes(b"".join(map(record_format.frame, payloads)))
    manifest = json.loads((folder / record_format.MANIFEST_NAME).read_text())
    for shard in manifest["splits"]["train"]["shards"]:
        shard["num_bytes"] = (folder / shard["name"]).stat().st_size
    (folder / record_format.MANIFEST_NAME).write_text(json.dumps(manifest))
    return len(payloads)


def changed(**features: Any) -> Callable[[bytes], bytes]:
    def change(payload: bytes) -> bytes:
        return record_format.encode(record_format.decode(payload)._replace(**features))

    return change
