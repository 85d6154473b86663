"""Dry run of a conversion: what can be checked and estimated without converting, with one line of output per check.

input     checks the inputs and the output, and lists the inputs
folders   how the folders of the inputs are read
output    estimates the number of shards
work      estimates the time
memory    estimates the memory of a process

On this machine, that is all. For Dataflow, these are checked too, and the job is not submitted:

bucket    writes and deletes a small file
job       builds the graph with the Dataflow runner, and measures the size of the request
package   installs the package into a new environment and unpickles the graph's steps there, as a worker does
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import itertools
import logging
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_pipelines.convert import build_conversion, check_inputs
from beam_pipelines.options import ConvertOptions
from beam_pipelines.report.summary import size
from beam_pipelines.runners.beam_private import dataflow_request
from beam_pipelines.runners.wheel import NAME
from beam_pipelines.sources.folders import FolderSurvey, read_folders
from beam_pipelines.sources.listing import list_rows
from beam_pipelines.sources.row_columns import batches_of
from beam_pipelines.sources.rows import find
from tpu_input.command_line.cores import num_cores

if TYPE_CHECKING:  # on this machine, a dry run does without Beam
    from apache_beam.options.pipeline_options import PipelineOptions

_MAX_LISTED = 1_000_000  # inputs; listing a bucket yields about 5,000 per second
_SIZED = 64  # number of lines of a list for which the size of the file is requested
# On one core, from docs/benchmarks.md: images/s of 50,000 photographs (`python -m benchmarks.conversion --part=speed`)
# and, with --check=header, 100,000 by their CPU seconds, the start included (`--part=copying`).
IMAGES_A_SECOND, IMAGE_BYTES = 655, 88_000
HEADERS_A_SECOND = 2179
# Measured: `python -m benchmarks.conversion.worker_memory`, whose PNGs take the most for each pixel.
_PROCESS_BYTES, _BYTES_PER_PIXEL = 260_000_000, 12
_GRAPH_LIMIT = 10_000_000  # https://cloud.google.com/dataflow/quotas#limits
_READABLE_SHARDS = 100_000  # docs/scale.md

# Unpickles a graph as a worker does, in an environment with only the package and its dependencies; prints whether this
# imported TensorFlow.
_WORKER = """
import sys
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import Pipeline
from apache_beam.portability.api import beam_runner_api_pb2
with open(sys.argv[1], "rb") as file:
    graph = beam_runner_api_pb2.Pipeline.FromString(file.read())
