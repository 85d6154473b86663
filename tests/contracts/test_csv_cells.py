"""Contract over the CSV files that commands write: no cell is a formula of a spreadsheet, and all are read back."""

from __future__ import annotations

import csv
import io

import pytest

from beam_pipelines.report.likely_wrong import LikelyWrong, WrongLabel
from beam_pipelines.sources.dataset_examples import labels_of
from estimator_app.model.metrics import Metrics
from estimator_app.model_dir.history import BY_CLASS_NAME, write_by_class
from estimator_app.trainers.starting_weights import StartingWeights
from tpu_input.dataset_format.csv_cells import csv_cell, text_of_cell

NAMES = (
    '=HYPERLINK("http:x","y")',
    "@SUM(1+1)*cmd|'",
    "+1+1",
    "-2+3",
    "\uff1d1",
    "'=1",
    "''+a",
    "'plain'",
    "plain",
    " =1",
)


def likely_wrong(tmp_path) -> str:
    wrong_labels = [WrongLabel(f"{name}/1.jpg", number, name, 0.9, 0.1) for number, name in enumerate(NAMES)]
    return LikelyWrong(wrong_labels, [], len(wrong_labels), 0, 0).to_csv()


def by_class(tmp_path) -> str:
    count = len(NAMES)
    fields = {"step": 1, "split": "train", "num_examples": count, "loss": 1.0, "accuracy": 1.0, "others": {}}
    fields |= {"recall": dict.fromkeys(NAMES, 1.0), "confusion": [[1] * count] * count}
    metrics = Metrics.from_fields(fields)
    write_by_class(str(tmp_path), metrics, NAMES)
    return (tmp_path / BY_CLASS_NAME / "1.csv").read_text()


def starting_weights(tmp_path) -> str:
    return StartingWeights({}, tuple((name, "[1]", name, "[1]", "") for name in NAMES)).to_csv()


@pytest.mark.parametrize("table", [likely_wrong, by_class, starting_weights])
def test_no_cell_is_a_formula_and_each_is_read_back(tmp_path, table) -> None:
    rows = list(csv.reader(io.StringIO(table(tmp_path), newline="")))[1:]
    cells = [cell for row in rows for cell in row]
    assert not [cell for cell in cells if cell[:1] in tuple("=+-@\t\r\uff1d\uff0b\uff0d\uff20")]
    assert set(NAMES) <= set(map(text_of_cell, cells))


def test_relabel_reads_what_report_writes(tmp_path) -> None:
    path = tmp_path / "likely_wrong_labels.csv"
    path.write_text(likely_wrong(tmp_path))
    assert labels_of(str(path)) == {f"{name}/1.jpg": name for name in NAMES}


@pytest.mark.parametrize("number", ["-1.5", "+3", "0"])
def test_numbers_are_no_formulas(number) -> None:
    assert csv_cell(number) == number
