"""Runs a pipeline; what a step says to the user reaches the user as the step said it."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from tpu_input.command_line import Terminated

# Beam adds the step's name, and where an error type takes more than a message makes a RuntimeError of it.
_STEP = re.compile(r" \[while running '[^']*'\]")
_MEANT_FOR_USERS = re.compile(
    r"^(?:\w+\.)*(ValueError|OSError|\w*IOError|PermissionError|FileExistsError|Unavailable|Changed|\w*DirectoryError|FileNotFoundError|RetryError|NotFound|"
    r"Forbidden|Unauthorized|\w*CredentialsError|RefreshError|TransportError|HttpError): (.*)$"
)

# What runners that only submit a job say of it.
_FAILED_JOB = re.compile(r"(?:failed in state \w+|pipeline failed\. State: \w+, Error):\s*(.*)")


@contextlib.contextmanager
def pipeline(options: PipelineOptions) -> Iterator[beam.Pipeline]:
    """Builds a pipeline in its body, then runs it to its end.

    Raises:
      ValueError: A step refused what it was given.
      OSError: A step could not read or write.
    """
    try:
        # A copy, for a portable runner takes its own name out of the options: with an older Beam the next pipeline of
        # the same options would run on this machine.
        with beam.Pipeline(options=copy.deepcopy(options)) as built:
            yield built
    except ValueError as error:
        raise ValueError(_STEP.sub("", str(error))) from error
    except OSError as error:
        raise OSError(_STEP.sub("", str(error))) from error
    except Exception as error:
        if not isinstance(error, RuntimeError) and type(error).__name__ != "DataflowRuntimeException":
            raise
        _raise_as_said(error)
        raise


def _raise_as_said(error: Exception) -> None:
    """Raises what a step has raised, if an engine's error tells, or that the engine's job failed."""
    text = _STEP.sub("", str(error)).strip()
    lines = text.splitlines() or [""]
    if lines[-1].startswith("KeyboardInterrupt"):
        raise KeyboardInterrupt from error
    if lines[-1] == f"{Terminated.__module__}.{Terminated.__qualname__}":  # as a traceback ends
        raise Terminated from error
    said = next(filter(None, map(_MEANT_FOR_USERS.match, reversed(lines))), None)
    if said:
        kind = ValueError if said[1] in ("ValueError", "Changed") else OSError
        raise kind(said[2]) from error
    if failed := _FAILED_JOB.search(text):
        raise OSError(f"the engine's job failed: {failed[1]}") from error
