"""What several tests start from: real digits as JPEGs, and the dataset made of them."""

from __future__ import annotations

import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from beam_pipelines.options import ConvertOptions, ImageOptions, Source
from beam_pipelines.sample_digits import write_sample
from estimator_app.runtime.tensorflow_startup import set_up_processor
from support.cloud import cloud, cloud_server, proxy  # noqa: F401
from support.gs import gs, gs_session  # noqa: F401
from tpu_input.dataset_format.records import Manifest

set_up_processor()  # whichever test of a process imports TensorFlow first, it computes as the commands do


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="run part K of N, in which tests are by a checksum of their names")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that are in other parts than that of --part."""
    if not (part := config.getoption("--part")):
        return
    if not (numbers := re.fullmatch(r"(\d+)/(\d+)", part)) or not 1 <= int(numbers[1]) <= int(numbers[2]):
        raise pytest.UsageError(f"--part must be K/N with K in 1 to N, got {part!r}")
    number, parts = map(int, numbers.groups())
    others = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts != number - 1]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == number - 1]


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All 1,797 digits in class folders; not to be changed."""
    folder = tmp_path_factory.mktemp("digits")
    write_sample(str(folder))
    return folder


@pytest.fixture(scope="session")
def digits_dataset(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The digits in 9 train and 2 validation shards; not to be changed."""
    from beam_pipelines.convert import convert
    from support.conversion import local

    output = tmp_path_factory.mktemp("dataset") / "digits"
    splits = (("train", 0.8), ("validation", 0.2))
    manifest, *_ = convert(
        ConvertOptions((Source(str(digits)),), str(output), splits=splits, shard_bytes=200_000), local()
    )
    return manifest


@pytest.fixture(scope="session")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset made of nasty.py's files; nothing but report.html is to be changed in it."""
    from beam_pipelines.convert import convert
    from support.conversion import local
    from support.nasty import write_nasty

    folder = tmp_path_factory.mktemp("nasty")
    write_nasty(folder / "in")
    images = ImageOptions(min_side=10)
    convert(
        ConvertOptions(
            (Source(str(folder / "in")),), str(folder / "out"), shard_bytes=100_000, max_rejected=1.0, images=images
        ),
        local(),
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
    from estimator_app.train import run as run_training
    from support.app_fixtures import configured

    model_dir = str(tmp_path_factory.mktemp("finished"))
    config = configured(digits_dataset, layout="HWCN", train_steps=60, train_batch_size=64, learning_rate=0.1)
    return run_training(digits_dataset, config, model_dir, f"{model_dir}/export")
