"""Inputs of one group lie in one split, or in none."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions, Source

IN_HALVES = (("train", 0.5), ("validation", 0.5))


def write_list(path: Path, rows: list[tuple[str, str, str, str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("image", "label", "split", "group"), *rows])
    return path


def images(folder: Path) -> list[tuple[str, str]]:
    paths = sorted(folder.rglob("*.jpg"))
    return [(str(path.relative_to(folder)), path.parent.name) for path in paths]


def splits_by_key(output: Path) -> dict[str, str]:
    """Returns the split of every record, as the indexes that lie on the disk have it."""
    splits: dict[str, str] = {}
    for path in sorted((output / "index").glob("*.parquet")):
        splits |= dict.fromkeys(pq.read_table(path)["key"].to_pylist(), path.name.partition("-")[0])
    return splits


def rejected(output: Path) -> dict[str, str]:
    lines = map(json.loads, (output / "rejected.jsonl").read_text().splitlines())
    return {line["key"]: line["reason"] for line in lines}


def test_a_group_of_which_some_lines_name_a_split_lies_in_that_one(few_digits, tmp_path):
    rows, groups = [], {}
    for number, (image, label) in enumerate(images(few_digits)):
        group = f"patient {number % 9}"
        groups[image] = group
        # Of patients 0 to 5 one image names a split, of the others none does; each hash alone would divide them.
        split = ["train", "validation", "test"][number % 3] if number < 6 else ""
        rows.append((image, label, split, group))
    path = write_list(few_digits / "list.csv", rows)
    manifest, *_ = convert(ConvertOptions((Source(str(path)),), str(tmp_path / "out"), splits=IN_HALVES))
    splits = splits_by_key(tmp_path / "out")
    assert len(splits) == manifest.num_inputs == 36
    splits_by_group = {
        group: {splits[image] for image in groups if groups[image] == group} for group in groups.values()
    }
    assert all(len(group_splits) == 1 for group_splits in splits_by_group.values()), splits_by_group
    for number, name in enumerate(["train", "validation", "test"] * 2):
        assert splits_by_group[f"patient {number}"] == {name}
    assert "test" not in set.union(*(splits_by_group[f"patient {number}"] for number in (6, 7, 8)))


def test_a_group_that_names_two_splits_is_rejected_and_the_rest_stays(few_digits, tmp_path):
    rows = []
    for number, (image, label) in enumerate(images(few_digits)):
        split = {0: "train", 9: "validation"}.get(number, "")
        rows.append((image, label, split, f"patient {number % 9}"))
    path = write_list(few_digits / "list.csv", rows)
    options = ConvertOptions((Source(str(path)),), str(tmp_path / "out"), splits=IN_HALVES, max_rejected=0.2)
    manifest, *_ = convert(options)
    assert manifest.num_rejected == {"conflicting_split": 4}
    assert set(rejected(tmp_path / "out")) == {row[0] for row in rows if row[3] == "patient 0"}
    assert len(splits_by_key(tmp_path / "out")) == 32


def test_a_group_in_two_inputs_of_different_splits_is_rejected(few_digits, tmp_path):
    rows = [(image, label, "", f"patient {number % 12}") for number, (image, label) in enumerate(images(few_digits))]
    train, validation = rows[:30], [*rows[31:], (*rows[30][:3], "patient 99")]
    sources = (
        Source(str(write_list(few_digits / "train.csv", train)), "train"),
        Source(str(write_list(few_digits / "validation.csv", validation)), "validation"),
    )
    with pytest.raises(ValueError, match=r"more than --max_rejected=1%: conflicting_split 15 "):
        convert(ConvertOptions(sources, str(tmp_path / "out")))
    convert(ConvertOptions(sources, str(tmp_path / "out"), max_rejected=0.6))
    assert Counter(rejected(tmp_path / "out").values()) == {"conflicting_split": 15}
    assert Counter(splits_by_key(tmp_path / "out").values()) == {"train": 20, "validation": 1}
