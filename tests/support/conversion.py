"""Options of a small conversion, and what happens between its two pipelines."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.options import ConvertOptions, Source
from support.signatures import remember_signatures

remember_signatures()
convert_module = importlib.import_module("beam_pipelines.convert")


def options(source: Path | str, output: Path | str, **changes: Any) -> ConvertOptions:
    return ConvertOptions(
        (Source(str(source)),), str(output), **{"shard_bytes": 10_000, "max_rejected": 1.0, **changes}
    )


def after_planning(monkeypatch: pytest.MonkeyPatch, function: Callable[[], object]) -> None:
    """Calls a function between the plan of the next conversion and its writing."""
    planned = vars(convert_module)["make_plan"]

    def make_plan(*args: Any) -> Any:
        plan = planned(*args)
        monkeypatch.setattr(convert_module, "make_plan", planned)
        function()
        return plan

    monkeypatch.setattr(convert_module, "make_plan", make_plan)


def local() -> PipelineOptions:
    # By its full name, as Beam 2.54 knows no short one; `make test-engines` runs that Beam too.
    return PipelineOptions(["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"])
