"""Pairs of images that look alike: written as Parquet, left out by filter, kept in one split by split."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from support.pipelines_commands import refused, run
from tpu_input.dataset_format.records import decode, read_frames


def splits_by_key(path: Path) -> dict[str, str]:
    found = {}
    for shard in path.glob("*.tfrecord"):
        with open(shard, "rb") as file:
            for _, payload in read_frames(file):
                found[decode(payload).key] = shard.name.partition("-")[0]
    return found


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
    gone = {f"{number}.jpg" for number in range(8)} | {"9.jpg", "third0.jpg"}
    before = splits_by_key(dataset)
    assert splits_by_key(tmp_path / "out") == {key: split for key, split in before.items() if key not in gone}
    lines = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert {line["key"] for line in lines} == gone
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
        found = splits_by_key(tmp_path / f"{seed}")
        assert found.keys() == splits_by_key(dataset).keys()
        assert all(found[row["key_a"]] == found[row["key_b"]] for row in rows)
        assert set(found.values()) == {"train", "test"}


def test_files_that_are_no_pairs_are_refused(capsys, dataset, tmp_path):
    args = ("filter", dataset, f"--near_duplicates={tmp_path}/x.parquet", f"--output={tmp_path}/out")
    assert "does not exist" in refused(capsys, *args)
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    assert "is no Parquet file of pairs" in refused(capsys, *args)
    pq.write_table(pa.table({"key_a": ["1.jpg"], "key_b": ["2.jpg"]}), tmp_path / "x.parquet")
    assert "is no Parquet file of pairs" in refused(capsys, *args)
    pq.write_table(pa.table({"key_a": ["1.jpg"], "key_b": ["nobody"], "kept": ["1.jpg"]}), tmp_path / "x.parquet")
    assert "has 1 keys that" in refused(capsys, *args)
    pq.write_table(pa.table({"key_a": ["1.jpg"], "key_b": [None], "kept": ["1.jpg"]}), tmp_path / "x.parquet")
    assert "write it again with: report --pairs=FILE" in refused(capsys, *args)


@pytest.mark.long
def test_images_that_were_not_decoded_cannot_be_compared(capsys, digits, tmp_path):
    args = ("convert", f"--input={digits}", "--check=header", f"--output={tmp_path}/out")
    assert run(capsys, *args)[0] == 0
    said = refused(capsys, "report", tmp_path / "out", f"--pairs={tmp_path}/y.parquet")
    assert "were not decoded when it was made, so that those that look alike cannot be found" in said
