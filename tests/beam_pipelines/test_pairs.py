"""Pairs of images that look alike: written as Parquet, left out by filter, kept in one split by split."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from support.pipelines_commands import refused, run
from support.stored_records import splits_by_key


def picture(seed: int) -> Image.Image:
    """A smooth picture that differs from those of all other seeds."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(small).resize((96, 96), Image.Resampling.BICUBIC)


@pytest.fixture
def dataset(capsys, tmp_path) -> Path:
    """40 pictures, of which 8 occur again in another quality, one twice more, and one with the same bytes."""
    lines = ["image,label,split"]

    def add(name: str, image: Image.Image, quality: int, split: str) -> None:
        image.save(tmp_path / name, quality=quality)
        lines.append(f"{name},{('a', 'b')[len(lines) % 2]},{split}")

    for number in range(40):
        add(f"{number}.jpg", picture(number), 95, "train")
    for number in range(8):
        add(f"again{number}.jpg", picture(number), 70, "test")
    add("third0.jpg", picture(0), 60, "train")
    (tmp_path / "same9.jpg").write_bytes((tmp_path / "9.jpg").read_bytes())
    lines.append("same9.jpg,a,test")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    args = ("convert", f"--input={tmp_path}/list.csv", f"--output={tmp_path}/dataset")
    assert run(capsys, *args)[0] == 0
    return tmp_path / "dataset"


def test_pairs_are_found_written_and_left_out(capsys, dataset, tmp_path):
    code, out, _ = run(capsys, "report", dataset, f"--pairs={tmp_path}/pairs.parquet")
    rows = pq.read_table(tmp_path / "pairs.parquet").to_pylist()
    assert (code, out) == (0, f"{tmp_path}/pairs.parquet: {len(rows):,} pairs of images that look alike\n")
    pairs = {frozenset((row["key_a"], row["key_b"])) for row in rows}
    needed = {frozenset((f"{number}.jpg", f"again{number}.jpg")) for number in range(1, 8)}
    needed.add(frozenset(("9.jpg", "same9.jpg")))
    assert needed <= pairs
    group = {"0.jpg", "again0.jpg", "third0.jpg"}
    assert all(pair in needed or pair <= group for pair in pairs)
    assert set().union(*(pair for pair in pairs if pair <= group)) == group
    by_key = {row["key_a"]: row for row in rows} | {row["key_b"]: row for row in rows}
    assert by_key["9.jpg"]["identical"]
    assert {by_key[key]["kept"] for key in group} == {"again0.jpg"}  # of the smallest split
    assert not (dataset / "report.html").exists()
    args = ("filter", dataset, f"--near_duplicates={tmp_path}/pairs.parquet", f"--output={tmp_path}/out")
    assert run(capsys, *args, "--max_rejected=0%")[0] == 0
    removed_keys = {f"{number}.jpg" for number in range(8)} | {"9.jpg", "third0.jpg"}
    before = splits_by_key(dataset)
    assert splits_by_key(tmp_path / "out") == {key: split for key, split in before.items() if key not in removed_keys}
    lines = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert {line["key"] for line in lines} == removed_keys
    assert (
        next(line for line in lines if line["key"] == "9.jpg")["detail"] == "it looks like 'same9.jpg', which is kept"
    )
    assert run(capsys, "verify", tmp_path / "out")[0] == 0


@pytest.mark.long
def test_a_group_lies_in_one_split(capsys, dataset, tmp_path):
    assert run(capsys, "report", dataset, f"--pairs={tmp_path}/pairs.parquet")[0] == 0
    rows = pq.read_table(tmp_path / "pairs.parquet").to_pylist()
    for seed in range(3):
        args = ("split", dataset, "--splits=train=50%,test=50%", f"--seed={seed}", f"--output={tmp_path}/{seed}")
        assert run(capsys, *args, f"--near_duplicates={tmp_path}/pairs.parquet")[0] == 0
        splits = splits_by_key(tmp_path / f"{seed}")
        assert splits.keys() == splits_by_key(dataset).keys()
        assert all(splits[row["key_a"]] == splits[row["key_b"]] for row in rows)
        assert set(splits.values()) == {"train", "test"}


def test_files_that_are_no_pairs_are_refused(capsys, dataset, tmp_path):
    args = ("filter", dataset, f"--near_duplicates={tmp_path}/x.parquet", f"--output={tmp_path}/out")
    assert "does not exist" in refused(capsys, *args)
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    assert "is not a Parquet file of pairs" in refused(capsys, *args)
    pq.write_table(pa.table({"key_a": ["1.jpg"], "key_b": ["2.jpg"]}), tmp_path / "x.parquet")
    assert "is not a Parquet file of pairs" in refused(capsys, *args)
    pq.write_table(pa.table({"key_a": ["1.jpg"], "key_b": ["nobody"], "kept": ["1.jpg"]}), tmp_path / "x.parquet")
    assert "has 1 keys that" in refused(capsys, *args)
    pq.write_table(pa.table({"key_a": ["1.jpg"], "key_b": [None], "kept": ["1.jpg"]}), tmp_path / "x.parquet")
    assert "write it again with: report --pairs=FILE" in refused(capsys, *args)
    keys = pa.array(["x" * (8 << 20)] * 40).dictionary_encode()  # 8 MB in the file, 320 MB as text
    table = pa.table({"key_a": keys, "key_b": keys, "kept": keys})
    pq.write_table(table, tmp_path / "x.parquet", store_schema=False, dictionary_pagesize_limit=1 << 30)
    message = refused(capsys, *args)
    assert "is not a Parquet file of pairs: a column has" in message
    assert "rows can have at most" in message


