"""The same bytes whatever runs the pipelines; progress on a terminal and as counters."""

from __future__ import annotations

import io
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import Pipeline

from beam_pipelines.convert import build_conversion, convert
from beam_pipelines.runners import worker_output
from support.conversion import local, options
from support.folders import files

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "flags",
    [
        ["--runner=FnApiRunner"],
        ["--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_threading"],
        ["--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"],
        ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"],
    ],
    ids=["one thread", "threads", "processes", "portable"],
)
@pytest.mark.long
@pytest.mark.core
def test_every_runner_gives_the_same_bytes(few_digits, tmp_path, flags):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    convert(options(few_digits, tmp_path / "a"))
    convert(options(few_digits, tmp_path / "b"), PipelineOptions(flags))
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_a_runner_of_this_process_gets_one_pipeline_too(few_digits, tmp_path, monkeypatch):
    run, pipelines = Pipeline.run, set[int]()

    def counted(self: Pipeline, *arguments: Any) -> Any:
        pipelines.add(id(self))
        return run(self, *arguments)

    monkeypatch.setattr(Pipeline, "run", counted)
    convert(options(few_digits, tmp_path / "out"), local())
    assert len(pipelines) == 1


def test_counters_say_what_was_written_and_rejected(few_digits, tmp_path):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    opts = options(few_digits, tmp_path / "out")
    pipeline = Pipeline(options=local())
    build_conversion(pipeline, opts)
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(MetricsFilter().with_namespace("jpeg2tpu"))["counters"]
    shards = [path.stat().st_size for path in (tmp_path / "out").glob("*.tfrecord")]
    assert {counter.key.metric.name: counter.committed for counter in counters} == {
        "listing": 37,
        "planning": 37,
        "records": 36,
        "rejected": 1,
        "rejected_not_an_image": 1,
        "bytes_written": sum(shards),
        "shards_resumed": 0,
        "images_outdated": 0,
        "committing": len(shards),
    }


def printed(monkeypatch, error: Exception) -> tuple[io.StringIO, str]:
    """Returns stderr after a worker's thread has printed the traceback of an error, and the traceback."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("threading.excepthook", lambda args: None)
    monkeypatch.setattr("logging.root.handlers", [])
    worker_output.show_errors_once()
    try:
        raise error
    except type(error):
        text = traceback.format_exc()
    print(text, file=sys.stderr)  # as Beam's worker does
    return stream, text


def test_the_traceback_of_an_error_that_the_command_reports_is_not_printed(monkeypatch):
    stream, _ = printed(monkeypatch, ValueError("'a.tar' is no archive [while running 'List']"))
    print("a remark", file=sys.stderr)
    assert stream.getvalue() == "a remark\n"


def test_the_traceback_of_any_other_error_is_printed_as_it_is(monkeypatch):
    stream, text = printed(monkeypatch, TypeError("'NoneType' object is not callable"))
    assert stream.getvalue() == f"{text}\n"


def test_a_step_that_failed_in_a_job_that_succeeded_is_said(monkeypatch):
    stream, _ = printed(monkeypatch, OSError("gs://b/a.jpg: connection reset"))
    worker_output.show_retried()
    assert stream.getvalue() == "a step failed and was run again: gs://b/a.jpg: connection reset\n"
