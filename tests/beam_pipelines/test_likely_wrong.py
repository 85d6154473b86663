"""report --predictions: records whose prediction is not their label, the surest first, as a page and for relabel."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.conversion.output_folder import complete_manifest
from beam_pipelines.report.likely_wrong import MAX_SHOWN_LABELS
from beam_pipelines.verify import verify
from support.nasty import SCRIPT
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.index import index_path, read_index

ROOT = Path(__file__).parents[2]
CLASSES = [str(label) for label in range(10)]


def labels_of(dataset: Path) -> dict[str, int]:
    manifest = complete_manifest(str(dataset))
    paths = [dataset / index_path(shard.name) for split in manifest.splits.values() for shard in split.shards]
    return {row.key: row.label for path in paths for row in read_index(path.read_bytes())}


def write(path: Path, rows: dict[str, np.ndarray], classes: list[str] | None = None) -> Path:
    """Writes predictions as estimator_app does."""
    values = np.array(list(rows.values()), np.float32)
    probabilities = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    table = pa.table({"key": pa.array(list(rows), pa.string()), "probabilities": probabilities})
    if classes is not None:
        table = table.replace_schema_metadata({"jpeg2tpu.predictions": json.dumps({"classes": classes})})
    pq.write_table(table, path)
    return path


def sure(label: int, probability: float = 1.0, other: int | None = None) -> np.ndarray:
    row = np.zeros(10)
    row[label] = probability
    row[(label + 1) % 10 if other is None else other] += 1 - probability
    return row


def report(capsys, dataset: Path, *files: Path) -> tuple[str, list[list[str]]]:
    code, out, err = run(capsys, "report", dataset, *(f"--predictions={file}" for file in files))
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{dataset}/report.html", f"{dataset}/likely_wrong_labels.csv"]
    with (dataset / "likely_wrong_labels.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["key", "label", "probability", "label_probability"]
    assert all(float(line[2]) > float(line[3]) for line in lines[1:])
    return (dataset / "report.html").read_text(), [line[:2] for line in lines[1:]]


def test_the_surest_come_first_on_the_page_and_in_the_file_that_relabel_takes(dataset_copy, tmp_path, capsys):
    truth = labels_of(dataset_copy)
    rows = {key: sure(label) for key, label in truth.items()}
    a, b, c, d, unsure = sorted(truth)[100:600:100]
    for key, margin in ((c, 0.9), (b, 0.4), (a, 0.4), (d, 0.2)):
        other = (truth[key] + 3) % 10
        rows[key] = sure(other, 0.5 + margin / 2, truth[key])
    rows[unsure] = sure(truth[unsure], 0.5)  # as likely as another class
    page, lines = report(capsys, dataset_copy, write(tmp_path / "p.parquet", rows, CLASSES))
    assert lines == [[key, str((truth[key] + 3) % 10)] for key in (c, a, b, d)]
    section = page[page.index('<section id="likely-wrong">') : page.index('<section id="classes">')]
    assert section.count('<img src="data:image/jpeg') == 4
    assert [section.index(f"<bdi>{key}</bdi>") for key in (c, a, b, d)] == sorted(
        section.index(f"<bdi>{key}</bdi>") for key in (c, a, b, d)
    )
    with (dataset_copy / "likely_wrong_labels.csv").open() as file:
        assert file.readlines()[1].split(",")[2:] == ["0.9500", "0.0500\n"]
    assert (
        f"predicted <b><bdi>{(truth[c] + 3) % 10}</bdi></b> 95.0 %<br>label <b><bdi>{truth[c]}</bdi></b> 5.0 %"
        in section
    )
    assert (
        f"4 of {len(truth):,} records with a prediction (0.223 %) have a predicted class that is not their label."
        in section
    )
    notes = page[page.index('<ul class="notes">') :]
    assert notes.index("4 records have another predicted class than label") < notes.index("</li>")
    assert verify(str(dataset_copy)).problems == []

    command = ("relabel", dataset_copy, f"--labels={dataset_copy}/likely_wrong_labels.csv", f"--output={tmp_path}/new")
    code, _, err = run(capsys, *command)
    assert (code, err) == (0, "")
    assert labels_of(tmp_path / "new") == truth | {key: int(label) for key, label in lines}


def test_the_file_has_all_of_them_and_the_page_the_first(dataset_copy, tmp_path, capsys):
    truth = labels_of(dataset_copy)
    rows = {key: sure((label + 1) % 10) for key, label in truth.items()}
    halves = [dict(list(rows.items())[place::2]) for place in (0, 1)]
    files = [write(tmp_path / f"{place}.parquet", half, CLASSES) for place, half in enumerate(halves)]
    page, lines = report(capsys, dataset_copy, *files)
    assert lines == [[key, str((truth[key] + 1) % 10)] for key in sorted(truth)]
    section = page[page.index('<section id="likely-wrong">') : page.index('<section id="classes">')]
    assert section.count("<figure ") == MAX_SHOWN_LABELS == 100
    assert "The first 100 are shown." in section
    assert len(page) < 5_000_000


def test_classes_are_compared_by_name_and_only_those_of_both(few_digits, tmp_path, capsys):
    assert run(capsys, "convert", f"--input={few_digits}", f"--output={tmp_path}/d")[0] == 0
    truth = labels_of(tmp_path / "d")
    # The model knows no 2, and a 9 that the dataset has not, which it always finds the most likely.
    rows = {key: np.array([0.6, 0.1, 0.3] if label == 1 else [0.6, 0.3, 0.1]) for key, label in truth.items()}
    rows["gone.jpg"] = np.array([0.6, 0.2, 0.2])
    page, lines = report(capsys, tmp_path / "d", write(tmp_path / "p.parquet", rows, ["9", "1", "0"]))
    assert lines == [[key, {0: "1", 1: "0"}[label]] for key, label in sorted(truth.items()) if label != 2]
    assert "12 records have labels that the model does not know; not compared." in page
    assert "1 prediction has a key that the dataset does not have." in page
    assert "24 of 24 records with a prediction" in page


def test_names_of_strangers_stay_text(few_digits, tmp_path, capsys):
    (few_digits / "0").rename(few_digits / "a,b")
    shutil.move(min((few_digits / "1").iterdir()), few_digits / "1" / f"{SCRIPT.replace('/', '')}.jpg")
    assert run(capsys, "convert", f"--input={few_digits}", f"--output={tmp_path}/d")[0] == 0
    truth = labels_of(tmp_path / "d")
    classes = list(complete_manifest(str(tmp_path / "d")).classes)
    rows = {key: np.eye(3)[classes.index("a,b")] for key in truth}
    page, lines = report(capsys, tmp_path / "d", write(tmp_path / "p.parquet", rows, classes))
    assert page.count("<script") == 1  # the page's own
    assert "alert(1)" not in page.partition("<script>")[2]
    assert {label for _, label in lines} == {"a,b"}
    command = ("relabel", f"{tmp_path}/d", f"--labels={tmp_path}/d/likely_wrong_labels.csv", f"--output={tmp_path}/new")
    code, _, err = run(capsys, *command)
    assert (code, err) == (0, "")


def test_a_report_without_predictions_has_no_such_section(dataset_copy, capsys):
    assert run(capsys, "report", dataset_copy)[0] == 0
    assert "likely-wrong" not in (dataset_copy / "report.html").read_text()
    assert not (dataset_copy / "likely_wrong_labels.csv").exists()


def test_json_names_both_files(dataset_copy, tmp_path, capsys):
    rows = {key: sure(label) for key, label in labels_of(dataset_copy).items()}
    file = write(tmp_path / "p.parquet", rows, CLASSES)
    code, out, _ = run(capsys, "report", dataset_copy, f"--predictions={file}", "--json")
    paths = {"report": f"{dataset_copy}/report.html", "likely_wrong_labels": f"{dataset_copy}/likely_wrong_labels.csv"}
    assert (code, json.loads(out)) == (0, paths)
    assert (dataset_copy / "likely_wrong_labels.csv").read_text() == "key,label,probability,label_probability\n"


KEYS = ["0/0000.jpg", "1/0001.jpg"]
TENS = [[0.1] * 10, [0.1] * 10]


def table(keys=KEYS, rows=TENS, kind=None) -> pa.Table:
    return pa.table({"key": keys, "probabilities": pa.array(rows, kind or pa.list_(pa.float32()))})


def classes(value: object) -> pa.Table:
    return table().replace_schema_metadata({"jpeg2tpu.predictions": json.dumps({"classes": value})})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no Parquet", "cannot be used as predictions: "),
        (b"PAR1" + b"\xff" * 40 + b"PAR1", "cannot be used as predictions: "),
        (table().drop_columns("key"), "it has no column key"),
        (table().drop_columns("probabilities"), "it has no column probabilities"),
        (table([1, 2]), "its column key has the type int64, not string"),
        (table([KEYS[0], None]), "it has a record without a key"),
        (table(["x" * 70_000, "y"]), "it has a record without a key, or one with a very long key"),
        (table(kind=pa.list_(pa.string()), rows=[["a"] * 10] * 2), "has the type list<"),
        (table(rows=[[0.1] * 10, [0.1] * 9]), "it has 19 probabilities in 2 rows, of 10 classes"),
        (table(rows=[[0.1] * 9, [0.1] * 11]), "it has a record with other than 10 probabilities"),
        (table(rows=[[0.1] * 10, [float("nan")] * 10]), "its probabilities are not all between 0 and 1"),
        (table(rows=[[0.1] * 10, [7.0] * 10]), "its probabilities are not all between 0 and 1"),
        (table([KEYS[0]] * 2), "has a second prediction of '0/0000.jpg'; give one for each record"),
        (table(["a", "b"]), "no prediction is of a record of"),
        (classes(7), "classes must be "),
        (classes(["a"] * 10), "its classes are not different names"),
        (classes([f"c{label}" for label in range(10)]), "has predictions of other classes than"),
        (None, "does not exist; write it with: jpeg2tpu predict"),
    ],
)
def test_a_file_that_is_no_predictions_is_one_line_and_leaves_no_page(dataset_copy, tmp_path, capsys, content, message):
    path = tmp_path / "p.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        pq.write_table(content, path)
    assert message in refused(capsys, "report", dataset_copy, f"--predictions={path}")
    assert not (dataset_copy / "report.html").exists()
    assert not (dataset_copy / "likely_wrong_labels.csv").exists()


# Reads predictions with each byte of the footer set to 0, one after another: pyarrow ended the process at some.
READ_DAMAGED = """
import sys
from beam_pipelines.report.likely_wrong import _read
from tpu_input import read_manifest
manifest, content = read_manifest(sys.argv[2]), open(sys.argv[1], "rb").read()
end = len(content) - 8
for at in range(end - int.from_bytes(content[-8:-4], "little"), end):
    with open(sys.argv[1], "wb") as file:
        file.write(content[:at] + bytes(1) + content[at + 1 :])
    try:
        list(_read(sys.argv[1], manifest))
    except ValueError as error:
        assert "cannot be used as predictions" in str(error)