@pytest.mark.long
def test_images_that_were_not_decoded_cannot_be_compared(capsys, digits, tmp_path):
    args = ("convert", f"--input={digits}", "--check=header", f"--output={tmp_path}/out")
    assert run(capsys, *args)[0] == 0
    message = refused(capsys, "report", tmp_path / "out", f"--pairs={tmp_path}/y.parquet")
    assert "were not decoded when it was made, so that those that look alike cannot be found" in message


def look_alike_groups() -> list[set[str]]:
    return [{"0.jpg", "again0.jpg", "third0.jpg"}, *({f"{n}.jpg", f"again{n}.jpg"} for n in range(1, 8)), SAME]


SAME = {"9.jpg", "same9.jpg"}


@pytest.mark.parametrize(
    "input_name",
    [pytest.param("folders", marks=pytest.mark.long), "list.csv", pytest.param("tar", marks=pytest.mark.long)],
)
def test_convert_keeps_one_of_those_that_look_alike(capsys, dataset, tmp_path, input_name):
    by_class = {"0.jpg": "a"} | {
        path.name: "a" if number % 2 else "b" for number, path in enumerate(sorted(tmp_path.glob("*.jpg")))
    }
    groups_by_key = {key: group for group in look_alike_groups() for key in group}
    by_class |= {key: by_class[min(group)] for key, group in groups_by_key.items()}
    lines = ["image,label", *(f"{name},{label}" for name, label in by_class.items())]
    if input_name == "list.csv":
        (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    else:
        for name, label in by_class.items():
            (tmp_path / "folders" / label).mkdir(parents=True, exist_ok=True)
            (tmp_path / name).rename(tmp_path / "folders" / label / name)
    if input_name == "tar":
        with tarfile.open(tmp_path / "tar", "w") as archive:
            archive.add(tmp_path / "folders", ".")
        (tmp_path / "tar").rename(tmp_path / "in.tar")
        input_name = "in.tar"
    args = ("convert", f"--input={tmp_path}/{input_name}", "--max_rejected=0%")
    code, _, err = run(capsys, *args, "--dedup=near", f"--output={tmp_path}/near")
    assert code == 0, err
    names = {Path(key).name for key in splits_by_key(tmp_path / "near")}
    assert all(len(names & group) == 1 for group in look_alike_groups())
    assert names | set(groups_by_key) == set(by_class)
    rejected = [json.loads(line) for line in (tmp_path / "near/rejected.jsonl").read_text().splitlines()]
    assert {line["reason"] for line in rejected} == {"duplicate"}
    assert all(line["detail"].startswith("it looks like '") for line in rejected)
    shards = {path.name: path.read_bytes() for path in (tmp_path / "near").glob("*.tfrecord")}
    assert run(capsys, *args, "--dedup=near", f"--output={tmp_path}/again")[0] == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").glob("*.tfrecord")} == shards


def test_convert_keeps_those_that_look_alike_in_one_split(capsys, dataset, tmp_path):
    for number, path in enumerate(sorted(tmp_path.glob("*.jpg"))):
        (tmp_path / "in" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        path.rename(tmp_path / "in" / "ab"[number % 2] / path.name)
    args = ("--group_by=near_duplicates", "--splits=train=50%,test=50%")
    assert run(capsys, "convert", f"--input={tmp_path}/in", *args, f"--output={tmp_path}/out")[0] == 0
    splits = {Path(key).name: split for key, split in splits_by_key(tmp_path / "out").items()}
    assert all(len({splits[key] for key in group}) == 1 for group in look_alike_groups())
    assert len({splits[min(group)] for group in look_alike_groups()}) == 2
    assert len(splits) == 50
    assert run(capsys, "split", tmp_path / "out", *args, f"--output={tmp_path}/split", "--seed=3")[0] == 0
    splits = {Path(key).name: split for key, split in splits_by_key(tmp_path / "split").items()}
    assert all(len({splits[key] for key in group}) == 1 for group in look_alike_groups())
    message = refused(capsys, "convert", f"--input={tmp_path}/in", *args, f"--output={tmp_path}/out", "--extend")
    assert "so they cannot be kept in the same split; convert all images again" in message


def test_look_alikes_under_two_labels_or_in_two_splits_are_rejected(capsys, dataset, tmp_path):
    for number, path in enumerate(sorted(tmp_path.glob("*.jpg"))):
        split = "test" if path.name.startswith("again") else "train"
        folder = tmp_path / "in" / split / ("b" if path.name == "same9.jpg" else "a" if number % 2 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / path.name)
    (tmp_path / "in/train/b/9.jpg").exists() and (tmp_path / "in/train/b/9.jpg").rename(tmp_path / "in/train/a/9.jpg")
    args = ("convert", f"--input={tmp_path}/in", "--max_rejected=100%", f"--output={tmp_path}/out")
    assert run(capsys, *args, "--group_by=near_duplicates", "--dedup=near")[0] == 0
    rejected = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    reasons = {Path(line["key"]).name: line["reason"] for line in rejected}
    assert {key for key, reason in reasons.items() if reason == "conflicting_split"} == set().union(
        *(group for group in look_alike_groups() if group != SAME)
    )
    assert {key for key, reason in reasons.items() if reason == "conflicting_label"} == SAME
