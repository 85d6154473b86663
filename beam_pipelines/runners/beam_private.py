"""All of Apache Beam that is used and not part of its documented API, tested with Beam 2.54 and 2.77.

Nothing of Beam is imported before one of the functions is called.
"""

from __future__ import annotations

import logging
from typing import Any


def log_no_errors_of_workers() -> None:
    """Keeps workers in this process from logging errors that a command prints itself, or that do not matter."""
    # Beam logs the traceback of an error and raises it too.
    logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)
    # A job server may close the connection to workers, which are threads of this process, when their job is done.
    logging.getLogger("apache_beam.runners.worker.data_plane").setLevel(logging.CRITICAL)


def has_dataflow() -> bool:
    """Returns whether Beam's clients of Google Cloud are installed, as Beam itself finds out."""
    try:
        from apache_beam.runners.dataflow.internal import apiclient  # noqa: F401
    except ImportError:
        return False
    return True


def dataflow_request(job: Any) -> str:
    """Returns the JSON request that would be sent to Dataflow, without the graph, which is staged in the bucket."""
    from apache_beam.runners.dataflow.internal import apiclient

    staging = job.google_cloud_options.staging_location
    version = apiclient._FNAPI_ENVIRONMENT_MAJOR_VERSION
    environment = apiclient.Environment([], job.options, version, f"{staging}/pipeline.pb", job.proto_pipeline)
    job.proto.environment = environment.proto
    return str(job.json())


def download_prism(options: Any) -> None:
    """Downloads the Prism of a released Beam unless it is cached or named by the options; raises what Beam raises."""
    from apache_beam.runners.portability.prism_runner import PrismJobServer

    server = PrismJobServer(options)
    server.local_bin(server.path_to_binary())


def download_job_server(options: Any, engine: str) -> None:
    """Downloads the job server of "flink" or "spark", likewise."""
    from apache_beam.runners.portability.flink_runner import FlinkJarJobServer
    from apache_beam.runners.portability.spark_runner import SparkJarJobServer

    kinds: dict[str, Any] = {"flink": FlinkJarJobServer, "spark": SparkJarJobServer}
    server = kinds[engine](options)
    server.local_jar(server.path_to_jar())
