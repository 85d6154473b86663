"""WebDataset itself reads what docs/moving.md makes of a dataset for it, and none of our shards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from support.app_fixtures import records_of

pytestmark = pytest.mark.peers
ROOT = Path(__file__).parents[2]

# Runs the guide's block, then prints how each sample is found: in the pipeline that it makes, in its tar, in a shard.
READ = """
import hashlib, json, sys
import tpu_input

DATASET, block, shard = sys.argv[1:]
exec(block)
from_tar = wds.WebDataset("validation-000000.tar", shardshuffle=False).decode().to_tuple("jpg", "cls")
for found in (pipeline, from_tar):
    print(json.dumps([[hashlib.sha256(encoded).hexdigest(), label] for encoded, label in found]))
try:
    print(len(list(wds.WebDataset(shard, shardshuffle=False))))
except Exception as error:
    print(type(error).__name__)
"""


def test_each_image_and_label_is_read_once(digits_dataset, tmp_path):
    if not (environment := os.environ.get("VENV_PEERS")):
        pytest.skip("VENV_PEERS does not name an environment with webdataset; run: make test-peers")
    (block,) = re.findall(
        r"```python\n(# needs webdataset\n.*?)```", (ROOT / "docs" / "moving.md").read_text(), re.DOTALL
    )
    shard = f"{digits_dataset.path}/{digits_dataset.split('validation').shards[0].name}"
    command = [str(Path(environment, "bin/python").absolute()), "-c", READ, digits_dataset.path, block, shard]
    python_path = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=python_path)
    shuffled, in_order, shard_error = result.stdout.splitlines()
    expected = [
        [hashlib.sha256(record.encoded).hexdigest(), record.label]
        for record in records_of(digits_dataset, "validation")
    ]
    assert json.loads(in_order) == expected
    assert sorted(json.loads(shuffled)) == sorted(expected)
    assert shard_error == "ReadError"  # a sample of it would make the guide's sentence wrong
