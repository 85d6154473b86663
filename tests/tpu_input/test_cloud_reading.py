"""How many requests TensorFlow makes of a bucket for what it reads there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from support.numbered_dataset import write_numbered
from tpu_input.dataset_format import records as record_format
from tpu_input.pipeline.order import Order

pytestmark = pytest.mark.cloud

# What a process with this package's settings reads of a split, once; prints how many records there were.
READ = """
import sys
from tpu_input.storage import gcs_filesystem
gcs_filesystem.set_up()
from tpu_input import read_manifest
from tpu_input.pipeline.reading import records
dataset = records(read_manifest(sys.argv[1]), "train", by_number=False)
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


def test_a_shard_that_is_read_in_order_takes_a_request_for_its_size_and_one_for_each_8_mib(gs, large):
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


# What lanes read of 20 steps from a step on; prints the numbers of the records.
LANES = """
import sys
from tpu_input.storage import gcs_filesystem
gcs_filesystem.set_up()
from tpu_input.pipeline.lanes import lane_records
from tpu_input.pipeline.order import Order
from tpu_input import read_manifest
manifest, start = read_manifest(sys.argv[1]), int(sys.argv[2])
order = Order(manifest.split("train").num_examples, 8, 1)
dataset = lane_records(manifest, "train", order, range(8), start, start + 20)
print(*(int(record.split(b":")[0]) for _, record in dataset.as_numpy_iterator()))
"""
RECORD_BYTES = 30_000


@pytest.fixture(scope="module")
def numbered(gs_session, tmp_path_factory) -> str:
    """The URI of a dataset of 800 records in 4 shards."""
    manifest = write_numbered(tmp_path_factory.mktemp("numbered") / "dataset", (200,) * 4, RECORD_BYTES)
    split = dataclasses.replace(manifest.split("train"), class_counts=(800, 0))
    labelled_manifest = dataclasses.replace(manifest, classes=("a", "b"), splits={"train": split})
    (Path(manifest.path) / "manifest.json").write_text(labelled_manifest.to_json())
    uri = f"{gs_session.cloud.make_bucket()}/numbered"
    gs_session.cloud.upload(manifest.path, uri)
    return uri


@pytest.mark.parametrize("start", [10, 1_000_000])
def test_training_from_any_step_on_asks_for_the_records_of_its_steps_alone(gs, numbered, start):
    code, out, err = gs.run("-c", LANES, numbered, str(start))
    assert code == 0, err
    assert list(map(int, out.split())) == Order(800, 8, 1).batches(start, 20).ravel().tolist()
    reads = [request.headers["range"].removeprefix("bytes=").split("-") for request in gs.proxy.reads(".tfrecord")]
    sizes = [int(last) - int(first) + 1 for first, last in reads]
    seeks = [size for size in sizes if size == 64 << 10]  # what TensorFlow reads to seek a record
    # A lane's 20 records are in up to 4 blocks of 11; where an epoch ends, it asks for the rest of one.
    assert len(sizes) - len(seeks) <= 8 * 4
    assert sum(sizes) - sum(seeks) <= 8 * (20 + 11) * (RECORD_BYTES + 100)
    assert len(seeks) <= 8 * 4


# Builds the lanes of a step of 20 records; prints the warnings.
WARNINGS = """
import sys, warnings
from tpu_input import read_manifest
from tpu_input.pipeline.lanes import lane_records
from tpu_input.pipeline.order import Order
manifest = read_manifest(sys.argv[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    lane_records(manifest, "train", Order(800, 20, 1), range(20), 0)
print(*(warning.message for warning in caught), sep="\\n")
"""


def test_a_program_that_has_not_set_the_block_size_is_told_what_to_set(gs, numbered):
    code, out, err = gs.run("-c", WARNINGS, numbered)
    assert code == 0, err
    assert out.strip() == (
        f"{numbered}: TensorFlow caches a block of 67 MB of each of 20 open files, up to 1.3 GB; set the environment "
        "variable GCS_READAHEAD_BUFFER_SIZE_BYTES=65536 before importing TensorFlow"
    )
    code, out, _ = gs.run("-c", "from tpu_input.storage import gcs_filesystem as of; of.set_up()" + WARNINGS, numbered)
    assert (code, out.strip()) == (0, "")
