"""diff: what was done to a dataset is what is said about it, as text and as JSON."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from support.pipelines_commands import refused, run


@pytest.fixture
def pair(few_digits, capsys, tmp_path) -> tuple[Path, Path]:
    """Two datasets: of some digits, and of the same folder after images were added, removed, moved and changed."""
    flags = ("--shard_size=10KB", "--splits=train=100%")
    assert run(capsys, "convert", f"--input={few_digits}", f"--output={tmp_path}/a", *flags)[0] == 0
    images = {label: sorted((few_digits / label).iterdir()) for label in "012"}
    images["0"][0].unlink()
    shutil.copy(images["1"][0], few_digits / "1" / "new.jpg")
    pixels = Image.open(io.BytesIO(images["2"][0].read_bytes())).transpose(Image.Transpose.ROTATE_180)
    pixels.save(images["2"][0], quality=95)
    (few_digits / "ten").mkdir()
    shutil.copy(images["1"][1], few_digits / "ten" / "10.jpg")
    assert run(capsys, "convert", f"--input={few_digits}", f"--output={tmp_path}/b", *flags)[0] == 0
    return tmp_path / "a", tmp_path / "b"


def test_each_difference_is_found_once(pair, capsys):
    a, b = pair
    code, out, err = run(capsys, "diff", a, b, "--json")
    assert (code, err) == (1, "")
    differences = json.loads(out)
    assert list(differences["added"]) == ["1/new.jpg", "ten/10.jpg"]
    assert differences["added"]["ten/10.jpg"] == {"split": "train", "class": "ten"}
    assert len(differences["removed"]) == 1
    assert next(iter(differences["removed"])).startswith("0/")
    assert [key[:2] for key in differences["other_bytes"]] == ["2/"]
    assert (differences["relabelled"], differences["moved"]) == ({}, {})
    assert (differences["classes_only_of_a"], differences["classes_only_of_b"]) == ([], ["ten"])
    total = json.loads((a / "manifest.json").read_text())["num_inputs"]
    assert differences["num_same"] == total - 2


def test_the_text_has_counts_by_class_and_some_keys(pair, capsys):
    code, out, _ = run(capsys, "diff", *pair)
    assert code == 1
    lines = out.splitlines()
    assert lines[1] == "added: 2 (1 train/1, 1 train/ten), such as '1/new.jpg', 'ten/10.jpg'"
    assert lines[2].startswith("removed: 1 (1 train/0), such as '0/")
    assert lines[3].startswith("other bytes: 1, such as '2/")
    assert lines[4] == f"classes only of '{pair[1]}': ten"


def test_labels_and_splits_are_compared_by_name(capsys, digits_dataset, tmp_path):
    labels = tmp_path / "l.csv"
    labels.write_text("key,label\n3/0003.jpg,4\n")
    assert run(capsys, "relabel", digits_dataset.path, f"--labels={labels}", f"--output={tmp_path}/r")[0] == 0
    _, out, _ = run(capsys, "diff", digits_dataset.path, tmp_path / "r", "--json")
    assert json.loads(out)["relabelled"] == {"3/0003.jpg": {"from": "3", "to": "4"}}
    code, out, _ = run(capsys, "diff", digits_dataset.path, digits_dataset.path)
    assert code == 0
    assert out.startswith("1,797 examples are the same")
    assert out.count("\n") == 1


def test_what_is_no_dataset_is_refused(capsys, digits_dataset, tmp_path):
    assert "contains no manifest.json" in refused(capsys, "diff", digits_dataset.path, tmp_path)
    copy = shutil.copytree(digits_dataset.path, tmp_path / "copy")
    index = sorted((copy / "index").iterdir())[0]
    index.write_bytes(b"PAR1")
    assert f"verify --repair {copy}" in refused(capsys, "diff", digits_dataset.path, copy)
