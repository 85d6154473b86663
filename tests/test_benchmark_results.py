"""What the benchmarks conclude from what they see: counts of examples and of records, plots, tables."""

from __future__ import annotations

import argparse
import dataclasses
import io
import itertools
import json
import os
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import measure, plots, tables
from benchmarks.conversion import __main__ as conversion, cores as conversion_cores, sweep as conversion_sweep
from benchmarks.conversion.promises import num_records
from benchmarks.conversion.ways import ALL, PLAIN_LOOP
from benchmarks.corpus import photograph
from benchmarks.evaluation.__main__ import account
from benchmarks.exports import __main__ as exports
from benchmarks.input import __main__ as input_benchmark, waits as input_waits
from benchmarks.order import __main__ as order
from benchmarks.order.mixing import meetings, mixing
from benchmarks.scale.__main__ import check as check_formulas
from tpu_input.dataset_format.records import frame


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([[[0, 1], [2, 3], [4, -1]]], {"steps": 3, "once": 5, "padded": 1, "twice": 0, "dropped": 0, "ragged": 0}),
        ([[[0, 1], [2, 3]]], {"steps": 2, "once": 4, "padded": 0, "twice": 0, "dropped": 1, "ragged": 0}),
        ([[[0, 1], [2, 3], [4, 4]]], {"steps": 3, "once": 4, "padded": 0, "twice": 1, "dropped": 0, "ragged": 0}),
        # The second host has no second batch, so the first one's is never taken.
        ([[[0, 1], [2]], [[3, 4]]], {"steps": 1, "once": 4, "padded": 0, "twice": 0, "dropped": 1, "ragged": 0}),
        ([[[0, 1], [4]], [[2, 3], [-1]]], {"steps": 2, "once": 5, "padded": 1, "twice": 0, "dropped": 0, "ragged": 2}),
    ],
)
def test_examples_are_counted_in_the_steps_that_all_hosts_can_take(hosts, expected):
    assert account(hosts, images=5, batch_size=2) == {"hosts": len(hosts)} | expected


def test_jumps_of_more_than_a_fifth_between_neighbours_of_one_axis_are_listed():
    costs = [("a", 1.0), ("a", 1.19), ("a", 1.45), ("b", 9.0), ("b", 8.0), ("b", 5.0)]
    rows = [{"axis": axis, "setting": str(n), "cpu_ms": cpu_ms} for n, (axis, cpu_ms) in enumerate(costs)]
    assert conversion_sweep.marked(rows) == ["a: 1 → 2: 1.22 times", "b: 4 → 5: 0.62 times"]
    assert [row.get("mark") for row in rows] == [None, None, "jump", None, None, "jump"]
    assert ["jump" in row for row in rows] == [False, True, True, False, True, True]


@pytest.mark.long
def test_what_a_conversion_takes_follows_the_formulas(tmp_path, capsys):
    check_formulas(tmp_path, [2000])
    cells = dict(re.findall(r"^\| (\w+) \| ([\d,]+ \([\d.]+\)) \|$", capsys.readouterr().out, re.MULTILINE))
    ratios = {name: float(cell.split("(")[1].rstrip(")")) for name, cell in cells.items()}
    # The largest range of so few images is a matter of chance; memory and the paths in working files, of the machine.
    exact = ratios.keys() - {"largest_range_rows", "planning_memory", "working_bytes"}
    assert len(exact) == 8
    assert {name: ratios[name] for name in exact if abs(ratios[name] - 1) > 0.05} == {}


@pytest.mark.long
def test_settings_of_a_conversion_run_and_neighbours_follow_each_other(tmp_path):
    settings = list(conversion_sweep.settings(tmp_path, 20))
    axes = [axis for axis, _ in itertools.groupby(settings, key=lambda setting: setting.axis)]
    assert len(axes) == len(set(axes)) >= 8
    report = next(setting for setting in settings if setting.is_report)
    row = conversion_sweep.cost(report, tmp_path / "output")
    assert row["images"] == 20
    assert row["cpu_seconds"] > 0
    assert not (tmp_path / "output").exists()


