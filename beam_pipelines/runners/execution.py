"""Execution of a pipeline: errors meant for the user are re-raised as ValueError or OSError with the step's message."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterator, Sequence

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions

from tpu_input.command_line import Terminated

# Beam appends the name of the step to the message. If the constructor of an error type needs more than a message, Beam
# raises a RuntimeError instead.
_STEP = re.compile(r" \[while running '[^']*'\]")
_MEANT_FOR_USERS = re.compile(
    r"^(?:\w+\.)*(ValueError|OSError|\w*IOError|PermissionError|FileExistsError|Unavailable|Changed|\w*DirectoryError|FileNotFoundError|RetryError|NotFound|"
    r"Forbidden|Unauthorized|\w*CredentialsError|RefreshError|TransportError|HttpError): (.*)$"
)


def options_of(runner: str, flags: Sequence[str] = ()) -> PipelineOptions:
    """Returns the options of a Beam runner.

    Args:
      runner: Name of the runner; DirectRunner runs in this process.
      flags: Its other flags.
    """
    # Beam's DirectRunner hands over to this one, but first tries to download another.
    runner = "FnApiRunner" if runner == "DirectRunner" else runner
    return PipelineOptions([f"--runner={runner}", *flags])


# Messages of runners that submit a job to an engine, for a failed job.
_FAILED_JOB = re.compile(r"(?:failed in state \w+|pipeline failed\. State: \w+, Error):\s*(.*)")


@contextlib.contextmanager
def pipeline(options: PipelineOptions) -> Iterator[beam.Pipeline]:
    """Context manager: yields a pipeline, to which the body adds steps, then runs it and waits until it is done.

    Raises:
      ValueError: A step raised ValueError, for an invalid input.
      OSError: A step could not read or write, or the engine's job failed, or the engine is gone.
    """
    try:
        # A copy, because portable runners remove their name from the options. With an older Beam, the next pipeline
        # with the same options would then run on this machine.
        with beam.Pipeline(options=copy.deepcopy(options)) as built:
            yield built
    except ValueError as error:
        raise ValueError(_STEP.sub("", str(error))) from error
    except OSError as error:
        raise OSError(_STEP.sub("", str(error))) from error
    except grpc.RpcError as error:
        details = error.details() if isinstance(error, grpc.Call) else error
        raise OSError(f"the connection to the engine was lost: {' '.join(str(details).split())}") from error
    except Exception as error:
        if isinstance(error, RuntimeError) or type(error).__name__ == "DataflowRuntimeException":
            _raise_as_said(error)
        raise


def submit(options: PipelineOptions, build: Callable[[beam.Pipeline], None]) -> str:
    """Runs the pipeline that `build` makes, without waiting for it; returns the engine's name of the job, or ""."""
    pipeline = beam.Pipeline(options=copy.deepcopy(options))
    build(pipeline)
    result = pipeline.run()
    name = getattr(result, "job_id", None) or getattr(result, "_job_id", None)  # of Dataflow, of a job server
    has_job = getattr(result, "has_job", True)  # False of Dataflow if only a template was made
    return str(name() if callable(name) else name or "") if has_job else ""


def error_of_step(text: str) -> ValueError | OSError | None:
    """Returns the error that the last matching line of a traceback names, if it is one that is meant for the user."""
    lines = _STEP.sub("", text).strip().splitlines()
    match = next(filter(None, map(_MEANT_FOR_USERS.match, reversed(lines))), None)
    if not match:
        return None
    return (ValueError if match[1] in ("ValueError", "Changed") else OSError)(match[2])


def _raise_as_said(error: Exception) -> None:
    """Raises the error of a step that an engine's error quotes, else OSError if it says that the job failed.

    Returns if the text of the error matches neither.
    """
    text = _STEP.sub("", str(error)).strip()
    lines = text.splitlines() or [""]
    if lines[-1].startswith("KeyboardInterrupt"):
        raise KeyboardInterrupt from error
    if lines[-1] == f"{Terminated.__module__}.{Terminated.__qualname__}":  # the last line of a traceback
        raise Terminated from error
    if error_meant := error_of_step(text):
        raise error_meant from error
    if failed := _FAILED_JOB.search(text):
        raise OSError(f"the engine's job failed: {failed[1]}") from error
