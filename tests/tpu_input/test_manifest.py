"""The manifest: what comes back from manifest.json, and which numbers and names in one from a stranger are refused."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest

from tpu_input.dataset_format.label_kinds import SEVERAL
from tpu_input.dataset_format.manifest import (
    MAX_INDEX_BYTES,
    MAX_MANIFEST_BYTES,
    Manifest,
    Shard,
    Split,
    merged,
    parse_shard_name,
    shard_name,
    valid_split,
)


def shard(split: str, index: int, num_shards: int, num_examples: int, num_bytes: int) -> dict:
    name = f"{split}-{index:05}-of-{num_shards:05}.tfrecord"
    return {"name": name, "num_examples": num_examples, "num_bytes": num_bytes, "sha256": "0a" * 32}


# A manifest as the conversion writes it, with every number that may be the smallest or largest allowed.
FIELDS: dict[str, Any] = {
    "format_version": 1,
    "classes": ["a", "été"],
    "first_label": 1,
    "splits": {
        "train": {
            "shards": [shard("train", 0, 3, 1, 16), shard("train", 1, 3, 4, 900), shard("train", 2, 3, 2, 32)],
            "class_counts": [7, 0],
            "height": [1, 3.5, 9],
            "width": [10, 11.0, 12],
            "channel_mean": [0, 127.5, 255],
            "channel_std": [0.0, 1.5, 255.0],
        },
        "validation": {
            "shards": [shard("validation", 0, 1, 3, 999)],
            "class_counts": [1, 2],
            "height": [2, 2.0, 2],
            "width": [2, 2.0, 2],
            "channel_mean": [1.0, 2.0, 3.0],
            "channel_std": [1.0, 2.0, 3.0],
        },
    },
    "num_inputs": 13,
    "num_rejected": {"corrupt": 1, "missing": 2},
    "options": {"seed": 3, "shard_bytes": 1, "num_shards": {"train": 1}},
    "fingerprint": "0b" * 32,
    "num_fixed": {"format PNG": 1},
    "num_noted": {"GPS position": 1},
    "sources": [{"path": "/images", "split": "", "label_list": ""}],
}


def changed(path: str, value: object) -> str:
    """Returns the manifest as JSON, in which the field at `path` has another value."""
    fields = copy.deepcopy(FIELDS)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    node: Any = fields
    for part in parents:
        node = node[part]
    node[last] = value
    return json.dumps(fields)


def test_a_manifest_comes_back_as_it_was_written():
    manifest = Manifest.from_json(json.dumps(FIELDS), "somewhere")
    assert manifest.path == "somewhere"
    assert manifest.classes == ("a", "été")
    assert manifest.first_label == 1
    assert manifest.split("train").num_examples == 7
    assert manifest.split("train").num_bytes == 948
    assert manifest.split("train").shards[1] == Shard("train-00001-of-00003.tfrecord", 4, 900, "0a" * 32)
    assert manifest.split("train").width == (10, 11.0, 12)
    assert manifest.split("validation").class_counts == (1, 2)
    text = manifest.to_json()
    assert json.loads(text) == FIELDS
    assert Manifest.from_json(text, "somewhere") == manifest


def test_a_manifest_is_text_for_people_too():
    lines = Manifest.from_json(json.dumps(FIELDS), "somewhere").to_json().split("\n")
    assert lines[:5] == ["{", ' "format_version": 1,', ' "classes": [', '  "a",', '  "été"']
    assert lines[-2:] == ["}", ""]


def test_fields_that_the_first_versions_did_not_write_may_be_missing():
    fields = {name: value for name, value in FIELDS.items() if name not in ("num_fixed", "num_noted", "sources")}
    manifest = Manifest.from_json(json.dumps(fields | {"options": {}}), "somewhere")
    assert (manifest.num_fixed, manifest.num_noted, manifest.sources) == ({}, {}, [])


def test_splits_of_a_dataset_as_one_have_the_statistics_of_all_examples():
    pixels = np.random.default_rng(0).integers(0, 256, [12, 3])  # images of a single pixel
    parts = [pixels[:1], pixels[1:4], pixels[4:]]
    splits = [
        Split(
            shards=(Shard(shard_name(f"part{number}", 0, 1), len(part), 99, "0a" * 32),),
            class_counts=(number, len(part) - number),
            height=(5 - number, 5.0 + number, 9 + number),
            width=(1, 2.0, 3),
            channel_mean=tuple(part.mean(0)),
            channel_std=tuple(part.std(0)),
        )
        for number, part in enumerate(parts)
    ]
    total = merged(splits)
    assert total.shards == tuple(split.shards[0] for split in splits)
    assert (total.class_counts, total.num_examples) == ((3, 9), 12)
    assert total.height == (3, (1 * 5 + 3 * 6 + 8 * 7) / 12, 11)
    assert total.width == (1, 2.0, 3)
    assert total.channel_mean == pytest.approx(pixels.mean(0))
    assert total.channel_std == pytest.approx(pixels.std(0))
    assert merged(splits[:1]) == splits[0]


def test_all_splits_but_the_one_that_is_held_out_are_train():
    manifest = Manifest.from_json(json.dumps(FIELDS), "somewhere")
    train, validation = manifest.splits.values()
    assert manifest.held_out("validation").splits == {"train": merged([train]), "validation": validation}
    assert list(manifest.splits) == ["train", "validation"]
    three = dataclasses.replace(manifest, splits={"a": train, "b": validation, "c": train})
    assert three.held_out("b").splits == {"train": merged([train, train]), "b": validation}
    for dataset, name in ((manifest, "train"), (dataclasses.replace(manifest, splits={"fold1": train}), "fold1")):
        with pytest.raises(ValueError, match=f"split '{name}' of 'somewhere' cannot be held out"):
            dataset.held_out(name)


def in_editions(*editions: str, numbers: tuple[int, ...] = (), num_earlier: int = 1) -> dict:
    """Fields of a dataset whose split has one shard of each edition, and was extended `num_earlier` times."""
    shards = [
        {"name": shard_name("train", number, 2, edition), "num_examples": 1, "num_bytes": 16, "sha256": "0a" * 32}
        for number, edition in zip(numbers or range(len(editions)), editions, strict=True)
    ]
    train = FIELDS["splits"]["train"] | {"shards": shards, "class_counts": [len(shards), 0]}
    earlier = [f"{number:064x}" for number in range(num_earlier)]
    return FIELDS | {"splits": {"train": train}, "num_inputs": len(shards) + 3, "earlier": earlier}


def test_a_dataset_that_was_extended_has_a_version_and_shards_of_two_editions():
    manifest = Manifest.from_json(json.dumps(in_editions("", "3f9a2b1c", numbers=(0, 0))), "somewhere")
    assert (manifest.version, manifest.edition) == (2, "0b" * 4)
    assert manifest.earlier == ("0" * 64,)
    assert Manifest.from_json(manifest.to_json(), "somewhere") == manifest
    once = Manifest.from_json(json.dumps(in_editions("3f9a2b1c", num_earlier=0)), "somewhere")
    assert (once.version, once.edition) == (1, "3f9a2b1c")
    assert Manifest.from_json(json.dumps(FIELDS), "somewhere").edition == ""


@pytest.mark.parametrize(
    "fields",
    [
        in_editions("", "3f9a2b1c", numbers=(0, 0), num_earlier=0),
        in_editions("", "3f9a2b1c", "", numbers=(0, 0, 1), num_earlier=3),
        in_editions("", "", numbers=(1, 0)),
    ],
)
def test_shards_of_more_editions_than_versions_or_of_one_in_two_places_are_refused(fields):
    with pytest.raises(ValueError, match="must list its shards in the order of their names"):
        Manifest.from_json(json.dumps(fields), "somewhere")


def test_splits_may_not_have_more_editions_than_there_are_versions():
    other = {**FIELDS["splits"]["validation"], "shards": [shard("validation", 0, 1, 3, 999)]}
    other["shards"][0]["name"] = shard_name("validation", 0, 1, "3f9a2b1c")
    fields = FIELDS | {"splits": FIELDS["splits"] | {"validation": other}}
    with pytest.raises(ValueError, match="its splits have shards of several editions: '', '3f9a2b1c'"):
        Manifest.from_json(json.dumps(fields), "somewhere")
    earlier = ["0c" * 32]
    assert Manifest.from_json(json.dumps(fields | {"earlier": earlier}), "somewhere").version == 2


def test_options_say_what_labels_features_and_format_the_records_have():
    manifest = Manifest.from_json(json.dumps(FIELDS), "somewhere")
    assert (manifest.label_type, manifest.num_labels, manifest.features) == ("class", None, {})
    assert manifest.format == "tfrecord"
    features = {"zoom": "float", "box": "int[4]", "author": "string"}
    options = {"label_type": "classes", "features": features}
    manifest = Manifest.from_json(json.dumps(FIELDS | {"options": options}), "somewhere")
    assert (manifest.label_type, manifest.label_kind, manifest.num_labels) == ("classes", SEVERAL, 2)
    assert manifest.features == {"zoom": ("float", None), "box": ("int", 4), "author": ("string", None)}


@pytest.mark.parametrize("feature", ["double", "float[0]", "int[100000]", "string[]", "", None, 4])
def test_features_of_other_types_are_refused(feature):
    with pytest.raises(ValueError, match="the type of a feature must be float, int, string, or float"):
        Manifest.from_json(json.dumps(FIELDS | {"options": {"features": {"a": feature}}}), "somewhere")


def test_an_export_is_a_dataset_only_where_it_is_asked_for():
    train = FIELDS["splits"]["train"] | {
        "shards": [{**shard("train", 0, 1, 7, 999), "name": "train-00000-of-00001.tar"}]
    }
    text = json.dumps(FIELDS | {"splits": {"train": train}, "num_inputs": 10, "options": {"format": "webdataset"}})
    assert Manifest.from_json(text, "somewhere", allow_export=True).format == "webdataset"
    with pytest.raises(ValueError, match="'somewhere' is an export in the format webdataset, not a dataset"):
        Manifest.from_json(text, "somewhere")
    with pytest.raises(ValueError, match=r"must have names like 'train-00000-of-00001\.tfrecord'"):
        Manifest.from_json(text.replace("webdataset", "tfrecord"), "somewhere", allow_export=True)


TRAIN = "splits/train/shards"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format_version", 2, "format_version is 2, this package reads 1"),
        ("format_version", 0, "format_version is 0, this package reads 1"),
        ("path", "/etc", "it has the unknown field 'path'"),
        ("record", {}, "it has the unknown field 'record'"),
        ("classes", ["a", "a"], "classes must name each class once"),
        ("classes", ["a", ""], "a class must be text that is not empty"),
        ("first_label", -1, "first_label must be a whole number from 0 to 1, got -1"),
        ("first_label", 2, "first_label must be a whole number from 0 to 1, got 2"),
        ("num_rejected", {"corrupt": 0}, "num_rejected of 'corrupt' must be a whole number from 1"),
        ("num_fixed", {"format PNG": 0}, "num_fixed of 'format PNG' must be a whole number from 1"),
        ("num_noted", {"GPS position": 0}, "num_noted of 'GPS position' must be a whole number from 1"),
        ("num_inputs", 12, "10 records and 3 rejected inputs do not add up to num_inputs = 12"),
        ("num_inputs", 14, "10 records and 3 rejected inputs do not add up to num_inputs = 14"),
        ("options/shard_bytes", 0, "shard_bytes must be a whole number from 1"),
        ("options/num_shards", {"train": 0}, "num_shards of 'train' must be a whole number from 1"),
        ("splits/a-b", {}, "a split name must be 1 to 64 letters, digits or _, got 'a-b'"),
        (TRAIN, [], "split 'train' must list its shards in the order of their names"),
        (f"{TRAIN}/1", shard("train", 0, 3, 4, 900), "must list its shards in the order of their names"),
        (f"{TRAIN}/0", shard("train", 2, 3, 1, 16), "must list its shards in the order of their names"),
        (f"{TRAIN}/0", shard("train", 0, 4, 1, 16), "all with the same total number of shards"),
        (f"{TRAIN}/1", shard("train", 1, 4, 4, 900), "all with the same total number of shards"),
        (f"{TRAIN}/2", shard("train", 2, 4, 2, 32), "all with the same total number of shards"),
        (f"{TRAIN}/1", shard("test", 1, 3, 4, 900), "names like 'train-00000-of-00001.tfrecord', got 'test-00001"),
        (f"{TRAIN}/1", shard("validation", 1, 3, 4, 900), "must have names like 'train-00000-of-00001.tfrecord'"),
        (f"{TRAIN}/1/name", "../train-00001-of-00003.tfrecord", "must have names like 'train-00000-of-00001.tfr"),
        (f"{TRAIN}/1/name", 5, "must have names like 'train-00000-of-00001.tfrecord', got 5"),
        (
            f"{TRAIN}/1/num_examples",
            0,
            "shard 'train-00001-of-00003.tfrecord': num_examples must be a whole number from 1",
        ),
        (f"{TRAIN}/0/num_bytes", 15, "shard 'train-00000-of-00003.tfrecord': num_bytes must be a whole number from 16"),
        (f"{TRAIN}/2/num_bytes", 31, "shard 'train-00002-of-00003.tfrecord': num_bytes must be a whole number from 32"),
        ("splits/train/class_counts", [7], "class_counts of split 'train' must be a list of 2"),
        ("splits/train/class_counts", [7, 1], "split 'train' has 8 examples by class, but 7 by shard"),
        ("splits/train/class_counts", [5, 1], "split 'train' has 6 examples by class, but 7 by shard"),
        ("splits/train/class_counts", [8, -1], "class_counts of split 'train' must be a whole number from 0"),
        ("splits/train/height", [1, 2.0], "height of split 'train' must be a list of 3"),
        ("splits/train/height", [1, 2.0, 3, 4], "height of split 'train' must be a list of 3"),
        ("splits/train/height", [0, 2.0, 3], "the smallest height of split 'train' must be a whole number from 1"),
        ("splits/train/height", [4, 4.0, 3], "the largest height of split 'train' must be a whole number from 4"),
        ("splits/train/width", [10, 9.85, 12], "the mean width of split 'train' must be a number from 9.9 to 12.1"),
        ("splits/train/width", [10, 12.15, 12], "the mean width of split 'train' must be a number from 9.9 to 12.1"),
        ("splits/train/channel_mean", [0, 0], "channel_mean of split 'train' must be a list of 3"),
        ("splits/train/channel_mean", [0, 0, 0, 0], "channel_mean of split 'train' must be a list of 3"),
        ("splits/train/channel_mean", [-0.5, 0, 0], "channel_mean of split 'train' must be a number from 0 to 255"),
        ("splits/train/channel_mean", [10**400, 0, 0], "channel_mean of split 'train' must be a number from 0 to 255"),
        ("splits/train/channel_std", [0, 0, 255.5], "channel_std of split 'train' must be a number from 0 to 255"),
    ],
)
def test_what_contradicts_itself_or_leads_out_of_the_folder_is_refused(path, value, message):
    with pytest.raises(ValueError, match=f"somewhere/manifest.json is not a manifest: .*{re.escape(message)}"):
        Manifest.from_json(changed(path, value), "somewhere")


def test_a_dataset_of_no_classes_is_refused():
    fields = FIELDS | {"classes": [], "splits": {}, "num_inputs": 3}
    with pytest.raises(ValueError, match=r"classes must name each class once, got \[\]"):
        Manifest.from_json(json.dumps(fields), "somewhere")


@pytest.mark.parametrize("mean", [9.95, 10, 12, 12.05])
def test_a_mean_that_was_rounded_may_be_outside_by_that(mean):
    text = changed("splits/train/width", [10, mean, 12])
    assert Manifest.from_json(text, "somewhere").split("train").width == (10, mean, 12)


@pytest.mark.parametrize("text", ["{}", "[1", '{"format_version": 1, "classes": []}'])
def test_what_is_no_manifest_is_refused_with_its_path(text):
    with pytest.raises(ValueError, match=r"somewhere/manifest\.json is not a manifest"):
        Manifest.from_json(text, "somewhere")


def test_a_manifest_cannot_be_changed_by_one_of_those_who_share_it():
    manifest = Manifest.from_json(json.dumps(FIELDS), "somewhere")
    split = manifest.split("train")
    for shared, name in ((manifest, "path"), (split, "class_counts"), (split.shards[0], "name")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(shared, name, "another")


def test_files_are_refused_beyond_256_mib_and_1_gib():
    assert (MAX_MANIFEST_BYTES, MAX_INDEX_BYTES) == (268_435_456, 1_073_741_824)
    assert MAX_MANIFEST_BYTES > 200 * 1_000_000  # a million shards of 200 bytes each


def test_an_unknown_split_is_answered_with_those_there_are():
    manifest = Manifest.from_json(json.dumps(FIELDS), "somewhere")
    with pytest.raises(ValueError, match="has no split 'test'; it has 'train', 'validation'"):
        manifest.split("test")


@pytest.mark.parametrize("name", ["val", "VALID", "dev"])
def test_another_word_for_a_split_is_answered_with_the_name_of_the_split(name):
    manifest = Manifest.from_json(json.dumps(FIELDS), "somewhere")
    with pytest.raises(ValueError, match=f"has no split '{name}'; .*; the split is called 'validation'$"):
        manifest.split(name)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("train-00000-of-00042.tfrecord", ("train", 0, 42, "", "tfrecord")),
        ("a_B9-00041-of-00042.tfrecord", ("a_B9", 41, 42, "", "tfrecord")),
        ("train-123456-of-200000.tfrecord", ("train", 123456, 200000, "", "tfrecord")),
        ("train-00000-of-00042-3f9a2b1c.tfrecord", ("train", 0, 42, "3f9a2b1c", "tfrecord")),
        ("train-00000-of-00042.tar", ("train", 0, 42, "", "webdataset")),
        ("train-00000-of-00042-3f9a2b1c.parquet", ("train", 0, 42, "3f9a2b1c", "parquet")),
        ("train-00000-of-00042.zip", None),
        ("train-00000-of-00042-3f9a2b1.tfrecord", None),
        ("train-00000-of-00042-3F9A2B1C.tfrecord", None),
        ("train-00000-of-00042-.tfrecord", None),
        ("train-00042-of-00042.tfrecord", None),  # shards are counted from 0
        ("train-00043-of-00042.tfrecord", None),
        ("train-000001-of-00042.tfrecord", None),  # another name for the same number
        ("train-00001-of-000042.tfrecord", None),
        ("../x-00001-of-00042.tfrecord", None),
        ("train-1-of-2.tfrecord", None),
    ],
)
def test_shard_names_are_those_of_tensorflow_s_converters(name, parsed):
    assert parse_shard_name(name) == parsed
    if parsed:
        assert shard_name(*parsed) == name


@pytest.mark.parametrize(
    ("name", "valid"), [("train", True), ("a_B9", True), ("a" * 64, True), ("a" * 65, False), ("", False), ("é", False)]
)
def test_a_split_name_fits_into_a_file_name(name, valid):
    assert valid_split(name) is valid


@pytest.mark.parametrize(
    ("offsets", "lengths", "num_bytes", "filled"),
    [
        ([0, 16, 46], [16, 30, 54], 100, True),
        ([0, 60, 80], [60, 20, 20], 100, True),
        ([0], [100], 100, True),
        ([], [], 0, True),
        ([], [], 1, False),
        ([0, 16, 46], [16, 30, 54], 101, False),  # bytes after the last record
        ([0, 16, 46], [16, 30, 54], 99, False),  # less than the records
        ([0, 15, 46], [15, 31, 54], 100, False),  # an empty record has 16 bytes
        ([0, 17, 46], [16, 30, 54], 100, False),  # a gap
        ([0, 15, 46], [16, 30, 54], 100, False),  # an overlap
        ([16, 0, 46], [16, 30, 54], 100, False),
        # Sums beyond int64 that end at the right byte: of lengths beyond the file, and of many as long as the file.
        ([0, 64, 64 + 2**63 - 1 - 2**64, 62], [64, 2**63 - 1, 2**63 - 1, 18], 80, False),
        ([n * 2**53 - 2**64 * (n >= 1024) for n in range(2048)] + [0], [2**53] * 2049, 2**53, False),
    ],
)
def test_records_fill_a_shard_without_gap_or_overlap(offsets, lengths, num_bytes, filled):
    arrays = np.array(offsets, np.int64), np.array(lengths, np.int64)
    assert Shard("train-00000-of-00001.tfrecord", len(offsets), num_bytes, "").is_filled_by(*arrays) is filled
