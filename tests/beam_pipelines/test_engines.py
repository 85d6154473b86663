"""Engines: what one lacks is said in one line before anything is launched or written."""

from __future__ import annotations

import importlib.util
import re
import socket
from importlib.metadata import version
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions, SetupOptions

from beam_pipelines.convert import build_conversion
from beam_pipelines.runners import execution, launch_checks, workers
from beam_pipelines.runners.wheel import versions
from support.conversion import local, options as convert_options
from support.pipelines_commands import refused, run

DATAFLOW = ["--project=my-project", "--region=us-central1", "--temp_location=gs://bucket/temp"]
URIS = ["gs://bucket/images", "gs://bucket/dataset"]
GCP = any(importlib.util.find_spec(name) for name in ("google.cloud.dataflow", "google.cloud.bigquery"))
needs_gcp = pytest.mark.skipif(not GCP, reason="needs the extra gcp")


@pytest.fixture
def port():
    """A port at which something answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def checked(*flags: str, paths=URIS) -> None:
    launch_checks.check(PipelineOptions(list(flags)), paths)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runner=PortableRunner"], "needs a job server, --job_endpoint=HOST:PORT"),
        (["--runner=PortableRunner", "--job_endpoint=127.0.0.1:1"], "nothing answers at --job_endpoint=127.0.0.1:1"),
        (["--runner=PortableRunner", "--job_endpoint=8099"], "--job_endpoint must be HOST:PORT, got '8099'"),
        (["--runner=FlinkRunner", "--job_endpoint=127.0.0.1:1"], "start its job server first"),
        (["--runner=FlinkRunner", "--job_server_java_launcher=no-java"], "'no-java' was not found; install a JRE"),
        (["--runner=FlinkRunner", "--flink_job_server_jar=/no.jar"], "--flink_job_server_jar=/no.jar does not exist"),
        (["--runner=SparkRunner", "--spark_job_server_jar=/no.jar"], "--spark_job_server_jar=/no.jar does not exist"),
    ],
)
def test_an_engine_without_its_job_server_is_refused(capsys, few_digits, tmp_path, flags, message):
    assert message in refused(capsys, "convert", f"--input={few_digits}", f"--output={tmp_path}/out", *flags)
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_does_not_answer_is_refused(tmp_path):
    jar = tmp_path / "job-server.jar"
    jar.touch()
    flags = ["--runner=FlinkRunner", f"--flink_job_server_jar={jar}", "--job_server_java_launcher=true"]
    with pytest.raises(ValueError, match=r"nothing answers at --flink_master=.*127.0.0.1:1 .*start the cluster first"):
        checked(*flags, "--flink_master=127.0.0.1:1")
    checked(*flags)  # its own cluster, in the job server


@pytest.mark.parametrize("paths", [["/images", "gs://b/d"], ["gs://b/images", "/dataset"]], ids=["input", "output"])
def test_a_local_path_is_refused_where_workers_are_containers(port, paths):
    flags = ["--runner=PortableRunner", f"--job_endpoint=127.0.0.1:{port}"]
    with pytest.raises(ValueError, match=r"cannot read or write '/\w+' on this machine; use URIs"):
        checked(*flags, paths=paths)
    checked(*flags, "--environment_type=PROCESS", paths=paths)  # of machines that may share a file system
    checked(*flags)


@needs_gcp
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (DATAFLOW[1:], "DataflowRunner needs --project; e.g."),
        (DATAFLOW[:1], "DataflowRunner needs --region and --temp_location; e.g."),
        ([*DATAFLOW[:2], "--temp_location=/tmp"], r"Dataflow needs --temp_location in a bucket, .*, got '/tmp'"),
    ],
)
def test_dataflow_without_what_it_needs_is_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        checked("--runner=DataflowRunner", *flags)


@needs_gcp
def test_dataflow_with_local_input_is_refused():
    with pytest.raises(ValueError, match=r"cannot read or write '/images' on this machine; use URIs"):
        checked("--runner=DataflowRunner", *DATAFLOW, paths=["/images", "gs://bucket/dataset"])
    checked("--runner=dataflow", *DATAFLOW)


@pytest.mark.skipif(GCP, reason="the extra gcp is installed")
def test_dataflow_without_the_extra_is_told_how_to_install_it():
    with pytest.raises(ValueError, match=r"DataflowRunner needs Beam's Google Cloud client; run: pip install"):
        checked("--runner=DataflowRunner", *DATAFLOW)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--direct_num_worker=2", "unknown flag --direct_num_worker; did you mean --direct_num_workers?"),
        ("--shard_sise=1MB", "unknown flag --shard_sise; see --help"),
    ],
)
def test_a_mistyped_flag_of_a_runner_is_refused_and_not_dropped(capsys, few_digits, tmp_path, flag, message):
    flags = [f"--input={few_digits}", f"--output={tmp_path}/out", "--runner=FnApiRunner", flag]
    assert message in refused(capsys, "convert", *flags)


def test_a_dry_run_is_for_dataflow_or_this_machine(capsys, few_digits, tmp_path):
    flags = [f"--input={few_digits}", f"--output={tmp_path}/out", "--dry_run", "--runner=DirectRunner"]
    message = "--dry_run is only available on this machine and with --runner=DataflowRunner"
    assert message in refused(capsys, "convert", *flags)


def test_a_dry_run_on_this_machine_checks_and_estimates_and_leaves_nothing(capsys, few_digits, tmp_path):
    flags = [f"--input={few_digits}", f"--output={tmp_path}/out", "--dry_run", "--num_processes=3"]
    code, out, err = run(capsys, "convert", *flags)
    assert (code, err) == (0, "")
    lines = dict(re.split(r" {2,}", line, maxsplit=1) for line in out.splitlines())
    assert list(lines) == ["machine", "input", "output", "work", "memory"]
    assert lines["machine"] == "3 processes, at most; nothing is written"
    assert lines["input"].startswith("36 files, ")
    assert lines["output"] == "about 2 shards of up to 100 MB, if images are stored unchanged"
    assert lines["work"].startswith("less than a minute on 3 cores, at 655 photographs of 88 KB per second and core")
    assert lines["memory"].startswith("at most 860 MB for each process, which takes 260 MB")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_on_this_machine_fails_where_the_conversion_would(capsys, few_digits, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("not a dataset")
    for flags in (
        [f"--input={few_digits}", f"--output={tmp_path}/out"],
        [f"--input={few_digits}", f"--output={few_digits}/out"],
    ):
        refused(capsys, "convert", *flags, "--dry_run")


@pytest.mark.parametrize(
    ("flags", "threads", "decoders"),
    [
        (["--runner=DataflowRunner"], 1, 1),
        (["--runner=DataflowRunner", "--number_of_worker_harness_threads=3"], 3, 1),
        (["--runner=DataflowRunner", "--experiments=no_use_multiple_sdk_containers"], 1, 0),
        (["--runner=PortableRunner", "--job_endpoint=localhost:8099"], None, 0),
    ],
)
def test_threads_of_workers_are_set_unless_a_flag_says_how_many(flags, threads, decoders):
    options = PipelineOptions(flags)
    workers.set_up(options)
    assert options.view_as(DebugOptions).number_of_worker_harness_threads == threads
    assert workers.num_decoders(options) == decoders


def test_a_worker_with_other_versions_of_what_bytes_depend_on_writes_nothing(few_digits, tmp_path, monkeypatch):
    opts = convert_options(few_digits, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("beam_pipelines.transforms.versions", lambda: versions() | {"pillow": "10.0"})  # of the launcher
        with (
            pytest.raises(ValueError, match=rf"the worker on .* has pillow {version('pillow')} \(not 10.0\), and may"),
            execution.pipeline(local()) as pipeline,
        ):
            build_conversion(pipeline, opts)
    assert not list((tmp_path / "out").rglob("*.receipt"))
    with execution.pipeline(local()) as pipeline:
        build_conversion(pipeline, opts)
    assert (tmp_path / "out" / "manifest.json").exists()


def extra_packages(*flags: str) -> list[str]:
    options = PipelineOptions(list(flags))
    with launch_checks.packed(options):
        packages = options.view_as(SetupOptions).extra_packages or []
        assert all(Path(package).exists() for package in packages)
    return [Path(package).name for package in packages]


@pytest.mark.parametrize(
    "flags",
    [["--runner=DataflowRunner"], ["--runner=FlinkRunner", "--flink_master=cluster:8081"], ["--runner=PortableRunner"]],
)
def test_workers_in_containers_are_given_this_package(tmp_path, flags):
    (tmp_path / "other.whl").touch()
    package_flags = [f"--extra_package={tmp_path}/other.whl"]
    assert extra_packages(*flags, *package_flags) == ["other.whl", "jpeg2tpu-0.1.0-py3-none-any.whl"]


@pytest.mark.parametrize(
    "flags",
    [["--runner=FnApiRunner"], ["--runner=FlinkRunner"], ["--runner=PortableRunner", "--environment_type=LOOPBACK"]],
)
def test_workers_beside_the_installed_package_are_given_none(flags):
    assert extra_packages(*flags) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--no_wait needs --runner of an engine"),
        (
            ["--runner=PortableRunner", "--environment_type=LOOPBACK"],
            "but with --environment_type=LOOPBACK they are in it",
        ),
        (["--runner=PrismRunner"], "but with --environment_type=LOOPBACK they are in it; use containers"),
    ],
)
def test_a_job_that_would_end_with_the_command_is_not_left_alone(capsys, few_digits, tmp_path, flags, message):
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = [f"--job_endpoint=127.0.0.1:{server.getsockname()[1]}"] if flags else []
        args = [f"--input={few_digits}", f"--output={tmp_path}/out", "--no_wait", *flags, *endpoint]
        assert message in refused(capsys, "convert", *args)
    assert not (tmp_path / "out").exists()
