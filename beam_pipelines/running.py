"""Runs a pipeline; what a step says to the user reaches the user as the step said it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

# Beam adds the step's name, and where an error type takes more than a message makes a RuntimeError of it.
_STEP = re.compile(r" \[while running '[^']*'\]")
_MEANT_FOR_USERS = re.compile(
    r"^(?:\w+\.)*(ValueError|OSError|\w*IOError|PermissionError|FileExistsError|Unavailable|\w*DirectoryError|FileNotFoundError|RetryError|NotFound|"
    r"Forbidden|Unauthorized|\w*CredentialsError|RefreshError|TransportError|HttpError): (.*)$"
)


@contextlib.contextmanager
def pipeline(options: PipelineOptions) -> Iterator[beam.Pipeline]:
    """Builds a pipeline in its body, then runs it to its end.

    Raises:
      ValueError: A step refused what it was given.
      OSError: A step could not read or write.
    """
    try:
        with beam.Pipeline(options=options) as built:
            yield built
    except ValueError as error:
        raise ValueError(_STEP.sub("", str(error))) from error
    except OSError as error:
        raise OSError(_STEP.sub("", str(error))) from error
    except RuntimeError as error:
        lines = _STEP.sub("", str(error)).strip().splitlines() or [""]
        if lines[-1].startswith("KeyboardInterrupt"):
            raise KeyboardInterrupt from error
        said = _MEANT_FOR_USERS.match(lines[-1])
        if not said:
            raise
        kind = ValueError if said[1] == "ValueError" else OSError
        raise kind(said[2]) from error