Pipeline.from_runner_api(graph, "FnApiRunner", PipelineOptions([]))
import beam_pipelines.conversion.shard_writing
print("tensorflow" in sys.modules)
"""


def dry_run(options: ConvertOptions, num_processes: int | None = None) -> Iterator[str]:
    """Yields one line per check of a conversion on this machine that succeeded.

    Args:
      options: Options of the conversion.
      num_processes: Number of processes that would write shards; None for one for each core.

    Raises:
      ValueError: A check failed.
    """
    number = num_processes or num_cores()
    workers = f"{number} processes" if number > 1 else "one process"
    options, remarks = check_inputs(options)
    yield f"machine   {workers}, at most; nothing is written"
    yield from _work(
        options, remarks, f"on {number} cores" if number > 1 else "on one core", number, "each process, which", ")"
    )


def dry_run_of_dataflow(options: ConvertOptions, beam_options: PipelineOptions) -> Iterator[str]:
    """Yields one line per check of a conversion on Dataflow that succeeded.

    Args:
      options: Options of the conversion.
      beam_options: Options of Dataflow, after launch_checks.check() and within launch_checks.packed().

    Raises:
      ValueError: A check failed.
    """
    import apache_beam as beam
    from apache_beam.options import pipeline_options as beam_flags

    from beam_pipelines.runners import launch_checks

    cloud = beam_options.view_as(beam_flags.GoogleCloudOptions)
    yield (
        f"dataflow  project {cloud.project}, region {cloud.region}, Beam {beam.version.__version__}, "
        f"Python {sys.version_info.major}.{sys.version_info.minor}; nothing is submitted"
    )
    for place in launch_checks.check_writable(beam_options):
        yield f"bucket    {place} can be written"
    options, remarks = check_inputs(options)
    more = ", not on Dataflow), plus a few minutes to start workers"
    yield from _work(options, remarks, "of one vCPU", 1, "each vCPU, whose process", more)
    with tempfile.TemporaryDirectory() as folder:
        graph = f"{folder}/conversion.pb"
        yield f"job       {_graph(options, beam_options, graph)}"
        yield _package(beam_options, folder, graph)


def _graph(options: ConvertOptions, beam_options: PipelineOptions, path: str) -> str:
    """Builds the graph of the job and writes it to `path`; returns a description with its size."""
    import apache_beam as beam
    from apache_beam.options import pipeline_options as beam_flags

    beam_options.view_as(beam_flags.TestOptions).dry_run = True
    with _silent():
        pipeline = beam.Pipeline(options=beam_options)
        build_conversion(pipeline, options)
        Path(path).write_bytes(pipeline.to_runner_api().SerializeToString())
        result: Any = pipeline.run()  # in a dry run, Dataflow's runner returns a result with the attribute job
        job = result.job
        request = dataflow_request(job)
    graph = job.proto_pipeline
    steps = sum(not transform.subtransforms for transform in graph.components.transforms.values())
    if graph.ByteSize() > _GRAPH_LIMIT:
        raise ValueError(
            f"the graph of the job has {graph.ByteSize()} bytes, but Dataflow accepts at most {_GRAPH_LIMIT}"
        )
    sizes = f"a graph of {size(graph.ByteSize())}, a request of {size(len(request))}"
    return f"list, plan, write, commit: {steps} steps, {sizes}"


def _package(beam_options: PipelineOptions, folder: str, graph: str) -> str:
    """Installs the package as workers do, and unpickles the graph there; returns a description of the result."""
    import apache_beam as beam
    from apache_beam.options import pipeline_options as beam_flags

    wheel = beam_options.view_as(beam_flags.SetupOptions).extra_packages[-1]
    python = f"{folder}/worker/bin/python"
    _run("cannot create a virtual environment", sys.executable, "-m", "venv", f"{folder}/worker")
    # The container image of the workers has the same version of Beam as the launching machine.
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run("the package cannot be installed", *install, f"apache-beam=={beam.version.__version__}", wheel)
    printed = _run(
        "the steps cannot be unpickled in the environment of a worker", python, "-W", "ignore", "-c", _WORKER, graph
    )
    if printed != "False":
        raise ValueError("a worker would load TensorFlow")
    installed = _run(
        "pip cannot list the installed packages", python, "-m", "pip", "list", "--format=freeze"
    ).splitlines()
    version = importlib.metadata.version(NAME)
    return (
        f"package   {NAME} {version} as a wheel of {size(Path(wheel).stat().st_size)}; installed with its "
        f"dependencies into an empty environment, {len(installed)} packages without TensorFlow, in which the job "
        "can be unpickled"
    )


def _run(failing: str, *command: str) -> str:
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["it was killed"]
        raise ValueError(f"{failing}: {lines[-1]}")
    return process.stdout.strip()


def _work(
    options: ConvertOptions, remarks: list[str], where: str, num_workers: int, process: str, more: str
) -> Iterator[str]:
    yield from (f"input     {remark}" for remark in remarks)
    num_inputs = num_bytes = num_sized = 0
    survey = FolderSurvey(options)
    folders = survey.create_accumulator()
    with tempfile.TemporaryDirectory() as folder:  # for archives that must be unpacked to be listed
        listed = dataclasses.replace(options, output=folder)
        rows = itertools.chain.from_iterable(list_rows(source, listed) for source in options.sources)
        for batch in batches_of(itertools.islice(rows, _MAX_LISTED)):
            num_inputs += batch.num_rows
            survey.add_input(folders, batch)
            for row in batch.rows():
                # The listing of a folder includes sizes; a list needs a request per file.
                if row.num_bytes or num_sized < _SIZED:
                    num_sized += 1
                    num_bytes += find(row).num_bytes
    if not num_inputs:
        raise ValueError(f"input {options.sources[0].path!r} is empty")
    num_bytes = num_bytes * num_inputs // max(num_sized, 1)
    at_least = " or more, because the listing stops there" if num_inputs == _MAX_LISTED else ""
    yield f"input     {num_inputs:,} files{at_least}, {size(num_bytes)}" + (
        "" if num_sized == num_inputs else " (estimated)"
    )
    yield from (f"folders   {remark}" for remark in read_folders(folders, options).remarks)
    yield f"output    {_shards(options, num_bytes)}"
    rate = HEADERS_A_SECOND if options.images.check == "header" else IMAGES_A_SECOND
    minutes = max(num_inputs, num_bytes / IMAGE_BYTES) / (rate * num_workers) / 60
    time = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:,.0f} hours"
    per = "per second and core" if num_workers > 1 else "per second"
    yield (
        f"work      {time if minutes > 1 else 'less than a minute'} {where}, at {rate} photographs of "
        f"{size(IMAGE_BYTES)} {per} (measured by python -m benchmarks.conversion on our machine{more}"
    )
    largest = options.images.max_pixels
    yield (
        f"memory    at most {size(_PROCESS_BYTES + _BYTES_PER_PIXEL * largest)} for {process} takes "
        f"{size(_PROCESS_BYTES)} and {_BYTES_PER_PIXEL} bytes for each pixel of its largest image, up to "
        f"--max_pixels={largest}"
    )


def _shards(options: ConvertOptions, num_bytes: int) -> str:
    by_size = {name: math.ceil(share * num_bytes / options.shard_bytes) for name, share in options.splits}
    count = sum((by_size | dict(options.num_shards)).values())
    if count > _READABLE_SHARDS:
        raise ValueError(
            f"the dataset would have about {count:,} shards of {size(options.shard_bytes)}, and every reader of the "
            f"dataset reads a manifest of all shards; have at most {_READABLE_SHARDS:,} by using a larger --shard_size"
        )
    condition = "" if options.images.resize_shorter else ", if images are stored unchanged"
    return f"about {count:,} shards of up to {size(options.shard_bytes)}{condition}"


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppresses log messages of Beam up to the level ERROR."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
