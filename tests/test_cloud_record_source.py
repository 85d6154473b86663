"""Random access to the records of a dataset in a bucket."""

from __future__ import annotations

import pytest

from tpu_input import RecordSource

pytestmark = pytest.mark.cloud

READ = """
import sys
from tpu_input import RecordSource, read_manifest
source = RecordSource(read_manifest(sys.argv[1]), "train")
print(len(source), *(source[number].key for number in (0, 700, -1)))
"""


def test_a_record_of_a_bucket_is_the_same_as_on_disk_and_takes_few_requests(gs, digits_dataset):
    local = RecordSource(digits_dataset, "train")
    code, out, err = gs.run("-c", READ, gs.dataset)
    assert (code, out.split()) == (0, [str(len(local)), *(local[number].key for number in (0, 700, -1))]), err
    shards = [request for request in gs.proxy.requests if ".tfrecord" in request.target]
    assert len(shards) <= 3 * 2  # the size, and the bytes around the record
