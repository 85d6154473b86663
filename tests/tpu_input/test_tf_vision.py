"""TF-Vision's own decoder and parser for image classification, of tf-models-official, read our shards."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf

from support.app_fixtures import records_of
from tpu_input import InputConfig, load


@pytest.fixture
def reference(monkeypatch):
    """The module with both, without what its packages' __init__ import, which is forty other packages."""
    package = importlib.util.find_spec("official")
    assert package, "python -m pip install --no-deps --requirement constraints/references.txt, as make test does"
    assert package.submodule_search_locations
    root = Path(package.submodule_search_locations[0]).parent
    for name in ("official", "official.vision", "official.vision.dataloaders", "official.vision.ops"):
        bare = ModuleType(name)
        bare.__path__ = [str(root.joinpath(*name.split(".")))]
        monkeypatch.setitem(sys.modules, name, bare)
    types_alone = ModuleType("official.vision.configs.common")  # the types of two arguments that are left out
    types_alone.__dict__.update(Augmentation=object, RandomErasing=object)
    configs = ModuleType("official.vision.configs")
    configs.__dict__.update(common=types_alone)
    monkeypatch.setitem(sys.modules, "official.vision.configs", configs)
    before = set(sys.modules)
    yield importlib.import_module("official.vision.dataloaders.classification_input")
    for name in set(sys.modules) - before:
        if name.startswith("official"):
            del sys.modules[name]


def test_it_reads_every_image_and_label(digits_dataset, reference):
    decoder = reference.Decoder("image/encoded", "image/class/label")
    parser = reference.Parser([32, 32], 10, center_crop_fraction=1.0, aug_rand_hflip=False)
    paths = [f"{digits_dataset.path}/{shard.name}" for shard in digits_dataset.split("validation").shards]
    parse = parser.parse_fn(is_training=False)
    dataset = tf.data.TFRecordDataset(paths).map(lambda record: parse(decoder.decode(record)))
    images, labels = (np.stack(values) for values in zip(*dataset.as_numpy_iterator(), strict=True))
    assert labels.tolist() == [record.label for record in records_of(digits_dataset, "validation")]
    # It normalises by ImageNet's mean and deviation, and decodes by libjpeg's accurate transform.
    ours = load(digits_dataset, "validation", batch_size=333, eval_crop=1.0, mean=InputConfig.mean, std=InputConfig.std)
    expected = (next(ours.as_numpy_iterator())[0] - np.array(InputConfig.mean)) / np.array(InputConfig.std)
    assert abs(images - expected).mean() < 0.05  # deviations