"""


def test_a_damaged_footer_never_ends_the_process(digits_dataset, tmp_path):
    path = tmp_path / "p.parquet"
    pq.write_table(table(), path)
    command = [sys.executable, "-W", "ignore", "-c", READ_DAMAGED, str(path), digits_dataset.path]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert result.returncode == 0, result.stderr


def test_pairs_and_predictions_exclude_each_other(dataset_copy, tmp_path, capsys):
    message = refused(capsys, "report", dataset_copy, "--predictions=p", f"--pairs={tmp_path}/pairs.parquet")
    assert "--predictions would have no effect" in message


@pytest.mark.cloud
def test_predictions_and_dataset_may_be_in_a_bucket(cloud, dataset_copy, tmp_path, capsys):
    bucket, truth = cloud.make_bucket(), labels_of(dataset_copy)
    key = min(truth)
    rows = {record_key: sure(label) for record_key, label in truth.items()} | {key: sure((truth[key] + 1) % 10)}
    cloud.upload(dataset_copy, f"{bucket}/dataset")
    cloud.put(f"{bucket}/p.parquet", write(tmp_path / "p.parquet", rows, CLASSES).read_bytes())
    code, out, err = run(capsys, "report", f"{bucket}/dataset", f"--predictions={bucket}/p.parquet")
    assert (code, err) == (0, "")
    listed = f"{bucket}/dataset/likely_wrong_labels.csv"
    assert out.splitlines() == [f"{bucket}/dataset/report.html", listed]
    header = "key,label,probability,label_probability"
    assert cloud.get(listed).decode() == f"{header}\n{key},{(truth[key] + 1) % 10},1.0000,0.0000\n"
