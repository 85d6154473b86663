"""TensorFlow Datasets itself opens our datasets, and reads the images and labels of every split."""

from __future__ import annotations

import dataclasses
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from support.app_fixtures import records_of
from tpu_input import __main__, read_manifest
from tpu_input.dataset_format.manifest import TFDS_NAMES, in_edition
from tpu_input.record_source import write_tfds_metadata


def in_edition_of(dataset, edition):
    """Renames all shards of a dataset, as one that replaced another names them; returns its manifest."""
    manifest = read_manifest(dataset)
    for split in manifest.splits.values():
        for shard in split.shards:
            (dataset / shard.name).rename(dataset / in_edition(shard.name, edition))
    text = re.sub(r"(-of-\d{5})\.tfrecord", rf"\1-{edition}.tfrecord", (dataset / "manifest.json").read_text())
    (dataset / "manifest.json").write_text(text)
    return read_manifest(dataset)


@pytest.mark.parametrize("edition", ["", "0123abcd"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_image_and_label_of_every_split(dataset_copy, capsys, edition):
    tfds = pytest.importorskip("tensorflow_datasets")
    manifest = in_edition_of(dataset_copy, edition) if edition else read_manifest(dataset_copy)
    assert __main__.main(["tfds", str(dataset_copy)]) == 0
    assert f"tfds.builder_from_directory('{dataset_copy}')" in capsys.readouterr().out
    builder = tfds.builder_from_directory(str(dataset_copy))
    assert builder.info.features["image/class/label"].names == list(manifest.classes)
    for split, info in manifest.splits.items():
        assert builder.info.splits[split].num_examples == info.num_examples
        expected = records_of(manifest, split)
        read_config = tfds.ReadConfig(interleave_cycle_length=1)  # in the order of the shards
        examples = list(tfds.as_numpy(builder.as_dataset(split=split, read_config=read_config)))
        assert [example["image/key"].decode() for example in examples] == [record.key for record in expected]
        assert [example["image/class/label"] for example in examples] == [record.label for record in expected]
        for example, record in list(zip(examples, expected, strict=True))[:20]:
            pixels = np.asarray(Image.open(io.BytesIO(record.encoded)).convert("RGB"), float)
            assert abs(example["image/encoded"] - pixels).mean() < 3  # decoders differ by some levels
        image, label = next(iter(tfds.as_numpy(builder.as_dataset(split=split, as_supervised=True))))
        assert image.shape == (32, 32, 3)
        assert label in range(10)


def test_the_files_are_printed_as_json(dataset_copy, capsys):
    assert __main__.main(["tfds", str(dataset_copy), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["folder"] == str(dataset_copy)
    assert sorted(result["files"]) == ["dataset_info.json", "features.json", "image.class.label.labels.txt"]
    assert all((dataset_copy / name).exists() for name in result["files"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_features_and_several_labels_and_labels_from_1(dataset_copy):
    manifest = read_manifest(dataset_copy)
    more = {"features": {"latitude": "float", "box": "float[4]", "count": "int", "note": "string"}}
    several = dataclasses.replace(manifest, options=more | {"label_type": "classes"}, first_label=1)
    write_tfds_metadata(several)
    assert (dataset_copy / "image.class.labels.labels.txt").read_text().splitlines()[:2] == ["(none)", "0"]
    tfds = pytest.importorskip("tensorflow_datasets")
    features = tfds.builder_from_directory(str(dataset_copy)).info.features
    assert features["image/class/labels"].feature.num_classes == 11
    shapes = {name: (features[name].shape, str(features[name].np_dtype)) for name in more["features"]}
    assert shapes["box"] == ((4,), "float32")
    assert shapes["count"] == ((), "int64")
    write_tfds_metadata(dataclasses.replace(manifest, options={"label_type": "none"}))
    assert set(tfds.builder_from_directory(str(dataset_copy)).info.features) == {"image/encoded", "image/key"}


def test_what_tfds_cannot_read_is_refused(digits_dataset):
    train = digits_dataset.splits["train"]
    renamed = dataclasses.replace(train.shards[0], name=in_edition(train.shards[0].name, "0123abcd"))
    extended = {"train": dataclasses.replace(train, shards=(*train.shards[1:], renamed))}
    with pytest.raises(ValueError, match=r"are of several versions of .* with: jpeg2tpu reshard"):
        write_tfds_metadata(dataclasses.replace(digits_dataset, splits=extended))
    with pytest.raises(ValueError, match=r"class 'a\\nb' has a line break"):
        write_tfds_metadata(dataclasses.replace(digits_dataset, classes=("a\nb",)))


def test_the_files_are_known_to_be_of_the_dataset(dataset_copy):
    from beam_pipelines.conversion.output_folder import is_dataset_file, optional_files

    paths = write_tfds_metadata(read_manifest(dataset_copy))
    names = {path.rpartition("/")[2] for path in paths}
    assert names == {"dataset_info.json", "features.json", "image.class.label.labels.txt"} <= set(TFDS_NAMES)
    assert names <= optional_files([])
    assert all(map(is_dataset_file, names))
    json.loads((dataset_copy / "dataset_info.json").read_text())
