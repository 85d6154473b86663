"""What cannot be read, decoded or labelled is named by shard and record; skipping has a budget and an end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from support.corrupting import SHARD, changed, rewrite
from tpu_input import (
    InputConfig,
    find_undecodable,
    make_eval_input_fn,
    make_train_input_fn,
    manifest_from_shards,
    read_manifest,
)
from tpu_input.dataset_format import records as record_format

CONFIG = InputConfig(image_size=8)


def truncate(folder: Path) -> None:
    data = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(data[:-20])


def epoch(folder: Path, make, config=CONFIG) -> tuple[float, list[int]]:
    """Returns (sum of weights, sorted labels of weight 1) of one pass over the training split."""
    manifest = read_manifest(folder)
    dataset = make(manifest, config, split="train")({"batch_size": 24})
    batches = list(dataset.take(manifest.split("train").num_examples // 24).as_numpy_iterator())
    weights = np.concatenate([features["weight"] for features, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    return weights.sum(), sorted(labels[weights == 1])


DAMAGES = [
    (changed(label=10), "has label 10 on disk; labels of 10 classes must be from 0 to 9"),
    (changed(label=2**32 + 1), "has label 4294967297 on disk; labels of 10 classes must be from 0 to 9"),
    (changed(label=-1), "has label -1 on disk; labels of 10 classes must be from 0 to 9"),
    (changed(encoded=b""), "has no jpeg image that can be decoded in feature image/encoded"),
    (changed(encoded=b"\xff\xd8\xffnothing\xff"), "has no jpeg image that can be decoded"),
    (changed(encoded=b"GIF89a"), "has no jpeg image that can be decoded"),
    (lambda payload: b"", "cannot be read; repair the shard with: "),
]


@pytest.mark.parametrize("make", [make_train_input_fn, make_eval_input_fn])
@pytest.mark.parametrize(("change", "message"), DAMAGES)
def test_an_error_names_shard_and_record(dataset_copy, make, change, message):
    rewrite(dataset_copy, change)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"record 5 of {dataset_copy}/{SHARD} {message}"):
        epoch(dataset_copy, make)


def test_an_error_of_an_augmentation_is_not_one_of_the_record(digits_dataset):
    def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), ["of the function"])]):
            return tf.identity(image)

    config = InputConfig(image_size=8, augment=augment, on_corrupt="skip", max_corrupt=10**6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="of the function"):
        epoch(Path(digits_dataset.path), make_train_input_fn, config)


@pytest.mark.parametrize("on_corrupt", ["error", "skip"])
def test_an_augmentation_sees_no_image_that_could_not_be_decoded(dataset_copy, on_corrupt):
    def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_any(image > 0), ["a black image"])]):
            return tf.identity(image)

    rewrite(dataset_copy, changed(encoded=b"GIF89a"))
    config = InputConfig(image_size=8, augment=augment, on_corrupt=on_corrupt, max_corrupt=1)
    if on_corrupt == "error":
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"record 5 of {dataset_copy}/{SHARD} has no jpeg"):
            epoch(dataset_copy, make_train_input_fn, config)
    else:
        epoch(dataset_copy, make_train_input_fn, config)


@pytest.mark.parametrize("make", [make_train_input_fn, make_eval_input_fn])
def test_a_truncated_shard_is_named(dataset_copy, make):
    total = rewrite(dataset_copy, bytes)
    truncate(dataset_copy)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"record {total - 1} of .*/{SHARD} cannot be read"):
        epoch(dataset_copy, make)


def damage(folder: Path, record: int, position: int) -> None:
    """Flips a byte of a record's frame: 8 bytes of length, 4 of checksum, the payload, 4 of its checksum."""
    data, offset = bytearray((folder / SHARD).read_bytes()), 0
    for _ in range(record):
        offset += 8 + 4 + int.from_bytes(data[offset : offset + 8], "little") + 4
    data[offset + position] ^= 0xFF
    (folder / SHARD).write_bytes(data)


