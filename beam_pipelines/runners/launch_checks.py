"""Checks before a launch on another engine (Dataflow, Flink, Spark, Prism, portable), and packaging for its workers.

    --runner and Beam's flags ──check──▶ PipelineOptions ──pack──▶ the same, with a wheel in extra_packages

Beam itself reports most of these mistakes late: after waiting a minute for a job server, or in the log of a worker that
cannot read a file of the launching machine.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from apache_beam.options import pipeline_options as beam_flags
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.version import __version__ as beam_version

from beam_pipelines import storage
from beam_pipelines.runners.beam_private import download_job_server, download_prism, has_dataflow
from beam_pipelines.runners.wheel import write_wheel

_ELSEWHERE = ("dataflow", "flink", "spark", "prism", "portable")
# Environment types of workers that run on the user's machines, and use the packages and files there. All other workers
# are containers, which have neither this package nor the files of this machine.
_BESIDE_THE_FILES = ("LOOPBACK", "PROCESS", "EXTERNAL")
_CONNECT_SECONDS = 5.0


def name_of(options: PipelineOptions) -> str:
    """Returns "dataflow", "flink", "spark", "prism" or "portable"; "" for a runner within this process."""
    runner = str(options.view_as(beam_flags.StandardOptions).runner or "").rpartition(".")[2].lower()
    name = runner.removesuffix("runner")
    return name if name in _ELSEWHERE else ""


def check(options: PipelineOptions, paths: Sequence[str]) -> None:
    """Checks flags, job server and paths for mistakes that would otherwise fail after the launch.

    Args:
      options: The Beam runner and its options.
      paths: Inputs and output of the conversion.

    Raises:
      ValueError: A flag is unknown or missing, the engine cannot be reached, or its workers cannot reach the files.
    """
    engine = name_of(options)
    if engine in ("", "dataflow", "prism"):  # other job servers accept flags that Beam's Python does not know
        _check_flags(options)
    if engine:
        if options.view_as(beam_flags.PortableOptions).job_endpoint and engine != "dataflow":
            engine = "portable"
        checks = {"dataflow": _check_dataflow, "portable": _check_portable, "prism": _check_prism}
        checks.get(engine, _check_jar)(options)
        _check_paths(options, paths)


def check_writable(options: PipelineOptions) -> list[str]:
    """Writes and deletes a small file in each place where Dataflow will store files; returns these places.

    For other engines there are none.

    Raises:
      ValueError: A small file cannot be written there.
    """
    cloud = options.view_as(beam_flags.GoogleCloudOptions)
    flags = ("temp_location", "staging_location") if name_of(options) == "dataflow" else ()
    places = {flag: getattr(cloud, flag) for flag in flags if getattr(cloud, flag)}
    for flag, place in places.items():
        probe = f"{place.rstrip('/')}/jpeg2tpu-{uuid.uuid4().hex}"
        try:
            storage.check(place)  # within seconds, where a write would be tried for minutes
            with storage.create(probe) as file:
                file.write(b"may be deleted")
        except Exception as error:  # the type depends on the client: no bucket, no credentials or no permission
            raise ValueError(f"--{flag}={place} cannot be written: {_line(error)}") from error
        storage.delete([probe])
    return sorted(set(places.values()))


@contextlib.contextmanager
def packed(options: PipelineOptions) -> Iterator[None]:
    """Context manager: adds a wheel of this package to the options, for workers in containers to install.

    The wheel is a temporary file that is deleted at the end of the body.
    """
    if not name_of(options) or _is_beside_the_files(options):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        setup = options.view_as(beam_flags.SetupOptions)
        setup.extra_packages = [*(setup.extra_packages or ()), write_wheel(folder)]
        yield


def _check_flags(options: PipelineOptions) -> None:
    """Raises ValueError for unknown flags, which Beam would ignore silently."""
    known_flags = PipelineOptions([]).get_all_options()
    for flag in sorted(options.get_all_options(retain_unknown_options=True).keys() - known_flags.keys()):
        close = difflib.get_close_matches(flag, known_flags, n=1)
        raise ValueError(f"unknown flag --{flag}" + (f"; did you mean --{close[0]}?" if close else "; see --help"))


def _check_dataflow(options: PipelineOptions) -> None:
    if not has_dataflow():
        raise ValueError("DataflowRunner needs Beam's Google Cloud client; run: pip install 'jpeg2tpu[gcp]'")
    cloud = options.view_as(beam_flags.GoogleCloudOptions)
    missing = [f"--{flag}" for flag in ("project", "region", "temp_location") if not getattr(cloud, flag)]
    if missing:
        raise ValueError(
            f"DataflowRunner needs {' and '.join(missing)}; "
            "e.g. --project=my-project --region=us-central1 --temp_location=gs://my-bucket/temp"
        )
    if not re.match(r"gs://[^/]", cloud.temp_location):
        raise ValueError(f"Dataflow needs --temp_location in a bucket, gs://BUCKET/FOLDER, got {cloud.temp_location!r}")


def _check_portable(options: PipelineOptions) -> None:
    endpoint = options.view_as(beam_flags.PortableOptions).job_endpoint
    if not endpoint:
        raise ValueError("PortableRunner needs a job server, --job_endpoint=HOST:PORT (docs/clusters.md)")
    if endpoint != "embed":
        _check_answers("--job_endpoint", endpoint, "start its job server first (docs/clusters.md)")


def _check_prism(options: PipelineOptions) -> None:
    """Raises ValueError if there is no Prism, Beam's runner in Go, and Beam cannot download it either."""
    location = options.view_as(beam_flags.PrismRunnerOptions).prism_location
    try:
        if location and "://" not in location and not os.path.isfile(location):
            raise ValueError(f"--prism_location={location} is not a file")
        download_prism(options)
    except (AssertionError, KeyError, ValueError, RuntimeError, OSError) as error:
        version = options.view_as(beam_flags.PrismRunnerOptions).prism_beam_version_override or f"v{beam_version}"
        raise ValueError(
            f"PrismRunner has no Prism: {_line(error)}; build it with Go, GOBIN=$PWD go install "
            f"github.com/apache/beam/sdks/v2/go/cmd/prism@{version}, and specify it with --prism_location=./prism "
            "(docs/clusters.md)"
        ) from error


