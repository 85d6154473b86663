"""Contract over the ways to find copies: the one outside train stays, and the count is printed."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.pipelines_commands import run
from tpu_input.dataset_format.manifest import Manifest


def picture(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), np.uint8)
    Image.fromarray(pixels).resize((64, 64), Image.Resampling.BICUBIC).save(file, "JPEG", quality=92)
    return file.getvalue()


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    """Eight images of test and two of validation that are in train, too, one of all three, and four of train alone."""
    for number in range(14):
        label = ("cat", "dog")[number % 2]
        in_split = {"train": True, "test": number < 8, "validation": number in (0, 8, 9)}
        for split in filter(in_split.get, in_split):
            path = tmp_path / "in" / split / label / f"{split}{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(number))
    return tmp_path


@pytest.mark.parametrize("way", ["exact", "near", "merge", "pairs"])
def test_the_copy_outside_train_stays(capsys, splits: Path, way: str) -> None:
    if way == "merge":
        for split in ("train", "test", "validation"):
            paths = f"--input={split}={splits}/in/{split}", f"--output={splits}/{split}"
            assert run(capsys, "convert", *paths)[0] == 0
        datasets = [splits / split for split in ("train", "test", "validation")]
        code, out, err = run(capsys, "merge", *datasets, f"--output={splits}/out")
    elif way == "pairs":
        assert run(capsys, "convert", f"--input={splits}/in", f"--output={splits}/all")[0] == 0
        assert run(capsys, "report", splits / "all", f"--pairs={splits}/pairs.parquet")[0] == 0
        flags = f"--near_duplicates={splits}/pairs.parquet", f"--output={splits}/out"
        code, out, err = run(capsys, "filter", splits / "all", *flags)
    else:
        code, out, err = run(capsys, "convert", f"--input={splits}/in", f"--dedup={way}", f"--output={splits}/out")
    assert code == 0, err
    manifest = Manifest.from_json((splits / "out/manifest.json").read_bytes(), str(splits / "out"))
    sizes = {name: split.num_examples for name, split in manifest.splits.items()}
    assert sizes == {"train": 4, "test": 8, "validation": 2}
    summary = "left_out 11" if way == "pairs" else "duplicates left out: 10 of train"
    assert summary in out + err


@pytest.mark.parametrize("way", ["exact", "near", "pairs"])
def test_copies_with_different_labels_are_rejected_all(capsys, tmp_path: Path, way: str) -> None:
    for number in range(8):
        for label in ("cat", "dog") if number < 2 else ("cat", "dog")[number % 2 :][:1]:
            path = tmp_path / "in" / label / f"{label}{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(number))
    most = "--max_rejected=50%"
    if way == "pairs":
        assert run(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/all")[0] == 0
        assert run(capsys, "report", tmp_path / "all", f"--pairs={tmp_path}/pairs.parquet")[0] == 0
        command = ["filter", f"{tmp_path}/all", f"--near_duplicates={tmp_path}/pairs.parquet"]
    else:
        command = ["convert", f"--input={tmp_path}/in", f"--dedup={way}"]
    code, _, err = run(capsys, *command, most, f"--output={tmp_path}/out")
    assert code == 0, err
    manifest = Manifest.from_json((tmp_path / "out/manifest.json").read_bytes(), str(tmp_path / "out"))
    assert sum(split.num_examples for split in manifest.splits.values()) == 6
    assert manifest.num_rejected["conflicting_label"] == 4
    refusal = run(capsys, *command, f"--output={tmp_path}/other")
    assert refusal[0] == 2
    assert "conflicting_label 4" in refusal[2]
