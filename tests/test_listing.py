"""Folders become rows, and every file is one."""

from __future__ import annotations

import os

import pytest
from inputs import listed, make, reasons

from beam_pipelines import storage
from beam_pipelines.listing import check_source
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.rows import (
    Row,
    kind,
    size_row,
)
from tpu_input.schema import Record, encode, frame


def test_the_first_folder_names_the_class_however_deep_the_image_lies(tmp_path):
    for path in ("cat/1.jpg", "cat/kittens/2.jpg", "dog/1.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"12345")
    rows = listed(tmp_path)
    assert [(row.key, row.label) for row in rows] == [
        ("cat/1.jpg", "cat"),
        ("cat/kittens/2.jpg", "cat"),
        ("dog/1.jpg", "dog"),
    ]
    assert rows[0].uri == f"{tmp_path}/cat/1.jpg"
    assert {row.num_bytes for row in rows} == {5}


def test_a_file_without_class_and_a_dead_link_are_rows_with_a_reason(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "loose.jpg").write_bytes(b"1")
    os.symlink("/nowhere/at/all.jpg", tmp_path / "cat" / "dead.jpg")
    assert reasons(listed(tmp_path)) == {"loose.jpg": "no_label", "cat/dead.jpg": "missing"}


def test_a_linked_class_folder_is_read_and_a_circle_of_links_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "1.jpg").write_bytes(b"1")
    (tmp_path / "in").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "in" / "cat")
    os.symlink(tmp_path / "in", tmp_path / "real" / "circle")
    assert [row.key for row in listed(tmp_path / "in")][:1] == ["cat/1.jpg"]


def test_folders_that_are_linked_to_each_other_are_listed_once_each(tmp_path):
    make(tmp_path, "in/cat/1.jpg", "in/dog/2.jpg")
    os.symlink(tmp_path / "in" / "dog", tmp_path / "in" / "cat" / "friend")
    os.symlink(tmp_path / "in" / "cat", tmp_path / "in" / "dog" / "friend")
    os.symlink("/", tmp_path / "in" / "dog" / "all")
    assert [row.key for row in listed(tmp_path / "in")] == [
        "cat/1.jpg",
        "cat/friend/2.jpg",
        "dog/2.jpg",
        "dog/friend/1.jpg",
    ]


def test_a_file_called_as_a_part_of_another_is_a_file(tmp_path):
    make(tmp_path, "cat/x#bytes=0-3")
    (row,) = listed(tmp_path)
    assert (row.num_bytes, storage.read_bytes(row.uri)) == (15, b"cat/x#bytes=0-3")


def test_endings_that_are_no_images_make_no_kinds_of_their_own():
    assert {kind(Row(f"cat/img.{number}", num_bytes=5)) for number in range(9)} == {"/5"}
    assert kind(Row("cat/1.JPEG", num_bytes=5)) == ".jpeg/5"


def test_the_planned_size_of_a_record_is_the_written_one_to_a_few_bytes():
    options = ConvertOptions((Source("/in"),), "/out")
    row = size_row(Row("cat/1.jpg", "/in/cat/1.jpg", "cat", num_bytes=88_000), {".jpg/33": 0.5}, options.shard_bytes)
    written = frame(encode(Record(row.key, b"x" * 44_000, 375, 500, 3, 1, "cat", "0" * 64)))
    assert abs(len(written) - row.record_bytes) < 16


def test_an_image_that_no_shard_can_hold_is_a_row_with_a_reason():
    options = ConvertOptions((Source("/in"),), "/out", shard_bytes=10_000)
    row = size_row(Row("cat/1.jpg", "/in/cat/1.jpg", "cat", num_bytes=10_000), {".jpg/27": 1.0}, options.shard_bytes)
    assert (row.reason, row.record_bytes) == ("too_large", 0)


def test_folders_called_train_val_and_test_above_the_classes_are_splits(tmp_path):
    make(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg", "test/dog/4.jpg")
    assert {row.key: (row.split, row.label) for row in listed(tmp_path)} == {
        "train/cat/1.jpg": ("train", "cat"),
        "train/dog/2.jpg": ("train", "dog"),
        "val/cat/3.jpg": ("validation", "cat"),
        "test/dog/4.jpg": ("test", "dog"),
    }


def test_split_folders_may_be_written_in_capitals(tmp_path):
    make(tmp_path, "Training/cat/1.jpg", "Testing/dog/2.jpg")
    assert {(row.split, row.label) for row in listed(tmp_path)} == {("train", "cat"), ("test", "dog")}


def test_another_folder_beside_train_and_val_is_refused_rather_than_made_a_class(tmp_path):
    make(tmp_path, "train/cat/1.jpg", "Val/dog/2.jpg", "annotations/labels.txt")
    message = "beside the splits 'Val', 'train' lies 'annotations'; move that elsewhere, or name each split's folder: "
    with pytest.raises(ValueError, match=message):
        listed(tmp_path)
    assert len(listed(Source(f"{tmp_path}/train", "train"), Source(f"{tmp_path}/Val", "validation"))) == 2


def test_a_class_called_test_among_other_classes_is_a_class(tmp_path):
    make(tmp_path, "test/1.jpg", "quiz/2.jpg")
    assert {(row.split, row.label) for row in listed(tmp_path)} == {("", "test"), ("", "quiz")}


def test_a_source_that_is_missing_is_refused_in_the_driver(tmp_path):
    with pytest.raises(ValueError, match="does not exist; it is a folder of class folders"):
        check_source(Source(str(tmp_path / "nothing")))
    with pytest.raises(ValueError, match=r"label list '.*labels\.txt' does not exist; it is a class name a line"):
        check_source(Source(str(tmp_path), label_list=str(tmp_path / "labels.txt")))
