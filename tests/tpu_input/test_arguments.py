"""Arguments of a wrong kind are refused at the call, by name; a path is taken where a manifest is wanted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpu_input import (
    InputConfig,
    RecordSource,
    eval_steps,
    make_eval_input_fn,
    make_predict_input_fn,
    make_train_input_fn,
    read_manifest,
)

CONFIG = InputConfig(16)
FACTORIES = pytest.mark.parametrize("make", [make_train_input_fn, make_eval_input_fn])


@FACTORIES
@pytest.mark.parametrize(
    ("params", "message"),
    [
        (32, 'params must be a mapping with "batch_size", e.g. {"batch_size": 128}, got 32'),
        ({}, 'params must be a mapping with "batch_size", e.g. {"batch_size": 128}, got {}'),
        (None, 'params must be a mapping with "batch_size", e.g. {"batch_size": 128}, got None'),
        ({"batch_size": "32"}, "batch_size must be an integer, got '32'"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_params_of_an_input_fn(digits_dataset, make, params, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(digits_dataset, CONFIG)(params)


@FACTORIES
@pytest.mark.parametrize("config", [224, {"image_size": 224}, None])
def test_a_config_that_is_none(digits_dataset, make, config):
    with pytest.raises(ValueError, match=r"^config must be an InputConfig, e.g. InputConfig\(image_size=224\), got "):
        make(digits_dataset, config)


@FACTORIES
def test_a_dataset_that_is_none(make):
    with pytest.raises(ValueError, match=r"^a dataset is a Manifest from read_manifest\(\), or a path or URI, got 3"):
        make(3, CONFIG)


def test_a_path_is_taken_where_a_manifest_is_wanted(digits_dataset):
    expected, expected_labels = next(iter(make_eval_input_fn(digits_dataset, CONFIG)({"batch_size": 4})))
    for path in (digits_dataset.path, Path(digits_dataset.path)):
        features, labels = next(iter(make_eval_input_fn(path, CONFIG)({"batch_size": 4})))
        assert (features["image"] == expected["image"]).numpy().all()
        assert (labels == expected_labels).numpy().all()
        assert next(iter(make_train_input_fn(path, CONFIG)({"batch_size": 4})))[0]["image"].shape == (4, 16, 16, 3)
    path = digits_dataset.path
    assert eval_steps(path, "validation", 10) == eval_steps(digits_dataset, "validation", 10)
    assert RecordSource(path, "validation")[0] == RecordSource(digits_dataset, "validation")[0]


def test_one_path_for_several_files():
    with pytest.raises(ValueError, match=r"^files must be a sequence of paths, got the text 'photo.jpg'"):
        make_predict_input_fn("photo.jpg", CONFIG)


def test_a_manifest_is_shown_in_one_short_line(digits_dataset):
    manifest = read_manifest(digits_dataset.path)
    counts = {name: f"{split.num_examples:,}" for name, split in manifest.splits.items()}
    summary = ", ".join(f"{name}: {count}" for name, count in counts.items())
    assert repr(manifest) == f"Manifest({manifest.path!r}, 10 classes, examples: {{{summary}}})"