@pytest.mark.long
def test_training_is_measured_beside_one_batch_and_by_where_its_time_goes(tmp_path):
    pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ends with TensorFlow 2.15")
    from benchmarks.training import __main__ as training

    flags = argparse.Namespace(folder=tmp_path, count=200, network="cnn", steps=2)
    (row,) = training.input_part(flags).rows
    assert row["one_batch"] > 0
    assert row["real"] > 0
    durations = {row["way"]: row["seconds"] for row in training.loop_part(flags).rows}
    assert list(durations) == [
        "train",
        "evaluate",
        "exports",
        "curves, and images that are classified wrongly",
        "the rest",
    ]
    assert all(seconds > 0 for seconds in durations.values())


@pytest.mark.long
def test_fine_tuning_is_compared_with_random_weights_at_each_rate(tmp_path):
    from benchmarks.training import fine_tuning

    (row,) = fine_tuning.compared(tmp_path, [3], [fine_tuning.DEFAULT_RATE], steps_before=2, steps=2)
    assert (row.rate, row.seed) == (fine_tuning.DEFAULT_RATE, 3)
    assert 0 <= row.scratch <= 1
    assert 0 <= row.tuned <= 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:non-integer arguments to randrange:DeprecationWarning")  # Keras 2.15's own seeds
@pytest.mark.parametrize("recipe", ["digits", "small_photos"])
def test_accuracies_of_a_recipe_are_found_by_step_for_each_seed(tmp_path, recipe):
    from benchmarks.training import recipes

    options = {"train_steps": 4, "steps_per_eval": 2, "train_batch_size": 64}
    accuracies = recipes.accuracies(tmp_path, recipe, [0, 1], epochs=None, **options)
    assert list(accuracies) == [2, 4]
    assert all(len(values) == 2 and all(0 <= value <= 1 for value in values) for values in accuracies.values())


@pytest.mark.cloud
def test_waits_are_measured_from_files_and_from_a_bucket_on_other_cores(tmp_path):
    cores = os.sched_getaffinity(0)
    table = input_waits.waits(tmp_path, count=1000, repeats=1)
    assert [row["way"] for row in table.rows] == ["files", "gs:// on this machine", "gs://, each request 30 ms later"]
    assert all(0 < row["median_ms"] < row["longest_ms"] for row in table.rows)
    assert os.sched_getaffinity(0) == cores