@pytest.mark.parametrize("make", [make_train_input_fn, make_eval_input_fn])
@pytest.mark.parametrize("position", [0, 9, 12 + 50], ids=["length", "checksum", "payload"])
def test_a_damaged_record_of_a_shard_is_named_and_what_mends_it(dataset_copy, make, position):
    damage(dataset_copy, 10, position)
    mend = f"repair the shard with: jpeg2tpu verify --repair {dataset_copy}"
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        epoch(dataset_copy, make)
    ((number, shard),) = re.findall(r"record (\d+) of (\S+)", caught.value.message)
    assert shard == f"{dataset_copy}/{SHARD}"
    # Evaluation reads in order; training comes first to any of the records that cannot be read.
    assert number == "10" if make is make_eval_input_fn else int(number) >= 10
    assert mend in caught.value.message


def test_skip_names_a_few_of_the_records_that_damage_has_made_unreadable(dataset_copy, capfd):
    damage(dataset_copy, 10, 100)
    num_unreadable = read_manifest(dataset_copy).split("train").shards[2].num_examples - 10
    total = read_manifest(dataset_copy).split("train").num_examples
    weight, _ = epoch(dataset_copy, make_train_input_fn, InputConfig(8, on_corrupt="skip", max_corrupt=num_unreadable))
    assert weight == total - num_unreadable
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("skipped corrupt records, ")]
    numbers = [int(number) for line in lines for number in re.findall(rf"record (\d+) of {dataset_copy}/{SHARD}", line)]
    assert set(numbers) <= set(range(10, 10 + num_unreadable))
    others = [int(number) for line in lines for number in re.findall(r"; and (\d+) more$", line)]
    assert len(numbers) + sum(others) >= num_unreadable  # the last batch has records of the next epoch too
    assert max(line.count("cannot be read") for line in lines) == 3


def test_a_missing_shard_is_an_error_even_where_corruption_is_skipped(dataset_copy):
    (dataset_copy / SHARD).unlink()
    with pytest.raises(tf.errors.NotFoundError, match=SHARD):
        epoch(dataset_copy, make_eval_input_fn, InputConfig(8, on_corrupt="skip", max_corrupt=10_000))


def test_the_error_reaches_a_graph_s_session(dataset_copy):
    rewrite(dataset_copy, changed(label=77))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = make_eval_input_fn(read_manifest(dataset_copy), CONFIG, split="train")({"batch_size": 732})
        batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"record 5 of .*{SHARD} has label 77"):
            session.run(batch)


@pytest.fixture(scope="module", params=[make_train_input_fn, make_eval_input_fn])
def undamaged(digits_dataset, request):
    """A function that makes input_fns, and the labels that it gives of the whole dataset."""
    return request.param, epoch(digits_dataset.path, request.param)[1]


@pytest.mark.parametrize("change", [changed(label=10), changed(encoded=b"no"), lambda payload: b"no Example"])
def test_skip_leaves_one_place_empty_and_all_others_as_they_were(dataset_copy, undamaged, change):
    make, before = undamaged
    total = read_manifest(dataset_copy).split("train").num_examples
    rewrite(dataset_copy, change)
    skipping = InputConfig(image_size=8, on_corrupt="skip", max_corrupt=1)
    weight, after = epoch(dataset_copy, make, skipping)
    assert (weight, len(after)) == (total - 1, len(before) - 1)


def test_skip_says_what_it_skipped_and_counts(dataset_copy, capfd):
    rewrite(dataset_copy, changed(label=10))
    epoch(dataset_copy, make_train_input_fn, InputConfig(8, on_corrupt="skip"))
    message = f"skipped corrupt records, 1 in this epoch: record 5 of {dataset_copy}/{SHARD} has label 10"
    assert message in capfd.readouterr().err