def _check_jar(options: PipelineOptions) -> None:
    """Raises ValueError if the job server of a Flink or Spark runner cannot be started."""
    engine = name_of(options).capitalize()
    java = options.view_as(beam_flags.JobServerOptions).job_server_java_launcher
    # A jar with everything is submitted through the cluster's REST API, without a job server.
    if not shutil.which(java) and not _engine_flag(options, "submit_uber_jar"):
        raise ValueError(
            f"{engine}Runner starts a job server, which needs Java, but {java!r} was not found; install a JRE"
        )
    jar = _engine_flag(options, "job_server_jar")
    if jar and "://" not in jar and not os.path.exists(jar):
        raise ValueError(f"--{engine.lower()}_job_server_jar={jar} does not exist (docs/clusters.md)")
    try:
        download_job_server(options, name_of(options))
    except (ValueError, RuntimeError, OSError) as error:
        raise ValueError(
            f"{engine}Runner has no job server: {_line(error)}; download the job server of this version of Beam from "
            f"Maven Central and specify it with --{engine.lower()}_job_server_jar=FILE (docs/clusters.md)"
        ) from error
    master = _master(options)
    if re.search(r":\d+", master):
        flag = "--flink_master" if engine == "Flink" else "--spark_master_url"
        _check_answers(flag, master, "start the cluster first")


def _master(options: PipelineOptions) -> str:
    return str(_engine_flag(options, "master" if name_of(options) == "flink" else "master_url"))


def _engine_flag(options: PipelineOptions, name: str) -> Any:
    """Returns the value of --flink_NAME or --spark_NAME, as the engine has it."""
    engine = name_of(options)
    kind = beam_flags.FlinkRunnerOptions if engine == "flink" else beam_flags.SparkRunnerOptions
    return getattr(options.view_as(kind), f"{engine}_{name}")


def _check_answers(flag: str, address: str, advice: str) -> None:
    match = re.fullmatch(r"(?:\w+://)?\[?([^/\]]+)\]?:(\d+)/?", address)
    if not match:
        raise ValueError(f"{flag} must be HOST:PORT, got {address!r}")
    try:
        socket.create_connection((match[1], int(match[2])), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"nothing answers at {flag}={address} ({_line(error)}); {advice}") from error


def _is_beside_the_files(options: PipelineOptions) -> bool:
    """Returns whether workers run on machines that have this package and may have mounted the local files."""
    portable = options.view_as(beam_flags.PortableOptions)
    if name_of(options) == "prism" and not portable.environment_type:
        return True  # Beam starts Prism on this machine, and the workers in the process that launches
    if name_of(options) in ("flink", "spark") and not portable.environment_type and not portable.job_endpoint:
        return _master(options).startswith(("[", "local"))  # Beam starts the engine and its workers on this machine
    return name_of(options) != "dataflow" and (portable.environment_type or "").upper() in _BESIDE_THE_FILES


def template_of(options: PipelineOptions) -> str:
    """Returns where Dataflow's runner writes a template instead of submitting a job; "" if it submits one."""
    is_dataflow = name_of(options) == "dataflow"
    return str(options.view_as(beam_flags.GoogleCloudOptions).template_location or "") if is_dataflow else ""


def check_outlives(options: PipelineOptions) -> None:
    """Raises ValueError unless a job continues when the command that has submitted it ends."""
    engine = name_of(options)
    portable = options.view_as(beam_flags.PortableOptions)
    if engine == "dataflow":
        return
    if not engine:
        raise ValueError("--no_wait needs --runner of an engine, as this machine works only while the command does")
    if not portable.job_endpoint:
        raise ValueError(
            f"--no_wait needs a job server that continues without the command; start {engine.capitalize()}'s, and "
            "specify it with --job_endpoint=HOST:PORT"
        )
    if (portable.environment_type or ("LOOPBACK" if engine == "prism" else "")) == "LOOPBACK":
        raise ValueError(
            "--no_wait needs workers that continue without the command, but with --environment_type=LOOPBACK they are "
            "in it; use containers, --environment_type=DOCKER, or a worker pool of Beam's, --environment_type=EXTERNAL"
        )


def _check_paths(options: PipelineOptions, paths: Sequence[str]) -> None:
    local = [path for path in paths if not storage.is_uri(path)]
    if local and not _is_beside_the_files(options):
        raise ValueError(
            f"{name_of(options).capitalize()}Runner's workers run in containers on other machines and cannot read or "
            f"write {' and '.join(map(repr, local))} on this machine; use URIs, gs://BUCKET/FOLDER, for input and "
            "output"
        )


def _line(error: BaseException) -> str:
    """Returns the message of an error in one line, or the name of its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
