"""Options of a small conversion, and what happens between its two pipelines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines import convert as convert_module
from beam_pipelines.options import ConvertOptions, Source


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


def files(folder: Path) -> dict[str, str]:
    """Every file below `folder` with the hash of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