def test_skip_does_not_change_the_order_of_the_others_nor_the_resume(dataset_copy):
    def batches(count, start_step=0):
        config = InputConfig(8, on_corrupt="skip")
        dataset = make_train_input_fn(read_manifest(dataset_copy), config, start_step=start_step)({"batch_size": 48})
        return [
            (features["weight"].tolist(), labels.tolist())
            for features, labels in dataset.take(count).as_numpy_iterator()
        ]

    rewrite(dataset_copy, changed(encoded=b"no"))
    straight = batches(40)  # an epoch is 30.5
    assert sum(min(weights) == 0 for weights, _ in straight) in (1, 2)
    assert straight[33:] == batches(7, start_step=33)


@pytest.mark.parametrize("make", [make_train_input_fn, make_eval_input_fn])
def test_skip_stops_when_everything_is_corrupt(dataset_copy, make):
    for shard in dataset_copy.glob("train-*"):
        shard.write_bytes(b"no TFRecord")
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than max_corrupt=7 corrupt records in an epoch"):
        epoch(dataset_copy, make, InputConfig(8, on_corrupt="skip", max_corrupt=7))


def test_a_manifest_s_smaller_classes_are_noticed(dataset_copy):
    path = dataset_copy / record_format.MANIFEST_NAME
    fields = json.loads(path.read_text())
    fields["classes"].pop()
    for split in fields["splits"].values():
        split["class_counts"][8] += split["class_counts"].pop()
    path.write_text(json.dumps(fields))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="has label 9 on disk; labels of 9 classes must be from 0 to 8"
    ):
        epoch(dataset_copy, make_train_input_fn)


@pytest.mark.parametrize("make", [make_train_input_fn, make_eval_input_fn])
def test_a_shard_with_more_records_than_promised_is_said(dataset_copy, make):
    shard = read_manifest(dataset_copy).split("train").shards[0]
    path = dataset_copy / shard.name
    path.write_bytes(path.read_bytes() + record_format.frame(b"one more"))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"{shard.name} has more than the {shard.num_bytes} bytes in the manifest"
    ):
        epoch(dataset_copy, make)


@pytest.mark.parametrize("others", [False, True])
def test_what_only_the_decoder_refuses_is_found_afterwards(dataset_copy, others):
    rewrite(dataset_copy, changed(encoded=b"\xff\xd8\xff" + bytes(200) + b"\xff\xd9"))  # begins and ends as a JPEG
    manifest = read_manifest(dataset_copy)
    if others:
        manifest = manifest_from_shards(f"{dataset_copy}/train-*", classes=10)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        epoch(dataset_copy, make_train_input_fn)
    assert find_undecodable(manifest, "train", caught.value.message) == f"record 5 of '{dataset_copy}/{SHARD}'"


def with_values(key: str, kind: str, *values: object):
    """Gives a feature other values, of any kind and number."""

    def change(payload: bytes) -> bytes:
        example = tf.train.Example.FromString(payload)
        example.features.feature[key].Clear()
        getattr(example.features.feature[key], kind).value.extend(values)
        return example.SerializeToString()

    return change


@pytest.mark.parametrize("make", [make_train_input_fn, make_eval_input_fn])
@pytest.mark.parametrize(
    "change",
    [
        lambda payload: b"\x0a\x05hello garbage, size 7",
        with_values("image/class/label", "int64_list", 0, 1),
        with_values("image/class/label", "float_list", 0.5),
        with_values("image/encoded", "bytes_list", b"one", b"two"),
    ],
    ids=["no example", "two labels", "half a label", "two images"],
)
def test_what_only_the_parser_refuses_is_found_afterwards(dataset_copy, make, change):
    rewrite(dataset_copy, change)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        epoch(dataset_copy, make)
    manifest = read_manifest(dataset_copy)
    assert find_undecodable(manifest, "train", caught.value.message) == f"record 5 of '{dataset_copy}/{SHARD}'"


def test_other_errors_are_not_looked_for(dataset_copy):
    rewrite(dataset_copy, changed(encoded=b"no"))
    assert find_undecodable(read_manifest(dataset_copy), "train", "record 5 of … has label 77 on disk") is None
