"""All of a conversion on Dataflow but its submission, with a Google Cloud Storage on loopback. `make test-engines`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from apache_beam.portability.api import beam_runner_api_pb2

pytestmark = pytest.mark.engines
ROOT = Path(__file__).parents[2]


def convert(bucket: str, *flags: str) -> subprocess.CompletedProcess:
    places = [f"--input={bucket}/digits", f"--output={bucket}/dataset", f"--temp_location={bucket}/temp"]
    dataflow = ["--runner=DataflowRunner", "--project=my-project", "--region=us-central1"]
    command = [sys.executable, "-m", "beam_pipelines", "convert", *places, *dataflow, *flags]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.fixture
def bucket(cloud, few_digits) -> str:
    uri = cloud.make_bucket()
    cloud.upload(few_digits, f"{uri}/digits")
    return uri


@pytest.fixture
def page(bucket) -> str:
    result = convert(bucket, "--dry_run")
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_a_dry_run_installs_unpickles_builds_checks_and_estimates_and_leaves_nothing(page, bucket, cloud):
    lines = dict(re.split(r" {2,}", line, maxsplit=1) for line in page.splitlines() if not line.startswith(" "))
    assert "nothing is submitted" in lines["dataflow"]
    # What a worker is asked to install: Beam and what it needs are more than half of it.
    match = re.search(r"(\d+) packages without TensorFlow, in which the job can be unpickled", lines["package"])
    assert match
    assert 30 < int(match[1]) < 100
    match = re.match(r"list, plan, write, commit: (\d+) steps, a graph of ([\d.]+) KB, a request of", lines["job"])
    assert match
    steps, size = match.groups()
    assert int(steps) > 30
    assert float(size) < 500  # Dataflow takes 10 MB
    assert lines["bucket"] == f"{bucket}/temp can be written"
    assert lines["input"].startswith("36 files, ")
    assert lines["output"] == "about 2 shards of up to 100 MB, if images are stored unchanged"
    assert "less than a minute of one vCPU, at " in lines["work"]
    assert lines["memory"].startswith("at most 860 MB for each vCPU")
    assert {path.split("/")[0] for path in cloud.files(bucket)} == {"digits"}


@pytest.mark.parametrize("flags", [[], ["--dry_run"]], ids=["convert", "dry_run"])
def test_a_temp_location_that_cannot_be_written_is_said_before_the_launch(bucket, flags):
    result = convert(bucket, "--temp_location=gs://no-such-bucket/temp", *flags)
    assert result.returncode == 2
    assert result.stderr.startswith("error: --temp_location=gs://no-such-bucket/temp cannot be written: ")
    assert len(result.stderr.splitlines()) == 1


def test_more_shards_than_readers_can_take_are_refused_with_what_to_do(bucket):
    result = convert(bucket, "--dry_run", "--num_shards=train=200000,validation=1")
    assert result.returncode == 2
    assert "have at most 100,000 by using a larger --shard_size" in result.stderr


def test_a_template_holds_the_job_and_nothing_is_submitted(bucket, cloud):
    result = convert(bucket, f"--template_location={bucket}/templates/convert")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"written: the template {bucket}/templates/convert; nothing was submitted\n"
    template = json.loads(cloud.get(f"{bucket}/templates/convert"))
    assert template["type"] == "JOB_TYPE_BATCH"
    assert template["environment"]["workerPools"][0]["numThreadsPerWorker"] == 1
    graph = next(path for path in cloud.files(bucket) if path.endswith("/pipeline.pb"))
    steps = beam_runner_api_pb2.Pipeline.FromString(cloud.get(f"{bucket}/{graph}")).components.transforms.values()
    names = {step.unique_name for step in steps}
    assert {"List archives", "Write dataset/Write shards", "Write dataset/Commit"} <= names
    assert "dataset" not in {path.split("/")[0] for path in cloud.files(bucket)}
