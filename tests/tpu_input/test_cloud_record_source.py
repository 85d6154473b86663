"""Random access to the records of a dataset in a bucket, and DALI's index of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_input import InputConfig, RecordSource, TrainSource
from tpu_input.dataset_format import records as record_format
from tpu_input.storage.positions import read_positions, split_positions

pytestmark = pytest.mark.cloud

# Reads some records here, in threads, and all in forked processes; prints their keys. There is no TensorFlow.
READ = """
import concurrent.futures, multiprocessing, pickle, sys
sys.modules["tensorflow"] = None
from tpu_input import Manifest, RecordSource
source = RecordSource(Manifest.from_json(open(sys.argv[1]).read(), sys.argv[2]), "train")
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(source.__getitem__, map(int, sys.argv[3:])))
def keys(first):
    return [source[number].key for number in range(first, len(source), 97)]
if "0" in sys.argv[3:]:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert sorted(sum(pool.map(keys, range(0, 97, 8)), [])) == sorted(sum(map(keys, range(0, 97, 8)), []))
print(*(record.key for record in pickle.loads(pickle.dumps(found))))
"""

# Prints the lengths of all records.
LENGTHS = """
import sys
sys.modules["tensorflow"] = None
from tpu_input import Manifest
from tpu_input.storage.positions import split_positions
print(*split_positions(Manifest.from_json(open(sys.argv[1]).read(), sys.argv[2]), "train")[1])
"""


# Reads the manifest and a batch, and writes DALI's index; there is no TensorFlow.
PROGRAM = """
import sys
sys.modules["tensorflow"] = None
import tpu_input
from tpu_input.__main__ import main
source = tpu_input.TrainSource(sys.argv[1], tpu_input.InputConfig(image_size=16), 4)
print(*(int(source[number]["label"]) for number in range(4)), tpu_input.eval_steps(sys.argv[1], "validation", 4))
sys.exit(main(["idx", sys.argv[1]]))
"""


def read(gs, manifest, *numbers):
    return gs.run("-c", READ, f"{manifest.path}/manifest.json", gs.dataset, *map(str, numbers))


def test_a_record_of_a_bucket_is_one_request_for_its_own_bytes(gs, digits_dataset):
    numbers = (700, 701, -1)
    local = RecordSource(digits_dataset, "train")
    code, out, err = read(gs, digits_dataset, *numbers)
    assert (code, out.split()) == (0, [local[number].key for number in numbers]), err
    shards = digits_dataset.split("train").shards
    every = [position for shard in shards for position in read_positions(digits_dataset.path, shard)]
    ranges = [f"bytes={offset}-{offset + length - 1}" for offset, length in map(every.__getitem__, numbers)]
    assert sorted(request.headers["range"] for request in gs.proxy.reads(".tfrecord")) == sorted(ranges)
    assert len(gs.proxy.reads("lengths.parquet")) == 1
    assert len(gs.proxy.requests) == 1 + len(numbers)


def test_a_bucket_is_read_and_its_index_written_without_tensorflow(gs, digits_dataset):
    dataset = f"{gs.cloud.make_bucket()}/digits"
    gs.cloud.upload(digits_dataset.path, dataset)
    code, out, err = gs.run("-c", PROGRAM, dataset)
    source = TrainSource(digits_dataset, InputConfig(image_size=16), 4)
    labels = " ".join(str(source[number]["label"]) for number in range(4))
    assert (code, out) == (0, f"{labels} 84\n11 index files in {dataset}/index\n"), err
    assert gs.cloud.get(f"{dataset}/index/train-00003-of-00009.idx").startswith(b"0 ")
    code, _, err = gs.run("-c", PROGRAM, "gs://no-such-bucket/digits")
    assert (code, err.splitlines()[-1]) == (
        *(1, "ValueError: bucket 'no-such-bucket' of 'gs://no-such-bucket/digits' does not exist; check its name"),
    )


def test_without_google_s_client_tensorflow_reads_the_record(gs, digits_dataset):
    without = READ.replace('["tensorflow"]', '["google.cloud.storage"]')
    code, out, err = gs.run("-c", without, f"{digits_dataset.path}/manifest.json", gs.dataset, "700")
    assert (code, out.strip()) == (0, RecordSource(digits_dataset, "train")[700].key), err


@pytest.mark.parametrize("missing", ["tensorflow", "google.cloud.storage"])
def test_a_bucket_without_lengths_is_read_by_its_indexes(gs, digits_dataset, missing):
    uri = f"{gs.cloud.make_bucket()}/earlier"
    gs.cloud.upload(Path(digits_dataset.path, "index"), f"{uri}/index")
    without = LENGTHS.replace('["tensorflow"]', f'["{missing}"]')
    code, out, err = gs.run("-c", without, f"{digits_dataset.path}/manifest.json", uri)
    _, lengths = split_positions(digits_dataset, "train")
    assert (code, out.split()) == (0, [str(length) for length in lengths]), err


def test_threads_and_forked_processes_read_a_bucket_that_fails_now_and_then(gs, digits_dataset):
    local = RecordSource(digits_dataset, "train")
    turns = {5: "503", 11: "429", 17: "cut"}
    gs.proxy.fault = lambda request: turns.pop(len(gs.proxy.requests), None)
    code, out, err = read(gs, digits_dataset, *range(20))
    assert (code, out.split()) == (0, [local[number].key for number in range(20)]), err
    assert not turns


@pytest.mark.parametrize(
    ("fault", "error", "why"),
    [
        ("403", "OSError: {shard}: ", "no permission; reading needs the role Storage Object Viewer"),
        (
            "404",
            "ValueError: '{shard}' ",
            "does not exist: the dataset was replaced or moved after its manifest was read",
        ),
    ],
)
def test_a_shard_that_is_refused_is_named_with_what_helps(gs, digits_dataset, fault, error, why):
    gs.proxy.fault = lambda request: fault if ".tfrecord" in request.target else None
    code, _, err = read(gs, digits_dataset, 1)
    assert code == 1
    assert err.splitlines()[-1].startswith(error.format(shard=f"{gs.dataset}/train-00000-of-00009.tfrecord") + why)


def test_dali_s_index_is_written_beside_the_shards(gs, digits_dataset):
    dataset = f"{gs.cloud.make_bucket()}/digits"
    gs.cloud.upload(digits_dataset.path, dataset)
    code, out, err = gs.run("-m", "tpu_input", "idx", dataset)
    assert (code, out, err) == (0, f"11 index files in {dataset}/index\n", "")
    lines = gs.cloud.get(f"{dataset}/index/train-00003-of-00009.idx").decode().splitlines()
    with open(f"{digits_dataset.path}/train-00003-of-00009.tfrecord", "rb") as file:
        frames = [
            f"{offset} {len(payload) + record_format.FRAME_BYTES}"
            for offset, payload in record_format.read_frames(file)
        ]
    assert lines == frames
