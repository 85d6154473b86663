"""Flink's own cluster and Spark in local mode, reached through Beam's job API: same bytes, counters, a worker's death.

`make test-engines` lets Maven put Beam's job servers together; FLINK_JOB_SERVER and SPARK_JOB_SERVER name their jars.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import Pipeline

from beam_pipelines.convert import build_conversion, convert
from support.cloud import free_port
from support.engines import ROOT, command, make_photographs, options
from support.folders import files

pytestmark = [
    pytest.mark.engines,
    # Beam's workers are threads of this process, whose streams the job server cuts at a job's end.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

# Every Python process of the conversion runs this at its start. The worker that is about to leave the third receipt
# kills itself, once.
SITE = """
import os, signal, sys
def hook(event, args):
    if event == "os.link" and str(args[1]).endswith(".receipt") and "SdkHarness" in " ".join(sys.orig_argv):
        if sum(name.endswith(".receipt") for name in os.listdir(os.path.dirname(args[1]))) == 2:
            try:
                os.close(os.open(os.environ["KILLED"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
"""


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    make_photographs(folder)
    return folder


@pytest.fixture(scope="module")
def local_files(photographs, tmp_path_factory) -> dict[str, str]:
    """What a local conversion leaves."""
    output = tmp_path_factory.mktemp("whole") / "out"
    convert(options(photographs, output))
    return files(output)


# Flink tries nothing again unless told so.
AGAIN = """
restart-strategy: fixed-delay
restart-strategy.fixed-delay.attempts: 3
restart-strategy.fixed-delay.delay: 1 s
"""


@pytest.fixture(scope="module", params=["flink", "spark"])
def portable(request, tmp_path_factory) -> Iterator[list[str]]:
    """Beam's flags for a job server on this machine, with a cluster in it."""
    variable = f"{request.param.upper()}_JOB_SERVER"
    if variable not in os.environ:
        pytest.skip(f"{variable} does not name a job server's jar")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "flink-conf.yaml").write_text(AGAIN)
    # Two threads, in each of which Spark may try a task four times.
    engine_flag = {"flink": f"--flink-conf-dir={folder}", "spark": "--spark-master-url=local[2,4]"}[request.param]
    port = free_port()
    ports = [f"--job-port={port}", "--artifact-port=0", "--expansion-port=0"]
    command = ["java", "-jar", os.environ[variable], *ports, engine_flag]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder) as process:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
        endpoint = f"--job_endpoint=127.0.0.1:{port}"
        yield ["--runner=PortableRunner", endpoint, "--environment_type=LOOPBACK", "--parallelism=2"]
        process.terminate()


def test_the_command_gives_the_same_bytes_as_a_local_run(photographs, local_files, portable, tmp_path):
    result = command(photographs, tmp_path / "out", *portable)
    assert (result.returncode, result.stderr) == (0, "")
    assert files(tmp_path / "out") == local_files


def test_counters_of_the_job_say_what_was_written_and_rejected(photographs, local_files, portable, tmp_path):
    beam_options = PipelineOptions(portable)
    opts = options(photographs, tmp_path / "out")
    pipeline = Pipeline(options=beam_options)
    build_conversion(pipeline, opts)
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(MetricsFilter().with_namespace("jpeg2tpu"))["counters"]
    shards = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tfrecord"))
    counts = {counter.key.metric.name: counter.result for counter in counters}
    assert {name: counts.get(name) for name in ("records", "rejected", "rejected_not_an_image", "bytes_written")} == {
        "records": 2_000,
        "rejected": 1,
        "rejected_not_an_image": 1,
        "bytes_written": shards,
    }
    assert files(tmp_path / "out") == local_files
    assert not convert(opts, beam_options).is_new


def test_a_worker_that_is_killed_is_replaced_and_the_job_ends_as_if_none_had_been(
    photographs, local_files, portable, tmp_path
):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    flags = [*portable, "--experiments=use_loopback_process_worker=True"]
    environment = {"PYTHONPATH": str(tmp_path), "KILLED": str(tmp_path / "killed")}
    result = command(photographs, tmp_path / "out", *flags, **environment)
    assert (tmp_path / "killed").exists()
    assert result.returncode == 0, result.stderr
    assert files(tmp_path / "out") == local_files


def test_what_a_step_refuses_is_said_in_one_line_in_the_words_of_the_step(portable, tmp_path):
    (tmp_path / "broken.tar").write_bytes(b"no archive" * 100)
    result = command(tmp_path / "broken.tar", tmp_path / "out", *portable)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: '{tmp_path}/broken.tar' is not a complete, uncompressed tar archive: ")
    assert result.stderr.count("\n") == 1, result.stderr


@pytest.fixture
def worker_pool() -> Iterator[str]:
    """Address of a worker pool of Beam's, a process of its own that starts workers for any job."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "apache_beam.runners.worker.worker_pool_main"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # it starts a worker's process as `python`
    args = [*command, f"--service_port={port}"]
    with subprocess.Popen(args, stderr=subprocess.DEVNULL, cwd=ROOT, env=os.environ | {"PATH": path}) as process:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
        yield f"127.0.0.1:{port}"
        process.terminate()


def test_with_no_wait_the_command_ends_and_the_job_completes_the_dataset(
    photographs, local_files, portable, worker_pool, tmp_path
):
    flags = [flag for flag in portable if not flag.startswith("--environment_type")]
    pool = ["--environment_type=EXTERNAL", f"--environment_config={worker_pool}"]
    result = command(photographs, tmp_path / "out", *flags, *pool, "--no_wait")
    assert (result.returncode, result.stderr) == (0, "")
    pattern = rf"submitted: job \S+; the dataset is complete when {tmp_path}/out/manifest.json is there\n"
    assert re.fullmatch(pattern, result.stdout)
    deadline = time.monotonic() + 120
    while not (tmp_path / "out" / "manifest.json").exists() or (tmp_path / "out" / ".jpeg2tpu").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert files(tmp_path / "out") == local_files
