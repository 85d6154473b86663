"""What several tests start from: real digits as JPEGs, and the dataset made of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_pipelines.options import ConvertOptions, ImageOptions, Source
from beam_pipelines.sample_digits import write_sample
from estimator_app.runtime.tensorflow_startup import set_up_processor
from support.azure import az, az_server  # noqa: F401
from support.cloud import cloud, cloud_server, proxy  # noqa: F401
from support.gs import gs, gs_session  # noqa: F401
from support.hub import hub  # noqa: F401
from support.s3 import s3, s3_server  # noqa: F401
from support.shared import shared
from support.web import web  # noqa: F401
from tpu_input import command_line
from tpu_input.dataset_format.records import Manifest

command_line.SECONDS_PER_LINE = 1e6  # a slow machine prints no lines of progress into what tests compare
# Keras has one backend in a process, which decides on the default trainer, too: support/trainers.py.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
set_up_processor()  # whichever test of a process imports TensorFlow first, it computes as the commands do


@pytest.fixture(scope="session", autouse=True)
def unflushed() -> Iterator[None]:
    """Nothing waits for the disk, as a conversion of ten images does twenty times: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # fails for what is no open file, too
        yield


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All 1,797 digits in class folders; not to be changed."""

    def make(folder: Path) -> Path:
        write_sample(str(folder))
        return folder

    return shared(tmp_path_factory, "digits", make)


@pytest.fixture(scope="session")
def digits_dataset(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The digits in 9 train and 2 validation shards; not to be changed."""

    def make(folder: Path) -> Manifest:
        from beam_pipelines.convert import convert

        splits = (("train", 0.8), ("validation", 0.2))
        options = ConvertOptions((Source(str(digits)),), f"{folder}/digits", splits=splits, shard_bytes=200_000)
        manifest, *_ = convert(options)
        return manifest

    return shared(tmp_path_factory, "dataset", make)


@pytest.fixture(scope="session")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset made of nasty.py's files; nothing but report.html is to be changed in it."""
    from beam_pipelines.convert import convert
    from support.nasty import write_nasty

    folder = tmp_path_factory.mktemp("nasty")
    write_nasty(folder / "in")
    images = ImageOptions(min_side=10)
    convert(
        ConvertOptions(
            (Source(str(folder / "in")),), str(folder / "out"), shard_bytes=100_000, max_rejected=1.0, images=images
        )
    )
    return folder / "out"


@pytest.fixture
def dataset_copy(digits_dataset: Manifest, tmp_path: Path) -> Path:
    """The digits' dataset, to be damaged at will."""
    return Path(shutil.copytree(digits_dataset.path, tmp_path / "dataset"))


@pytest.fixture
def few_digits(digits: Path, tmp_path: Path) -> Path:
    """Twelve digits of each of three classes in folders, to be changed at will."""
    folder = tmp_path / "few"
    for label in "012":
        (folder / label).mkdir(parents=True)
        for source in sorted((digits / label).iterdir())[:12]:
            shutil.copy(source, folder / label)
    return folder


@pytest.fixture(scope="session")
def finished(digits_dataset: Manifest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of estimator_app, its batches laid out for a TPU, and its export; not to be changed."""

    def make(folder: Path) -> Any:
        from estimator_app.train import run as run_training
        from support.app_fixtures import configured

        options = {"train_steps": 60, "steps_per_eval": 60, "train_batch_size": 64, "learning_rate": 0.1}
        config = configured(digits_dataset, layout="HWCN", **options)
        return run_training(digits_dataset, config, str(folder), f"{folder}/export")

    return shared(tmp_path_factory, "finished", make)
