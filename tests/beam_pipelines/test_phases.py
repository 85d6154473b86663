"""What commands show while they work, and what they print for programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines import storage
from beam_pipelines.__main__ import main
from beam_pipelines.conversion import shard_writing
from beam_pipelines.conversion.shard_writing import write_planned
from beam_pipelines.convert import build_conversion, convert
from beam_pipelines.runners import phases
from beam_pipelines.verify import verify
from support.conversion import local, options
from support.terminal import run_in_terminal

ROOT = Path(__file__).parents[2]


def in_a_terminal(*command: str) -> tuple[int, list[str]]:
    """Runs a command in a terminal of 120 columns; returns its exit code and the lines that it has drawn."""
    code, output = run_in_terminal("beam_pipelines", *command, columns=120)
    return code, [line for line in re.split(r"[\r\n]+", output) if line.strip()]


def drawn_phases(lines: list[str]) -> list[str]:
    """The phases of which a bar was drawn, in the order in which they began."""
    prefixes = (line.partition(":")[0] for line in lines)
    return list(dict.fromkeys(phase for phase in prefixes if phase in phases.UNITS))


def test_a_terminal_shows_a_bar_for_each_phase_and_then_the_result(few_digits, tmp_path):
    code, lines = in_a_terminal("convert", f"--input={few_digits}", f"--output={tmp_path}/out", "--shard_size=10KB")
    assert code == 0
    assert drawn_phases(lines) == ["listing", "planning", "writing", "moving", "committing"]
    assert any(re.match(r"writing: .* \d+/36 \[", line) for line in lines)
    assert lines[-1] == f"complete: {tmp_path}/out/manifest.json"
    code, lines = in_a_terminal("verify", f"{tmp_path}/out")
    assert (code, drawn_phases(lines)) == (0, ["verifying"]), lines
    assert lines[-1].endswith("every record was read, every image was decoded")
    code, lines = in_a_terminal("report", f"{tmp_path}/out")
    assert (code, drawn_phases(lines)) == (0, ["reporting"]), lines
    assert lines[-1] == f"{tmp_path}/out/report.html"


def test_no_command_leaves_a_thread_behind(few_digits, tmp_path):
    """A thread that lives when Python ends may abort the process, also one of Arrow that has read (arrow#34314)."""
    images = [{"bytes": path.read_bytes(), "path": path.name} for path in sorted(few_digits.glob("*/*"))]
    labels = [path.parent.name for path in sorted(few_digits.glob("*/*"))]
    pq.write_table(pa.table({"image": images, "label": labels}), tmp_path / "list.parquet")
    commands = [
        ["convert", f"--input={tmp_path}/list.parquet", f"--output={tmp_path}/out"],
        ["verify", f"{tmp_path}/out"],
        ["report", f"{tmp_path}/out", f"--pairs={tmp_path}/pairs.parquet"],
        ["filter", f"{tmp_path}/out", f"--near_duplicates={tmp_path}/pairs.parquet", f"--output={tmp_path}/kept"],
        ["diff", f"{tmp_path}/out", f"{tmp_path}/kept"],
        ["report", f"{tmp_path}/kept"],
    ]
    code = f"""
import os, time
from pathlib import Path
from beam_pipelines.__main__ import main

def threads():
    return {{task for task in Path("/proc/self/task").iterdir() if name(task) not in ("", "jemalloc_bg_thd")}}

def name(task):
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has just ended
        return ""

before = threads()
for command in {commands}:
    assert main(command) == 0
    deadline = time.monotonic() + 30  # a thread that was joined is there for another moment
    while left := threads() - before:
        assert time.monotonic() < deadline, (command, left)
        time.sleep(0.01)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=True)


def test_the_bars_of_a_terminal_leave_no_thread(monkeypatch):
    monkeypatch.setattr(phases, "shows_progress", lambda: True)
    before = set(threading.enumerate())
    with phases.progress():
        phases.begin("verifying", 2)
        phases.advance("verifying")
    assert set(threading.enumerate()) <= before


def err_with(capsys: pytest.CaptureFixture[str], *texts: str) -> str:
    """Waits until lines with these texts, one after another, were printed on stderr; returns all of it."""
    err, deadline = "", time.monotonic() + 60
    while not re.search("".join(f"(.*\n)*.*{text}.*\n" for text in texts), err):
        assert time.monotonic() < deadline, err
        err += capsys.readouterr().err
    return err


def test_elsewhere_a_phase_that_lasts_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(phases, "SECONDS_PER_LINE", 0.001)
    with phases.progress():
        phases.begin("writing", 50_000)
        phases.advance("writing", 12_000, num_bytes=10**9, num_rejected=3)
        stderr = err_with(capsys, "writing", "writing")
    for line in stderr.splitlines():
        assert re.fullmatch(r"writing: 12,000 of 50,000 images, \d+ images/s, \d+ MB/s, 3 rejected, 0 s", line)


@pytest.mark.parametrize("total", [4, None])
@pytest.mark.parametrize("phase", phases.UNITS)
def test_a_slow_phase_shows_units_per_second_and_never_seconds_per_unit(phase, total, capsys, monkeypatch):
    monkeypatch.setattr(phases, "shows_progress", lambda: True)
    with phases.progress():
        phases.begin(phase, total)
        display = phases._display
        assert display is not None
        assert display._bar is not None
        display._start_time -= 10  # ten seconds for one unit
        display._bar.start_t -= 10
        phases.advance(phase, 1, 250_000)
        display.draw()
    stderr = capsys.readouterr().err
    assert re.search(rf"{phase}: .*0\.(1|09\d*) {phases.UNITS[phase]}/s, 0\.025 MB/s", stderr)
    assert not re.search(r"\ds/", stderr)


def test_a_command_that_ends_soon_shows_nothing_elsewhere_and_a_function_never(few_digits, tmp_path, capsys):
    assert main(["convert", f"--input={few_digits}", f"--output={tmp_path}/out"]) == 0
    assert capsys.readouterr().err == ""
    assert not phases.is_shown()
    phases.begin("writing", 3)  # as convert() does when it is called from a program
    phases.advance("writing")
    assert capsys.readouterr().err == ""


def test_a_phase_begins_with_what_it_counts(capsys, monkeypatch):
    monkeypatch.setattr(phases, "SECONDS_PER_LINE", 0.001)
    with phases.progress():
        phases.begin("listing")
        phases.count_units("listing", 700)
        phases.advance("planning", 5)  # of as many as were listed
        stderr = err_with(capsys, "planning")
    assert re.search(r"planning: 5 of 700 inputs, \d+ inputs/s, 0 s", stderr)


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, dict[str, Any]]:
    """Runs a command with --json; returns its exit code and the object, which must be all of stdout."""
    code = main([*command, "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    return code, json.loads(line)


def test_json_is_one_object_with_what_the_lines_say(few_digits, tmp_path, capsys):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    flags = [f"--input={few_digits}", f"--output={tmp_path}/out", "--shard_size=10KB", "--max_rejected=10%"]
    code, result = printed(capsys, "convert", *flags)
    manifest = verify(f"{tmp_path}/out").manifest
    assert (code, result["is_new"], result["num_shards_resumed"]) == (0, True, 0)
    assert (result["dataset"], result["fingerprint"]) == (f"{tmp_path}/out", manifest.fingerprint)
    assert (result["num_inputs"], result["num_rejected"]) == (37, {"not_an_image": 1})
    assert {name: split["num_examples"] for name, split in result["splits"].items()} == {
        name: split.num_examples for name, split in manifest.splits.items()
    }
    assert printed(capsys, "convert", *flags) == (0, result | {"is_new": False})
    code, verified = printed(capsys, "verify", f"{tmp_path}/out")
    assert (code, verified["problems"], verified["is_decoded"]) == (0, [], True)
    assert {name: verified[name] for name in result if name in verified} == {
        name: value for name, value in result.items() if name not in ("is_new", "num_shards_resumed")
    }
    assert printed(capsys, "report", f"{tmp_path}/out") == (0, {"report": f"{tmp_path}/out/report.html"})


def test_json_names_what_is_damaged_and_what_was_repaired(few_digits, tmp_path, capsys):
    assert main(["convert", f"--input={few_digits}", f"--output={tmp_path}/out", "--shard_size=10KB"]) == 0
    capsys.readouterr()
    shard = min((tmp_path / "out").glob("train-*"))
    shard.write_bytes(b"noise")
    code, result = printed(capsys, "verify", f"{tmp_path}/out")
    assert (code, result["damaged"], result["repaired"]) == (1, [shard.name], [])
    assert result["problems"][0].startswith(f"{shard.name}: ")
    code, result = printed(capsys, "repair", f"{tmp_path}/out")
    assert (code, result["problems"], result["damaged"], result["repaired"]) == (0, [], [], [shard.name])


def test_json_of_a_mistyped_command_is_one_object_too(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["convert", "--output=x", "--json"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert err == f"error: {json.loads(out)['error']}\n"
    assert "the following arguments are required: --input" in err


def test_json_of_a_failure_has_the_error_and_stderr_the_line(tmp_path, capsys):
    assert main(["verify", f"{tmp_path}/none", "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == f"error: {json.loads(out)['error']}\n"
    assert "does not exist; correct the path" in err


def test_a_run_that_goes_on_says_what_it_found_done(few_digits, tmp_path, monkeypatch, capsys):
    def fail(shard: str, *args: Any) -> Any:
        if shard.startswith("validation"):
            raise OSError("the disk is full")
        return write_planned(shard, *args)

    opts = options(few_digits, tmp_path / "out")
    with monkeypatch.context() as failing:
        failing.setattr(shard_writing, "write_planned", fail)
        with pytest.raises(OSError, match="the disk is full"):
            convert(opts)
    num_receipts = len([path for path, _ in storage.list_files(opts.output) if path.endswith(".receipt")])
    assert num_receipts > 0
    flags = ["convert", f"--input={few_digits}", f"--output={tmp_path}/out", "--shard_size=10KB", "--max_rejected=100%"]
    assert main(flags) == 0
    assert f"\nresumed: {num_receipts} of " in capsys.readouterr().out


def test_counters_of_a_job_tell_how_far_each_phase_is(few_digits, tmp_path):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    pipeline = beam.Pipeline(options=local())
    build_conversion(pipeline, options(few_digits, tmp_path / "out"))
    pipeline.result = pipeline.run()
    pipeline.result.wait_until_finish()
    counts = phases.counters(pipeline)
    assert (counts["listing"], counts["planning"], counts["records"], counts["rejected"]) == (37, 37, 36, 1)
    assert counts["rejected_not_an_image"] == 1
    manifest = verify(f"{tmp_path}/out").manifest
    assert counts["committing"] == sum(len(split.shards) for split in manifest.splits.values())


class Untold:
    """A pipeline on an engine that tells no more than the state of its job."""

    result: Any
    options = PipelineOptions(["--runner=PrismRunner"])
    num_asked = 0

    @property
    def state(self) -> str:
        self.num_asked += 1
        if self.num_asked == 1:
            raise ConnectionError("the engine does not answer")
        return "RUNNING"

    def metrics(self) -> None:
        raise NotImplementedError


class Told(Untold):
    """A pipeline on an engine that tells its counters."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def metrics(self) -> Any:
        results = [
            SimpleNamespace(key=SimpleNamespace(metric=SimpleNamespace(name=name)), committed=count, attempted=0)
            for name, count in self.counts.items()
        ]
        return SimpleNamespace(query=lambda _: {"counters": results})


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ({"listing": 7}, "listing: 7 inputs, "),
        ({"listing": 7, "hashing": 5}, "hashing: 5 inputs, "),
        ({"listing": 7, "hashing": 7, "planning": 4}, "planning: 4 of 7 inputs, "),
        (
            {"listing": 7, "planning": 7, "records": 2, "rejected": 1, "bytes_written": 10**7},
            "writing: 3 of 7 images, ",
        ),
        ({"listing": 7, "planning": 7, "records": 6, "rejected": 1, "committing": 2}, "committing: 2 shards, "),
        ({"verifying": 3}, "verifying: 3 shards, "),
    ],
)
def test_of_a_job_the_last_phase_that_has_begun_is_shown(counts, line, capsys, monkeypatch):
    monkeypatch.setattr(phases, "SECONDS_PER_LINE", 0.001)
    monkeypatch.setattr(phases, "_ASK_SECONDS", 0.001)
    pipeline = Told(**counts)
    pipeline.result = pipeline
    with phases.progress(), phases.job_progress() as watch:
        watch(pipeline)
        assert line in err_with(capsys, line)


def test_of_an_engine_that_tells_no_counters_the_state_of_the_job_is_shown(capsys, monkeypatch):
    monkeypatch.setattr(phases, "SECONDS_PER_LINE", 0.001)
    monkeypatch.setattr(phases, "_ASK_SECONDS", 0.001)
    pipeline = Untold()
    assert phases.counters(pipeline) == {}
    with phases.progress(), phases.job_progress() as watch:
        watch(pipeline)
        err_with(capsys, "listing")  # before the job is submitted, there is no result
        pipeline.result = pipeline
        stderr = err_with(capsys, "RUNNING")
    assert re.search(r"^listing: 0 inputs, the job is RUNNING, \d+ s$", stderr, re.MULTILINE)
