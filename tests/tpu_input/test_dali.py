"""NVIDIA DALI's own reader finds every record of a dataset, with the index that is written for it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from support.app_fixtures import records_of
from tpu_input import read_manifest
from tpu_input.record_source import write_dali_index

pytestmark = pytest.mark.peers

READ = """
import glob, hashlib, json, sys
from nvidia.dali import fn, pipeline_def, tfrecord, types

dataset, host, num_hosts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
shards = sorted(glob.glob(f"{dataset}/train-*.tfrecord"))
indexes = [shard.replace(dataset, f"{dataset}/index").replace(".tfrecord", ".idx") for shard in shards]
features = {
    "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
    "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
}

@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def pipeline():
    options = {"path": shards, "index_path": indexes, "features": features, "shard_id": host, "num_shards": num_hosts}
    records = fn.readers.tfrecord(name="reader", **options)
    image = fn.decoders.image(records["image/encoded"], output_type=types.RGB)
    return records["image/encoded"], records["image/class/label"], image

built = pipeline()
built.build()
first, last = (built.reader_meta("reader")["epoch_size"] * of // num_hosts for of in (host, host + 1))
for _ in range(last - first):
    encoded, label, image = (of.as_array()[0] for of in built.run())
    print(json.dumps([hashlib.sha256(encoded.tobytes()).hexdigest(), int(label[0]), image.shape]))
"""


@pytest.mark.parametrize("num_hosts", [1, 3])
def test_each_image_and_label_is_read_once(digits_dataset, dataset_copy, num_hosts):
    if not (environment := os.environ.get("VENV_PEERS")):
        pytest.skip("VENV_PEERS does not name an environment with NVIDIA DALI; run: make test-peers")
    write_dali_index(read_manifest(dataset_copy))
    python, examples = Path(environment, "bin/python").absolute(), list[object]()
    for host in range(num_hosts):
        command = [str(python), "-c", READ, str(dataset_copy), str(host), str(num_hosts)]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        examples += [json.loads(line) for line in result.stdout.splitlines()]
    assert examples == [
        [hashlib.sha256(record.encoded).hexdigest(), record.label, [record.height, record.width, 3]]
        for record in records_of(digits_dataset, "train")
    ]
