"""The dataset that tests of tpu_input read, written without Beam, so that they run where it is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.dataset_writer import write_dataset
from support.shared import shared
from tpu_input.dataset_format.records import Manifest


@pytest.fixture(scope="session")
def digits_dataset(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The digits in 9 train and 2 validation shards; not to be changed."""

    def make(folder: Path) -> Manifest:
        return write_dataset(digits, folder / "digits", {"train": (1464, 9), "validation": (333, 2)})

    return shared(tmp_path_factory, "written", make)
