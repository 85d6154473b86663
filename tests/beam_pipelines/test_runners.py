"""The same bytes whatever runs the pipelines; progress on a terminal and as counters."""

from __future__ import annotations

from pathlib import Path

import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import Pipeline

from beam_pipelines.conversion.planning import make_plan
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.convert import build_writing, convert
from support.conversion import local, options
from support.folders import files

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "flags",
    [
        ["--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_threading"],
        ["--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"],
        ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"],
    ],
    ids=["threads", "processes", "portable"],
)
@pytest.mark.long
def test_every_runner_gives_the_same_bytes(few_digits, tmp_path, flags):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    convert(options(few_digits, tmp_path / "a"), local())
    convert(options(few_digits, tmp_path / "b"), PipelineOptions(flags))
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_counters_say_what_was_written_and_rejected(few_digits, tmp_path):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    opts = options(few_digits, tmp_path / "out")
    plan = make_plan(opts, local())
    WorkingFolder.of(opts.output, plan).write_plan(plan)
    pipeline = Pipeline(options=local())
    build_writing(pipeline, opts, WorkingFolder.of(opts.output, plan))
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(MetricsFilter().with_namespace("jpeg2tpu"))["counters"]
    shards = sum(path.stat().st_size for path in (tmp_path / "out" / ".jpeg2tpu").glob("*/*.data-*"))
    assert {counter.key.metric.name: counter.committed for counter in counters} == {
        "records": 36,
        "rejected": 1,
        "bytes_written": shards,
    }
