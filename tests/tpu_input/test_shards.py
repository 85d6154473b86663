"""Others' TFRecords: ImageNet's 1-based shards, raw MNIST, PNGs; counted once."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tpu_input import (
    InputConfig,
    Manifest,
    eval_steps,
    make_eval_input_fn,
    make_train_input_fn,
    manifest_from_shards,
)
from tpu_input.dataset_format import records as record_format
from tpu_input.dataset_format.records import IMAGENET, MNIST, RecordSpec
from tpu_input.storage import foreign_shards, positions

UNCROPPED = InputConfig(image_size=28, crop_area=(1.0, 1.0), crop_aspect=(1.0, 1.0), flip=False, eval_crop=1.0)


def pixels(number: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (28, 28, channels), np.uint8)


def encoded(number: int, kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(number)).save(buffer, kind)
    return buffer.getvalue()


def write(folder: Path, images: list[bytes], spec: RecordSpec, split: str = "train", per_shard: int = 5) -> str:
    """Writes images of label number % 10 as `spec` says; returns the pattern of the shards."""
    for first in range(0, len(images), per_shard):
        with tf.io.TFRecordWriter(str(folder / f"{split}-{first // per_shard:05d}")) as writer:
            for number, image in enumerate(images[first : first + per_shard], first):
                example = tf.train.Example()
                example.features.feature[spec.image_key].bytes_list.value.append(image)
                example.features.feature[spec.label_key].int64_list.value.append(number % 10 + spec.label_offset)
                writer.write(example.SerializeToString())
    return str(folder / f"{split}-*")


def evaluated(manifest: Manifest, count: int) -> tuple[np.ndarray, list[int]]:
    dataset = make_eval_input_fn(manifest, UNCROPPED, split="train")({"batch_size": count})
    features, labels = next(dataset.as_numpy_iterator())
    assert features["weight"].all()
    return features["image"], labels.tolist()


def test_imagenet_s_labels_are_counted_from_one(tmp_path):
    pattern = write(tmp_path, [encoded(n, "JPEG") for n in range(12)], IMAGENET)
    manifest = manifest_from_shards(pattern, record=IMAGENET, classes=10)
    assert [shard.num_examples for shard in manifest.split("train").shards] == [5, 5, 2]
    assert evaluated(manifest, 12)[1] == [n % 10 for n in range(12)]


def test_mnist_s_raw_pixels_become_three_channels(tmp_path):
    pattern = write(tmp_path, [pixels(n, 1).tobytes() for n in range(12)], MNIST)
    images, labels = evaluated(manifest_from_shards(pattern, record=MNIST, classes=10), 12)
    np.testing.assert_array_equal(images, np.stack([np.repeat(pixels(n, 1), 3, -1) for n in range(12)]))
    assert labels == [n % 10 for n in range(12)]


@pytest.mark.parametrize("spec", [RecordSpec(encoding="png"), RecordSpec()])
@pytest.mark.long
def test_pngs_are_decoded_also_among_jpegs(tmp_path, spec):
    files = [encoded(n, "PNG" if spec.encoding == "png" or n % 2 else "JPEG") for n in range(12)]
    manifest = manifest_from_shards(write(tmp_path, files, spec), record=spec, classes=10)
    images, _ = evaluated(manifest, 12)
    np.testing.assert_array_equal(images[1::2], np.stack([pixels(n) for n in range(1, 12, 2)]))
    features, _ = next(make_train_input_fn(manifest, UNCROPPED)({"batch_size": 12}).as_numpy_iterator())
    assert {image.tobytes() for image in images} == {image.tobytes() for image in features["image"]}


def test_raw_pixels_of_another_size_are_an_error_that_names_the_record(tmp_path):
    files = [bytes(784), bytes(783)]
    manifest = manifest_from_shards(write(tmp_path, files, MNIST), record=MNIST, classes=10)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"record 1 of .*train-00000 has no raw image"):
        evaluated(manifest, 2)


def test_splits_are_named_by_pattern_and_evaluation_counts_them(tmp_path):
    patterns = {
        split: write(tmp_path, [encoded(0, "JPEG")] * count, IMAGENET, split)
        for split, count in (("train", 7), ("validation", 11))
    }
    manifest = manifest_from_shards(patterns, record=IMAGENET)
    assert len(manifest.classes) == 1000
    assert eval_steps(manifest, "validation", 4) == 3


def test_lengths_are_kept_and_read_again_for_what_has_changed(tmp_path, monkeypatch):
    pattern = write(tmp_path, [encoded(0, "JPEG")] * 12, IMAGENET)
    first = manifest_from_shards(pattern, record=IMAGENET)
    read, read_lengths = [], positions.read_lengths

    def reading(path, num_bytes):
        read.append(path)
        return read_lengths(path, num_bytes)

    monkeypatch.setattr(foreign_shards, "read_lengths", reading)
    assert manifest_from_shards(pattern, record=IMAGENET) == first
    assert not read
    with (tmp_path / "train-00001").open("ab") as file:
        file.write(record_format.frame(b""))
    changed = manifest_from_shards(pattern, record=IMAGENET).split("train").shards
    assert read == [str(tmp_path / "train-00001")]
    assert [shard.num_examples for shard in changed] == [5, 6, 2]
    assert {name: len(lengths) for name, lengths in positions.cached_lengths(str(tmp_path)).items()} == {
        "train-00000": 5,
        "train-00001": 6,
        "train-00002": 2,
    }


def test_a_star_that_matches_the_lengths_and_a_folder_means_the_shards(tmp_path):
    write(tmp_path, [encoded(0, "JPEG")] * 7, IMAGENET)
    (tmp_path / "aside").mkdir()
    (tmp_path / f"{positions.CACHE_NAME}.interrupted").touch()
    first = manifest_from_shards(f"{tmp_path}/*", record=IMAGENET)
    assert (tmp_path / positions.CACHE_NAME).exists()
    assert manifest_from_shards(f"{tmp_path}/*", record=IMAGENET) == first
    assert manifest_from_shards(f"{tmp_path}/*-*", record=IMAGENET) == first
    assert [shard.name for shard in first.split("train").shards] == ["train-00000", "train-00001"]
    with pytest.raises(ValueError, match=r"no file matches '.*/as\*'"):
        manifest_from_shards(f"{tmp_path}/as*")


@pytest.mark.parametrize("content", [b"not Parquet", b"", b"PAR1"])
def test_damaged_lengths_are_said(tmp_path, content):
    pattern = write(tmp_path, [encoded(0, "JPEG")] * 7, IMAGENET)
    (tmp_path / positions.CACHE_NAME).write_bytes(content)
    with pytest.raises(ValueError, match=r"does not contain valid lengths of records.*; remove it to read them again"):
        manifest_from_shards(pattern, record=IMAGENET)


def test_our_own_index_counts_without_reading_the_shards(dataset_copy, digits_dataset, monkeypatch):
    monkeypatch.setattr(foreign_shards, "read_lengths", None)
    manifest = manifest_from_shards(f"{dataset_copy}/train-*.tfrecord", classes=digits_dataset.classes)
    assert manifest.split("train").num_examples == digits_dataset.split("train").num_examples


def test_a_folder_that_cannot_be_written_is_counted_all_the_same(tmp_path, monkeypatch):
    pattern = write(tmp_path, [encoded(0, "JPEG")] * 3, IMAGENET)

    def refuse(*_, **__):
        raise tf.errors.PermissionDeniedError(None, None, "no")

    monkeypatch.setattr(tf.io.gfile, "rename", refuse)
    assert manifest_from_shards(pattern, record=IMAGENET).split("train").num_examples == 3


def test_what_is_no_such_dataset_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"no file matches '.*nothing-\*'"):
        manifest_from_shards(str(tmp_path / "nothing-*"))
    pattern = write(tmp_path, [encoded(0, "JPEG")] * 7, IMAGENET)
    with pytest.raises(ValueError, match="has no bytes_list feature 'image_raw'; it has image/class/label, image/enc"):
        manifest_from_shards(pattern, record=MNIST)
    size = os.path.getsize(tmp_path / "train-00001")
    os.truncate(tmp_path / "train-00001", size - 1)
    with pytest.raises(ValueError, match=f"train-00001' is truncated in record 1, at byte .* of {size - 1}"):
        manifest_from_shards(pattern, record=IMAGENET)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoding": "gif"}, "encoding must be one of jpeg, png, raw, got 'gif'"),
        ({"encoding": "raw"}, 'raw_shape is only allowed with encoding "raw", got None'),
        ({"raw_shape": (28, 28, 1)}, 'raw_shape is only allowed with encoding "raw"'),
        ({"encoding": "raw", "raw_shape": (28, 28, 4)}, r"raw_shape must be \(height, width, 1 or 3\)"),
    ],
)
def test_a_record_spec_that_cannot_be_says_what_is_needed(fields, message):
    with pytest.raises(ValueError, match=message):
        RecordSpec(**fields)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_shards_are_refused_as_such(tmp_path, compression):
    with tf.io.TFRecordWriter(str(tmp_path / "train-0"), compression) as writer:
        writer.write(b"record")
    with pytest.raises(ValueError, match=rf"train-0' is compressed \({compression}\)"):
        manifest_from_shards(f"{tmp_path}/train-*", record=IMAGENET, classes=10)


def test_a_split_without_examples_is_not_trained_on(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "train-0")):
        pass
    manifest = manifest_from_shards(f"{tmp_path}/train-*")
    with pytest.raises(ValueError, match=r"split 'train' of .* has no examples to train on"):
        make_train_input_fn(manifest, InputConfig(8))