def test_meetings_are_counted_pair_by_pair():
    random = np.random.default_rng(0)
    batches = np.concatenate([random.permutation(60).reshape(15, 4) for _ in range(5)])
    counts = np.zeros((60, 60), int)
    for batch in batches:
        for one in batch:
            counts[one, batch] += 1
    pairs, likely = counts[np.triu_indices(60, 1)], 3 / 59
    result = meetings(batches, 60, 5)
    others = (counts > 0).sum(1).mean() - 1  # without itself
    assert result.mates == pytest.approx(others / (59 * (1 - (1 - likely) ** 5)))
    assert result.variance == pytest.approx(pairs.var() / (5 * likely * (1 - likely)))
    assert result.again == pytest.approx((pairs * (pairs - 1) // 2).sum() / (len(pairs) * 10 * likely**2))


def test_a_true_permutation_is_mixed_as_expected_and_an_unshuffled_one_is_not():
    random = np.random.default_rng(0)
    row = mixing(np.concatenate([random.permutation(6400) for _ in range(4)]).reshape(-1, 64), 6400, 4)
    assert all(0.9 < value < 1.1 for value in row.values()), row
    row = mixing(np.tile(np.arange(6400), 4).reshape(-1, 64), 6400, 4)
    assert row["sorted1"] > 5
    assert row["again"] > 50


def test_photographs_are_the_same_every_time_and_of_the_size_that_the_page_says():
    photographs = [photograph(np.random.default_rng([0, number])) for number in range(20)]
    assert photographs[3] == photograph(np.random.default_rng([0, 3]))
    assert 80_000 < np.mean([len(one) for one in photographs]) < 96_000


def test_records_are_counted_in_every_format_that_is_compared(tmp_path):
    (tmp_path / PLAIN_LOOP.files).write_bytes(frame(b"one") + frame(b"") + frame(b"three"))
    with tarfile.open(tmp_path / "train-000000.tar", "w") as shard:
        for name in ("0.jpg", "0.cls", "1.jpg", "1.cls"):
            shard.addfile(tarfile.TarInfo(name), io.BytesIO())
    counts: dict[str, int] = {}
    for index in ({"shards": [{"samples": 2}, {"samples": 2}]}, {"chunks": [{"chunk_size": 5}]}):
        (tmp_path / "index.json").write_text(json.dumps(index))
        counts |= {way.function + next(iter(index)): num_records(way, tmp_path) for way in ALL}
    assert (counts["plainshards"], counts["webdatasetshards"]) == (3, 2)
    assert (counts["mdsshards"], counts["litdatachunks"]) == (4, 5)
    assert counts["convertshards"] == 3  # any .tfrecord


def test_plots_are_made_of_what_has_been_measured_and_are_the_same_every_time(tmp_path, monkeypatch, capsys):
    rows = [
        {"way": "convert", "images/s": 10.0, "peak_mb": 1.0, "checks": "decoded; SHA-256"},
        {"way": "another", "images/s": 5.0, "peak_mb": 2.0, "checks": "decoded for its size"},
        {"way": "a copying one", "images/s": 5.0, "peak_mb": 2.0, "checks": "nothing"},
    ]
    machine = {"cores": 2, "processor": "P", "day": "2026-01-01", "versions": {"Python": "3.11"}}
    (tmp_path / "conversion_peers.json").write_text(json.dumps({"rows": rows, "machine": machine}))
    monkeypatch.setattr(sys, "argv", ["plots", f"--results={tmp_path}", f"--output={tmp_path}"])
    svgs = []
    for _ in range(2):
        plots.main()
        svgs.append(Path(tmp_path / "benchmark_conversion.svg").read_text())
    assert svgs[0] == svgs[1]
    texts = (
        *("another", "images per second", "2 cores, P, 2026-01-01; Python 3.11", "Memory (lower is better)"),
        *("jpeg2tpu", "others that decode each image", "others that copy the bytes"),
    )
    assert all(f">{text}<" in svgs[0] for text in texts)
    # Three kinds, three fills, and no background that would cover a dark page.
    fills = set(re.findall(r"""fill(?:: |=")(#[0-9a-f]{6})""", svgs[0]))
    assert {"#0072b2", "#d55e00", "#999999"} <= fills
    assert not re.search(r'id="patch_1">\s*<path[^>]*fill: #ffffff', svgs[0])
    assert "left out: growth" in capsys.readouterr().out


def test_tables_come_between_their_marks_and_what_was_not_measured_stays(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(
        "Before\n<!-- table measured -->\nold\n<!-- end -->\nbetween\n<!-- table other -->\nold\n<!-- end -->\n"
    )
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["/somewhere/benchmarks/input/__main__.py", "--part=speed", "--folder=/of/mine"])
    rows: list[dict[str, Any]] = [{"way": "ours", "s": 1234.5}, {"way": "theirs"}]
    goals = measure.against([("ours", "theirs", 1.1), ("ours", "absent", 1.0)], {"ours": 3, "theirs": 2}, "CPU time")
    measure.keep("measured", measure.Table(rows, {"way": "way", "seconds": "s:,.1f"}, goals))
    assert "| ours | 1,234.5 |" in capsys.readouterr().out
    readme = tmp_path / "README.md"
    readme.write_text("<!-- peers -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "README", readme)
    monkeypatch.setattr(sys, "argv", ["tables", f"--results={tmp_path}", str(page)])
    pages = []
    for _ in range(2):
        tables.main()
        pages.append(page.read_text())
    assert pages[0] == pages[1]
    begin, between, end = pages[0].partition("between\n")
    assert begin.startswith("Before\n<!-- table measured -->\n\n| way | seconds |\n|---|---|\n| ours | 1,234.5 |\n")
    assert "| theirs |  |\n\n- CPU time of ours: 1.50 times theirs; at most 1.10 wanted: MISSED\n\n" in begin
    assert "(`python -m benchmarks.input --part=speed`; " in begin
    assert begin.endswith(".)\n\n<!-- end -->\n")
    assert between + end == "between\n<!-- table other -->\nold\n<!-- end -->\n"


def test_an_export_is_compared_with_its_peer_in_each_turn_without_the_start():
    ours = [{"cpu_seconds": seconds, "written_mb": 9.0} for seconds in (3.0, 6.0, 4.0)]
    theirs = [{"cpu_seconds": seconds, "written_mb": 8.0} for seconds in (2.0, 4.0, 4.0)]
    row = exports.compared(ours, theirs, [(1.0, 0.5), (2.0, 1.0), (1.0, 0.5)], count=1020)
    assert row == {
        **{"start": 1.0, "peer_start": 0.5, "written_mb": 9.0, "peer_written_mb": 8.0},
        **{
            "per_image": pytest.approx(3000),
            "peer_per_image": pytest.approx(3000),
        },  # of 2, 4 and 3 ms; of 1.5, 3 and 3.5 ms
        "per_image_ratio": pytest.approx(4 / 3),  # the median of 4/3, 4/3 and 6/7
        "ratio": pytest.approx(1.5),
    }
    entry = row | {"images": "1,020 images", "format": "mds", "writer": "MDSWriter"}
    assert exports.note(entry).endswith("1.50 times MDSWriter; at most 1.20 wanted: MISSED")


@pytest.mark.long
def test_exports_are_measured_beside_the_writers_that_are_installed(tmp_path, monkeypatch):
    missing = dataclasses.replace(exports.WRITERS["mds"][0], python=tmp_path / "python")
    writers = {name: exports.WRITERS[name][-1:] for name in ("parquet", "array_record")} | {"mds": (missing,)}
    monkeypatch.setattr(exports, "WRITERS", writers)
    rows = exports.compare(tmp_path, "images", (48, 36), count=200, repeats=1)
    assert [row["format"] for row in rows] == ["parquet", "array_record"]
    for row in rows:
        assert row["start"] > 0 < row["peer_start"]
        assert row["written_mb"] == pytest.approx(row["peer_written_mb"], rel=0.1)


def test_what_more_cores_would_take_follows_from_one_and_two():
    seconds = {name: {1: 3.0, 2: 2.0} for name, _ in conversion_cores.COMPUTED.values()}
    photographs, _ = conversion_cores.computed(seconds, start=0.5)  # 2,000 in 2.5 s, of which 2 are divided
    assert photographs["serial_ms"] == pytest.approx(0.25)
    assert photographs["divided_ms"] == pytest.approx(1)
    assert photographs["seconds_4"] == pytest.approx(0.5 + 20.4 * (0.25 + 1 / 4))
    assert photographs["seconds_16"] == pytest.approx(0.5 + 20.4 * (0.25 + 1 / 16))


def test_each_part_of_the_pages_is_one_that_is_measured():
    parts = {f"conversion_{part}" for part in conversion.PARTS} | {f"input_{part}" for part in input_benchmark.PARTS}
    parts |= {f"order_{part}" for part in order.PARTS} | {"evaluation", "training_input", "training_loop"}
    parts |= {"fine_tuning", "recipes", "tpu_bounds", "frameworks", "trainers", "convolutions"}
    parts |= {"conversion_cores", "conversion_cores_computed", "exports", "stores", "stores_reads", "urls"}
    texts = [page.read_text() for page in tables.PAGES]
    marks = [part for text in texts for part in re.findall("<!-- table (\\w+) -->", text)]
    assert sorted(marks) == sorted(parts)


def test_readme_has_the_measured_speed_of_each_tool_and_says_which_decode():
    readme = tables.README.read_text()
    assert tables.with_peers(readme, tables.BENCHMARKS.read_text()) == readme
    rows = [line.split(" | ")[:2] for line in readme.split("\n")]
    kinds = {row[1].strip("*").split(" (")[0]: row[0].strip("| ") for row in rows if len(row) == 2}
    assert kinds["convert --check=header"] == "looked at by its header"
    decoding = ("convert", "convert, 1 core", PLAIN_LOOP.name, "Beam's WriteToTFRecord, as tensorflow/tpu has it")
    assert {kinds[name] for name in decoding} == {"decoded"}
    copying = ("TFDS builder over class folders", "webdataset ShardWriter", "MosaicML MDSWriter")
    assert {kinds[name] for name in (*copying, "litData optimize, one process per core")} == {"copied"}
