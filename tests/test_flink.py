"""A conversion on a real Flink, its own cluster of parallelism 2: the same bytes, the counters, a worker's death.

`make test-engines` fetches the job server, and says in JOB_SERVER where it lies.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import Pipeline
from conftest import local
from test_convert import files

from beam_pipelines.convert import build_writing, convert
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.planning import make_plan
from beam_pipelines.work import Work
from benchmarks.corpus import make_corpus

pytestmark = pytest.mark.engines
ROOT = Path(__file__).parent.parent
SHARD_BYTES = 100_000

# Every Python process of the conversion runs this at its start. The worker that puts the third receipt in its place
# kills itself, once.
SITE = """
import os, signal, sys
def hook(event, args):
    if event == "os.rename" and str(args[1]).endswith(".receipt"):
        names = os.listdir(os.path.dirname(args[1]))
        if sum(name.endswith(".receipt") for name in names) == 2 and "SdkHarness" in " ".join(sys.orig_argv):
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
    make_corpus(folder, 2_000, size=(48, 36))
    (folder / "class3" / "page.jpg").write_text("<html>")
    return folder


def options(source: Path, output: Path) -> ConvertOptions:
    return ConvertOptions((Source(str(source)),), str(output), shard_bytes=SHARD_BYTES)


@pytest.fixture(scope="module")
def whole(photographs, tmp_path_factory) -> dict[str, str]:
    """What a local conversion leaves."""
    output = tmp_path_factory.mktemp("whole") / "out"
    convert(options(photographs, output), local())
    return files(output)


@pytest.fixture(scope="module")
def job_endpoint(tmp_path_factory):
    """Where a job server takes jobs, as one that serves a cluster does."""
    log = tmp_path_factory.mktemp("flink") / "log"
    jar = ["java", "-jar", os.environ["JOB_SERVER"], "--job-port=0", "--artifact-port=0", "--expansion-port=0"]
    with open(log, "w") as file, subprocess.Popen(jar, stdout=file, stderr=subprocess.STDOUT) as server:
        with subprocess.Popen(["tail", "-f", f"--pid={server.pid}", log], stdout=subprocess.PIPE, text=True) as lines:
            port = next(filter(None, (re.search(r"JobService started on .*?(\d+)$", line) for line in lines.stdout)))[1]
            lines.terminate()
        yield f"localhost:{port}"
        server.terminate()


def command(source: Path, output: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    args = [sys.executable, "-m", "beam_pipelines", "convert", f"--input={source}", f"--output={output}"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # Beam starts a worker as `python`
    return subprocess.run(
        [*args, f"--shard_size={SHARD_BYTES}", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PATH": path} | environment,
    )


def test_the_command_that_starts_its_own_flink_gives_the_same_bytes(photographs, whole, tmp_path):
    flags = ["--runner=FlinkRunner", f"--flink_job_server_jar={os.environ['JOB_SERVER']}", "--parallelism=2"]
    done = command(photographs, tmp_path / "out", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path / "out") == whole


def test_counters_of_a_job_server_say_what_was_written_and_rejected(photographs, whole, job_endpoint, tmp_path):
    portable = [f"--job_endpoint={job_endpoint}", "--environment_type=LOOPBACK", "--parallelism=2"]
    beam_options = PipelineOptions(["--runner=PortableRunner", *portable])
    opts = options(photographs, tmp_path / "out")
    plan = make_plan(opts, beam_options)
    folder = Work.of(opts.output, plan)
    folder.write_plan(plan)
    pipeline = Pipeline(options=beam_options)
    build_writing(pipeline, opts, folder)
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(MetricsFilter().with_namespace("jpeg2tpu"))["counters"]
    shards = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tfrecord"))
    assert {counter.key.metric.name: counter.result for counter in counters} == {
        "records": 2_000,
        "rejected": 1,
        "bytes_written": shards,
    }
    convert(opts, beam_options)
    assert files(tmp_path / "out") == whole


def test_a_worker_that_is_killed_is_replaced_and_the_bytes_are_the_same(photographs, whole, job_endpoint, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    flags = [
        "--runner=PortableRunner",
        f"--job_endpoint={job_endpoint}",
        "--environment_type=LOOPBACK",
        "--experiments=use_loopback_process_worker=True",
        "--parallelism=2",
        "--number_of_execution_retries=3",
    ]
    killed = tmp_path / "killed"
    done = command(photographs, tmp_path / "out", *flags, PYTHONPATH=str(tmp_path), KILLED=str(killed))
    assert killed.exists()
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path / "out") == whole
