"""How many requests TensorFlow makes of a bucket for what it reads there."""

from __future__ import annotations

import hashlib
import json

import pytest

from tpu_input.dataset_format import records as record_format

pytestmark = pytest.mark.cloud

# What a process with this package's settings reads of a split, once; prints how many records there were.
READ = """
import sys
from tpu_input.pipeline import gcs_filesystem
gcs_filesystem.set_up()
from tpu_input import InputConfig, read_manifest
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.reading import records
dataset = records(read_manifest(sys.argv[1]), "train", Host(), InputConfig(8), order=None)
print(sum(1 for _ in dataset))
"""
MIB = 2**20


def shard_of(name: str, data: bytes) -> dict:
    return {"name": name, "num_examples": 25, "num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.fixture(scope="module")
def large(gs_session, digits_dataset) -> str:
    """The URI of a dataset with one shard of 25 records of a million bytes."""
    uri = f"{gs_session.cloud.make_bucket()}/large"
    shard = b"".join(record_format.frame(bytes([number]) * 10**6) for number in range(25))
    fields = json.loads(digits_dataset.to_json()) | {"num_inputs": 25, "num_rejected": {}}
    train = fields["splits"]["train"] | {
        "shards": [
            {"name": "train-00000-of-00001.tfrecord", "num_examples": 25, "num_bytes": len(shard), "sha256": "0" * 64}
        ],
        "class_counts": [25] + [0] * 9,
    }
    gs_session.cloud.put(f"{uri}/train-00000-of-00001.tfrecord", shard)
    gs_session.cloud.put(f"{uri}/manifest.json", json.dumps(fields | {"splits": {"train": train}}).encode())
    return uri


def test_a_shard_takes_a_request_for_its_size_and_one_for_each_8_mib(gs, large):
    code, out, err = gs.run("-c", READ, large)
    assert (code, out.strip()) == (0, "25"), err
    reads = gs.proxy.reads(".tfrecord")
    assert [request.headers["range"] for request in reads] == [
        f"bytes={start * MIB}-{(start + 8) * MIB - 1}" for start in (0, 8, 16)
    ]
    assert len([request for request in gs.proxy.requests if ".tfrecord" in request.target]) == len(reads) + 1


def test_a_manifest_takes_two_requests(gs):
    code, _, err = gs.run("-c", READ, gs.dataset)
    assert code == 0, err
    assert len([request for request in gs.proxy.requests if "manifest.json" in request.target]) <= 2
