"""The benchmark command: numbers that add up, words that say what bounds the input and what to change."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tpu_input import InputConfig, __main__
from tpu_input.benchmark.cost import Cost
from tpu_input.benchmark.measure import Measured
from tpu_input.benchmark.report import bottleneck, describe
from tpu_input.benchmark.stages import stages
from tpu_input.benchmark.variations import changes, sampled
from tpu_input.pipeline.images import decode_whole
from tpu_input.record_source import RecordSource

STAGES = ["read", "parse", "crop", "decode", "resize", "batch", "layout"]


def measured(**changed) -> Measured:
    """1,000 images/s on one core that is always busy, most of the time with decoding."""
    in_all = zip(STAGES, (0.1, 0.2, 0.3, 0.8, 0.9, 0.95, 1.0), strict=True)
    costs = {name: Cost(1000 / cpu_ms, cpu_ms) for name, cpu_ms in in_all}
    others = {"echo=2": Cost(1600, 0.6), "deterministic=False": Cost(1010, 0.99)}
    measurement = Measured(costs, Cost(1100, 0.8), others, ('cache="decoded" needs 9 GB',), 1, 900_000_000, 400_000_000)
    return dataclasses.replace(measurement, **changed)


@pytest.mark.long
def test_the_benchmark_measures_every_stage_and_says_so_in_numbers(digits_dataset, capsys):
    flags = [
        "--image_size=16",
        "--images=32",
        "--rounds=1",
        "--batch_size=32",
        "--need=3000",
        "--layout=HWCN",
        "--dtype=bfloat16",
    ]
    assert __main__.main(["benchmark", digits_dataset.path, *flags, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert list(results["stages"]) == STAGES
    assert results["cores_needed"] == pytest.approx(3 * results["stages"]["layout"]["cpu_ms"])
    tried = ["echo=2", "dtype='uint8'", "layout='NHWC'", "deterministic=False", "cache='records'", "cache='decoded'"]
    assert sorted(results["changes"]) == sorted([*tried, "stored smaller (convert --resize_shorter=18)"])
    assert all(cost["cpu_ms"] > 0 for cost in (*results["stages"].values(), *results["changes"].values()))
    assert results["peak_bytes"] >= results["start_bytes"] > 0  # equal if tests before this one took more


def test_what_a_cache_leaves_out_is_not_measured(digits_dataset):
    config = InputConfig(16, cache="decoded", echo=2)
    ways = stages(digits_dataset, config, "train", 8)
    assert list(ways) == ["decode", "resize", "batch", "layout"]
    assert ways["decode"].images == 16  # 8 images of 2 crops each
    assert ways["layout"].images == 8


def test_stored_smaller_is_the_same_images_at_another_size(digits_dataset, tmp_path):
    sample = sampled(digits_dataset, "train")
    variants, not_tried = changes(digits_dataset, InputConfig(16), "train", 8, sample, str(tmp_path))
    assert not not_tried
    assert next(iter(variants["stored smaller (convert --resize_shorter=18)"].make()))[0]["image"].shape == (
        8,
        16,
        16,
        3,
    )
    larger, _ = changes(digits_dataset, InputConfig(64), "train", 8, sample, str(tmp_path))
    assert not any("stored" in name for name in larger)
    assert min(decode_whole(RecordSource(digits_dataset, "train")[0].encoded).shape[:2]) > 18


def test_a_cache_that_would_not_fit_is_said_and_not_tried(digits_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("tpu_input.pipeline.caching.available_bytes", lambda: 1000)
    variants, not_tried = changes(digits_dataset, InputConfig(64), "train", 8, [], str(tmp_path))
    assert not any("cache" in name for name in variants)
    assert [line.split(" ")[0] for line in not_tried] == ['cache="records"', 'cache="decoded"']


def test_the_verdict_names_the_stage_that_costs_most():
    assert bottleneck(measured()) == "Decoding is the bottleneck: 50% of the CPU time."


def test_the_verdict_names_waiting_where_the_cores_are_idle():
    idle = {name: dataclasses.replace(cost, images_per_second=300) for name, cost in measured().stages.items()}
    assert "Waiting is the bottleneck" in bottleneck(measured(stages=idle))
    assert "read alone reaches 300 images/s" in bottleneck(measured(stages=idle))


def test_the_report_says_what_a_need_takes_and_what_changes_gain():
    report = "\n".join(describe(measured(), need=3000))
    assert "3,000 images/s need 3.0 cores like these" in report
    assert "the decoder's limit, takes 0.80 ms; the complete input takes 1.25 times as long" in report
    lines = {line.split()[0]: line for line in report.splitlines() if line.startswith("  ")}
    assert lines["echo=2"].endswith("1.67 times")
    assert lines["deterministic=False"].endswith("none")
    assert 'cache="decoded" needs 9 GB' in report


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--imagesize=3"],
            "error: unknown flag --imagesize; did you mean --image_size? (see jpeg2tpu benc",
        ),
        (["--images=0"], "error: --images must be at least 1, got 0"),
        (["--need=0"], "error: --need must be above 0, got 0"),
        ([], "has no manifest.json"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, flags, message):
    try:
        code: int | str | None = __main__.main(["benchmark", str(tmp_path), *flags])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    stderr = capsys.readouterr().err
    assert message in stderr
    assert stderr.count("\n") == 1


def test_an_option_that_the_input_refuses_is_one_line(digits_dataset, capsys):
    assert __main__.main(["benchmark", str(digits_dataset.path), "--echo=0"]) == 2
    assert capsys.readouterr().err == "error: echo must be at least 1, got 0\n"
