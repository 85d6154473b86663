"""What the workers of an engine run with: versions of the packages that bytes depend on, threads, the Python program.

launching machine ──versions()──▶ steps ──check_versions()──▶ a worker with other versions refuses to write
                  ──set_up()──▶ Beam's options and this process's environment, before the job is built
"""

from __future__ import annotations

import os
import platform
import sys

from apache_beam.options import pipeline_options as beam_flags
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.runners.launch_checks import name_of
from beam_pipelines.runners.wheel import versions


def check_versions(launched_with: dict[str, str]) -> None:
    """Checks, in a worker, that it has the versions that the launching machine had: see wheel.versions().

    Raises:
      ValueError: It has others.
    """
    installed = versions()
    others = [
        f"{name} {installed.get(name, 'missing')} (not {version})"
        for name, version in launched_with.items()
        if installed.get(name) != version
    ]
    if others:
        raise ValueError(
            f"the worker on {platform.node()!r} has {', '.join(others)}, and may write other bytes than the machine "
            "that launched the job; install the same versions in the workers' image or pool, or launch from an "
            "environment with the workers' versions"
        )


def set_up(options: PipelineOptions) -> None:
    """Sets what the options leave open about workers, and the program that Beam starts as one on this machine."""
    debug = options.view_as(beam_flags.DebugOptions)
    if name_of(options) == "dataflow" and debug.number_of_worker_harness_threads is None:
        debug.number_of_worker_harness_threads = 1  # shards that a process writes at the same time
    if debug.lookup_experiment("use_loopback_process_worker", False):
        # Beam starts it as `python`. Another one than this would lack Beam, and the job would wait for it forever.
        os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def num_decoders(options: PipelineOptions) -> int:
    """Returns the number of threads that decode the images of a shard; 0 for all cores of the machine that writes it.

    On Dataflow it is 1, as its machines run a process for each core, unless an experiment makes that one process.
    """
    is_one_process = options.view_as(beam_flags.DebugOptions).lookup_experiment("no_use_multiple_sdk_containers", False)
    return 1 if name_of(options) == "dataflow" and not is_one_process else 0
