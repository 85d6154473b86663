"""docs/input.md, docs/keras.md and docs/moving.md do what they say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.mark.long
def test_every_block_of_the_input_guide_runs(dataset_copy):
    blocks = blocks_of("input.md")
    assert len(blocks) == 16
    names: dict[str, Any] = {"DATASET": str(dataset_copy)}
    for block in blocks:
        exec(block, names)
    names.pop("worker")._stop()  # before the dispatcher, for whose answers it would wait


# Keras 2.15 draws seeds with randint(1, 1e9), and TensorFlow Datasets uses what NumPy deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.long
def test_every_block_of_the_keras_guide_runs(digits_dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("keras.md")
    assert len(blocks) == 8
    names: dict[str, Any] = {"DATASET": digits_dataset.path}
    for block in blocks:
        exec(block, names)
    assert int(names["model"].optimizer.iterations) == 16


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_block_of_the_page_for_those_who_move_runs(digits, dataset_copy, tmp_path, monkeypatch):
    """But for that of WebDataset, which test_webdataset.py runs where it is installed."""
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("moving.md")
    assert len(blocks) == 7
    names: dict[str, Any] = {"DATASET": str(dataset_copy), "IMAGES": str(digits)}
    for block in blocks:
        needed = re.match(r"# needs (\w+)\n", block)
        if not needed or importlib.util.find_spec(needed[1]):
            exec(block, names)
