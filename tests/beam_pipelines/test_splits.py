"""Splits with their share of each class, cut out of train, and by groups that keys name."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from beam_pipelines.conversion.plan import choose_split
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources.rows import Row
from support.pipelines_commands import refused, run
from support.stored_records import splits_by_key

SIZES = {"0": 37, "1": 5, "2": 1, "3": 10}


@pytest.fixture
def images(digits, tmp_path) -> Path:
    for label, count in SIZES.items():
        (tmp_path / "in" / label).mkdir(parents=True)
        for path in sorted((digits / label).iterdir())[:count]:
            shutil.copy(path, tmp_path / "in" / label)
    return tmp_path / "in"


def converted(capsys: pytest.CaptureFixture[str], output: Path, *args: object) -> dict[str, str]:
    code, _, err = run(capsys, "convert", *args, f"--output={output}")
    assert code == 0, err
    return splits_by_key(output)


@pytest.mark.long
def test_every_split_has_its_share_of_each_class(capsys, images, tmp_path):
    args = (f"--input={images}", "--splits=train=70%,validation=20%,test=10%")
    splits = converted(capsys, tmp_path / "out", *args, "--stratify")
    counts = Counter((key.partition("/")[0], split) for key, split in splits.items())
    for label, size in SIZES.items():
        ends = [round(size * share) for share in (0.7, 0.9)] + [size]
        expected = [ends[0], ends[1] - ends[0], ends[2] - ends[1]]
        assert [counts[label, split] for split in ("train", "validation", "test")] == expected
    hash_splits = converted(capsys, tmp_path / "plain", *args)
    assert sum(splits[key] == hash_splits[key] for key in splits) > 0.7 * len(splits)  # the order of the same hashes
    assert run(capsys, "verify", tmp_path / "out")[0] == 0
    shard = next((tmp_path / "out").glob("train-*.tfrecord"))
    content = shard.read_bytes()
    shard.write_bytes(b"")
    (tmp_path / "out" / "index" / shard.with_suffix(".parquet").name).unlink()
    assert run(capsys, "repair", tmp_path / "out")[0] == 0
    assert shard.read_bytes() == content
    again = ("split", tmp_path / "plain", "--splits=train=50%,validation=50%", "--stratify")
    assert run(capsys, *again, f"--output={tmp_path}/again")[0] == 0
    counts = Counter((key.partition("/")[0], split) for key, split in splits_by_key(tmp_path / "again").items())
    assert [counts[label, "train"] for label in SIZES] == [18, 2, 0, 5]


@pytest.mark.long
def test_a_validation_split_is_cut_out_of_train(capsys, images, tmp_path):
    for split, labels in (("train", "03"), ("test", "03")):
        for label in labels:
            shutil.copytree(images / label, tmp_path / "two" / split / label)
    args = (f"--input={tmp_path}/two", "--validation=20%")
    splits = converted(capsys, tmp_path / "out", *args)
    options = ConvertOptions((Source("x"),), "y", splits=(("train", 0.8), ("validation", 0.2)))
    for key, split in splits.items():
        is_test = key.startswith("test/")
        assert split == ("test" if is_test else choose_split(Row(key), options))
    assert set(splits.values()) == {"train", "validation", "test"}
    exact = converted(capsys, tmp_path / "exact", *args, "--stratify")
    assert Counter((key.split("/")[1], split) for key, split in exact.items()) == {
        ("0", "train"): 30,
        ("0", "validation"): 7,
        ("0", "test"): 37,
        ("3", "train"): 8,
        ("3", "validation"): 2,
        ("3", "test"): 10,
    }
    (tmp_path / "two/test").rename(tmp_path / "two/val")
    message = refused(capsys, "convert", *args, f"--output={tmp_path}/b")
    assert "the inputs name the splits 'train', 'validation'; it needs 'train' without 'validation'" in message
    message = refused(capsys, "convert", f"--input={images}", "--validation=20%", f"--output={tmp_path}/b")
    assert "the inputs name no splits; divide them with --splits" in message
    message = refused(capsys, "convert", f"--input={tmp_path}/two", "--stratify", f"--output={tmp_path}/b")
    assert "every input already specifies its split, so --stratify would have no effect" in message


@pytest.mark.long
def test_keys_name_groups(capsys, images, tmp_path):
    for number, path in enumerate(sorted(images.rglob("*.jpg"))):
        path.rename(path.with_name(f"patient{number % 9}_{number}.jpg"))
    (images / "0" / "patient8_8.jpg").rename(images / "0" / "nobody.jpg")
    args = (f"--input={images}", "--splits=train=50%,validation=50%")
    assignments = converted(capsys, tmp_path / "out", *args, r"--group_by=/(patient\d)_")
    by_patient: dict[str, set[str]] = {}
    for key, split in assignments.items():
        by_patient.setdefault(key.partition("/")[2].partition("_")[0], set()).add(split)
    assert all(len(splits) == 1 for splits in by_patient.values())
    assert len(by_patient) == 10
    assert set(assignments.values()) == {"train", "validation"}
    other_assignments = converted(capsys, tmp_path / "apart", *args)
    assert other_assignments["0/nobody.jpg"] == assignments["0/nobody.jpg"]
    assert other_assignments != assignments
    command = ("split", tmp_path / "apart", "--splits=train=50%,validation=50%", r"--group_by=patient\d")
    assert run(capsys, *command, f"--output={tmp_path}/again")[0] == 0
    again: dict[str, set[str]] = {}
    for key, name in splits_by_key(tmp_path / "again").items():
        again.setdefault(key.partition("/")[2].partition("_")[0], set()).add(name)
    assert all(len(splits) == 1 for splits in again.values())
    message = refused(capsys, "convert", *args, "--group_by=x", "--stratify", f"--output={tmp_path}/b")
    assert "images of a group stay together: leave out stratify or group_by" in message
    assert "is not a regular expression" in refused(capsys, "convert", *args, "--group_by=(", f"--output={tmp_path}/b")
    message = refused(capsys, "convert", *args, "--group_by=(a)(b)", f"--output={tmp_path}/b")
    assert "must have at most one group in parentheses, it has 2" in message


def test_images_that_group_by_does_not_find_are_told(capsys, images, tmp_path):
    args = ("convert", f"--input={images}", "--splits=train=50%,validation=50%")
    message = refused(capsys, *args, r"--group_by=patient\d", f"--output={tmp_path}/none")
    assert r"--group_by=patient\d is in the key of no image of" in message
    code, _, err = run(capsys, *args, "--group_by=^[01]/", f"--output={tmp_path}/some")
    assert code == 0
    assert f"11 of {sum(SIZES.values())} images are in no group: '^[01]/' is not in their keys" in err
    code, _, err = run(capsys, *args, "--group_by=^./", f"--output={tmp_path}/all")
    assert (code, "in no group" in err) == (0, False)


def test_a_pipeline_stratifies_and_groups(images, tmp_path):
    import apache_beam as beam

    from beam_pipelines import ListInputs, WriteDataset

    with beam.Pipeline() as pipeline:
        pipeline | ListInputs(Source(str(images))) | WriteDataset(f"{tmp_path}/out", stratify=True)
    counts = Counter((key.partition("/")[0], split) for key, split in splits_by_key(tmp_path / "out").items())
    assert {label: counts[label, "train"] for label in SIZES} == {"0": 33, "1": 4, "2": 1, "3": 9}


@pytest.mark.parametrize("source", ["folder", "tar"])
def test_a_group_in_the_folders_of_two_splits_is_rejected(capsys, images, tmp_path, source):
    for split, label, names in (("train", "0", "pq"), ("test", "0", "rs"), ("train", "3", "pr"), ("test", "3", "t")):
        for name, path in zip(names * 3, sorted((images / label).iterdir()), strict=False):
            (tmp_path / "two" / split / label).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / "two" / split / label / f"patient_{name}_{split}_{path.name}")
    path = tmp_path / "two"
    if source == "tar":
        path = Path(shutil.make_archive(f"{tmp_path}/in", "tar", path))
    splits = converted(capsys, tmp_path / "out", f"--input={path}", "--group_by=patient_.", "--max_rejected=100%")
    assert {Path(key).name[8] for key in splits} == {"p", "q", "s", "t"}
    lines = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert {(Path(line["key"]).name[8], line["reason"]) for line in lines} == {("r", "conflicting_split")}
