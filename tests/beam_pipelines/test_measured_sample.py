"""Which images the mean and deviation of a split come from: a sample that is the same whatever the shards."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from beam_pipelines.conversion.plan import is_measured
from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions
from support.conversion import options
from tpu_input.dataset_format.manifest import Manifest

convert_module = importlib.import_module("beam_pipelines.convert")
COUNT = 2400


def encoded(random: np.random.Generator, number: int) -> bytes:
    """An image of 12 x 8 pixels, in a color of its own with noise: a deviation between images, and one within them."""
    color = random.integers(40, 215, 3) * [1, 0.8, 0.6]
    pixels = (color + random.normal(0, 10, (8, 12, 3))).clip(0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95, comment=f"{number}".encode())
    return buffer.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number in range(COUNT):
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(random, number))
    return folder


def converted(
    monkeypatch: pytest.MonkeyPatch, opts: ConvertOptions, **arguments: Any
) -> tuple[Manifest, dict[str, int], int]:
    """Returns the manifest, the number of images measured of each split, and the number of shards."""
    receipts: dict[str, Any] = {}
    commit = vars(convert_module)["commit"]

    def noted(options, plan, new_receipts):
        receipts.update(new_receipts)
        return commit(options, plan, new_receipts)

    with monkeypatch.context() as patched:
        patched.setattr(convert_module, "commit", noted)
        manifest = convert(opts, **arguments).manifest
    measured = {
        split: sum(receipt.num_measured for receipt in split_receipts) for split, split_receipts in receipts.items()
    }
    return manifest, measured, sum(len(split.shards) for split in manifest.splits.values())


def statistics(manifest: Manifest) -> dict[str, Any]:
    return {name: (split.channel_mean, split.channel_std) for name, split in manifest.splits.items()}


def pixels(images: Path, keys: list[str]) -> npt.NDArray[np.float64]:
    """The pixels of some images, [images, pixels of one, 3]."""
    return np.stack([np.asarray(Image.open(images / key), np.float64).reshape(-1, 3) for key in keys])


def test_neither_the_number_measured_nor_the_statistics_depend_on_the_shards_or_on_who_writes_them(
    images, tmp_path, monkeypatch
):
    splits = (("train", 0.75), ("validation", 0.25))
    few = options(images, tmp_path / "few", splits=splits, shard_bytes=100_000_000)
    many = options(images, tmp_path / "many", splits=splits, shard_bytes=30_000)
    equal = options(images, tmp_path / "equal", splits=splits, num_shards=(("train", 7), ("validation", 3)))
    manifest, measured, num_shards = converted(monkeypatch, few)
    assert num_shards == 2
    assert 900 < measured["train"] < 1100 < manifest.split("train").num_examples
    assert measured["validation"] == manifest.split("validation").num_examples < 1000
    for opts, processes in ((many, 1), (equal, 2)):
        other, other_measured, other_num_shards = converted(monkeypatch, opts, num_processes=processes)
        assert other_num_shards >= 10
        assert other_measured == measured
        assert statistics(other) == statistics(manifest)


def test_the_statistics_of_a_sample_are_those_of_all_images_within_the_error_of_a_sample(images, tmp_path, monkeypatch):
    manifest, measured, _ = converted(monkeypatch, options(images, tmp_path / "out", splits=(("train", 1.0),)))
    every = pixels(images, sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg")))
    split, number = manifest.split("train"), measured["train"]
    assert number < COUNT / 2
    # Of a sample without replacement; its mean lies within 4 standard errors in all but 1 of 16,000 samples.
    error = every.mean(1).std(0) / number**0.5 * (1 - number / COUNT) ** 0.5
    assert np.all(np.abs(split.channel_mean - every.mean((0, 1))) < 4 * error)
    assert np.abs(split.channel_mean - every.mean((0, 1))).max() > 0.01  # or else all images were measured
    assert np.allclose(split.channel_std, every.std((0, 1)), rtol=0.05)


def test_a_large_split_of_which_the_whole_sample_is_rejected_has_the_statistics_of_what_it_stores(
    images, tmp_path, monkeypatch
):
    listed = tmp_path / "in"
    keys = sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg"))
    valid_keys = [key for key in keys if not is_measured(key, 0, COUNT)][::400]
    for key in keys:
        (listed / key).parent.mkdir(parents=True, exist_ok=True)
        (listed / key).write_bytes((images / key).read_bytes() if key in valid_keys else b"no image of any kind")
    opts = options(listed, tmp_path / "out", splits=(("train", 1.0),), shard_bytes=20_000)
    manifest, measured, _ = converted(monkeypatch, opts)
    assert measured == {"train": 0}
    split, stored = manifest.split("train"), pixels(images, valid_keys)
    assert split.num_examples == len(valid_keys) > 2
    assert np.allclose(split.channel_mean, stored.mean((0, 1)), atol=3)
    assert np.allclose(split.channel_std, stored.std((0, 1)), atol=3)
