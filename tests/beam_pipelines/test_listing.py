"""Folders become rows, and every file is one."""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import apache_beam as beam
import pytest
import tensorflow as tf

from beam_pipelines import storage
from beam_pipelines.__main__ import main
from beam_pipelines.conversion.planning.beam_steps import plan_rows
from beam_pipelines.conversion.planning.record_sizes import Samples, size_rows
from beam_pipelines.dry_run import dry_run
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources import not_images
from beam_pipelines.sources.input_kinds import Part
from beam_pipelines.sources.listing import check_source, list_below, list_part
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import Row
from support.inputs import listed, make, reasons, tar
from support.pipelines_commands import run
from tpu_input.dataset_format.records import Record, encode, frame
from tpu_input.dataset_format.tfrecord import serialize


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
    names = {
        "/5": ["cat/img.1", "cat/img.22", "img", "a.jpg/img", "cat/.jpg", "cat/..jpg", ".png"],
        ".jpeg/5": ["cat/1.JPEG", "a..jpeg", ".a.jpeg"],
        ".jpg/5": ["1.jpg"],
    }
    samples = Samples(0)
    samples.add(Batch.from_rows([Row(name, num_bytes=5) for name in itertools.chain(*names.values())]))
    assert {kind: {row.key for row in rows} for kind, rows in samples.by_kind().items()} == {
        kind: set(keys) for kind, keys in names.items()
    }


@pytest.mark.parametrize("num_bytes", [0, 1, 2, 3, 88_000, 2**31, 2**40 - 1])
def test_sizes_within_a_factor_of_about_the_root_of_two_are_of_one_kind(num_bytes):
    samples = Samples(0)
    samples.add(Batch.from_rows([Row("1.jpg", num_bytes=num_bytes), Row("2.jpg", num_bytes=7, reason="empty")]))
    assert list(samples.by_kind()) == [f".jpg/{round(2 * math.log2(max(num_bytes, 1)))}"]


def test_a_file_that_is_listed_as_an_image_by_its_name_alone_has_no_reason():
    stems = ["a", "A b", ".a", "._a", "..", "", "readme", "README", "License", "_success", "thumbs", "a.txt", "é"]
    endings = ["jpg", "JPG", "jpeg", "Jpg", "png", "txt", "tar", "parquet", "DS_Store", ""]
    folders = ["", "cat/", ".git/", "__MACOSX/", "a/@eaDir/b/", "a.jpg/"]
    paths = [f"{folder}{stem}.{ending}" for folder in folders for stem in stems for ending in endings]
    ordinary = list(filter(not_images.is_ordinary_image, paths))
    assert all(not_images.reason_of(path, ()) == ("", "") for path in ordinary)
    assert {"a.jpg", "cat/A b.png", "a.jpg/a.jpeg"} <= set(ordinary)
    assert not set(ordinary) & {"é.jpg", "cat/readme.jpg", "__MACOSX/a.jpg", "a.tar", "a.parquet"}


def test_the_planned_size_of_a_record_is_the_written_one_to_a_few_bytes():
    options = ConvertOptions((Source("/in"),), "/out")
    listed = Batch.from_rows([Row("cat/1.jpg", "/in/cat/1.jpg", "cat", num_bytes=88_000)])
    (row,) = size_rows(listed, {".jpg/33": 0.5}, options).rows()
    record = frame(encode(Record(row.key, b"x" * 44_000, 375, 500, 3, 1, "cat", "0" * 64)))
    assert abs(len(record) - row.record_bytes) < 16


def test_an_image_that_no_shard_can_hold_is_a_row_with_a_reason():
    options = ConvertOptions((Source("/in"),), "/out", shard_bytes=10_000)
    listed = Batch.from_rows([Row(f"cat/{n}.jpg", f"/in/{n}.jpg", "cat", num_bytes=5_000 * n) for n in range(3)])
    *others, row = size_rows(listed, {".jpg/0": 1.0, ".jpg/25": 1.0, ".jpg/27": 1.0}, options).rows()
    assert (row.reason, row.record_bytes) == ("too_large", 0)
    assert [other.reason for other in others] == ["", ""]


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
    make(tmp_path, "train/cat/1.jpg", "Val/dog/2.jpg", "annotations/boxes.jpg")
    message = (
        "it is not clear which folders of .* are splits and which are classes: Val/ with 1 file such as "
        f"'Val/dog/2.jpg', train/ with .*, annotations/ with .*; specify .*--input=train={tmp_path}/train "
        f"--input=validation={tmp_path}/Val; "
    )
    with pytest.raises(ValueError, match=message):
        listed(tmp_path)
    assert len(listed(Source(f"{tmp_path}/train", "train"), Source(f"{tmp_path}/Val", "validation"))) == 2


def test_a_folder_without_images_beside_train_and_val_is_no_class(tmp_path):
    make(tmp_path, "train/cat/1.jpg", "Val/dog/2.jpg", "docs/notes.txt")
    rows = {row.key: (row.split, row.label, bool(row.reason)) for row in listed(tmp_path)}
    assert rows.pop("docs/notes.txt")[2]
    assert rows == {"train/cat/1.jpg": ("train", "cat", False), "Val/dog/2.jpg": ("validation", "dog", False)}


def test_an_advised_option_can_be_pasted(tmp_path):
    make(tmp_path / "my photos", "train/cat/1.jpg", "val/dog/2.jpg", "other/3.jpg")
    with pytest.raises(ValueError, match="it is not clear") as error:
        listed(tmp_path / "my photos")
    words = shlex.split(str(error.value).partition("for example: ")[2].partition("; or")[0])
    assert words == [f"--input=validation={tmp_path}/my photos/val", f"--input=train={tmp_path}/my photos/train"]


@pytest.mark.parametrize("copy", ["backup/cat/3.jpg", "Backup/CAT/3.jpg"])
def test_a_folder_that_has_nothing_but_another_class_is_refused(tmp_path, copy):
    make(tmp_path, "cat/1.jpg", "dog/2.jpg", copy)
    with pytest.raises(ValueError, match="has folders of other classes in it"):
        listed(tmp_path)


def test_a_part_of_a_class_may_have_the_name_of_another(tmp_path):
    make(tmp_path, "cat/1.jpg", "dog/2.jpg", "dog/cat/3.jpg")
    assert [row.label for row in listed(tmp_path)] == ["cat", "dog", "dog"]


def test_a_class_called_test_among_other_classes_is_a_class(tmp_path):
    make(tmp_path, "test/1.jpg", "quiz/2.jpg")
    assert {(row.split, row.label) for row in listed(tmp_path)} == {("", "test"), ("", "quiz")}


def test_a_source_that_is_missing_is_refused_in_the_driver(tmp_path):
    with pytest.raises(ValueError, match="does not exist; it must be a folder of class folders"):
        check_source(Source(str(tmp_path / "nothing")), ConvertOptions((), "out"))
    with pytest.raises(
        ValueError,
        match=r"labels\.txt' of --label_list does not exist; it must be a text file with one class name per line",
    ):
        check_source(Source(str(tmp_path), label_list=str(tmp_path / "labels.txt")), ConvertOptions((), "out"))


UNCLEAR = {
    "sets": ["training_set/cat/1.jpg", "training_set/dog/2.jpg", "test_set/cat/3.jpg", "test_set/dog/4.jpg"],
    "nested twice": ["seg_train/seg_train/sea/1.jpg", "seg_test/seg_test/sea/2.jpg", "seg_pred/seg_pred/3.jpg"],
    "two years": ["train2017/1.jpg", "val2017/2.jpg", "labels/instances_train2017.json"],
    "train beside another": ["train/cat/1.jpg", "train/dog/2.jpg", "extra/3.jpg"],
    "cats and dogs": ["train/cat.0.jpg", "train/dog.0.jpg", "test1/1.jpg"],
    "camel": ["TrainSet/cat/1.jpg", "testset/cat/2.jpg"],
    "prefix": ["flowers-train/rose/1.jpg", "flowers-valid/rose/2.jpg"],
}


@pytest.mark.parametrize("paths", UNCLEAR.values(), ids=UNCLEAR)
def test_folders_that_may_be_splits_are_refused_with_what_was_seen_unless_labels_names_them(tmp_path, paths):
    make(tmp_path, *paths)
    tops = sorted({path.split("/")[0] for path in paths})
    with pytest.raises(
        ValueError, match=r"it is not clear which folders of .* are splits and which are classes"
    ) as error:
        listed(tmp_path)
    assert all(f"{top}/ with" in str(error.value) for top in tops)
    assert "--input=train=" in str(error.value)
    assert "\n" not in str(error.value)
    rows = listed(tmp_path, labels=tuple(tops))
    assert {row.label for row in rows if not row.reason} == {
        path.split("/")[0] for path in paths if path.endswith(".jpg")
    }


def test_folders_of_the_same_name_in_each_other_are_named_to_the_innermost(tmp_path):
    make(tmp_path, *UNCLEAR["nested twice"])
    hint = f"for example: --input=train={tmp_path}/seg_train/seg_train --input=test={tmp_path}/seg_test/seg_test;"
    with pytest.raises(ValueError, match="it is not clear") as error:
        listed(tmp_path)
    assert hint in str(error.value)


BOXES = {
    "Pascal VOC": ["Annotations/1.xml", "JPEGImages/1.jpg", "ImageSets/Main/train.txt"],
    "Pascal VOC above": ["down/VOCdevkit/VOC2012/Annotations/1.xml", "down/VOCdevkit/VOC2012/JPEGImages/1.jpg"],
    "Pascal VOC doubled": ["VOC_trainval/VOC_trainval/Annotations/1.xml", "VOC_trainval/VOC_trainval/JPEGImages/1.jpg"],
    "COCO": ["annotations/instances_val2017.json", "val2017/1.jpg", "train2017/2.jpg"],
    "COCO above": ["down/coco/annotations/captions_val2017.json", "down/coco/val2017/1.jpg"],
}


@pytest.mark.parametrize("name", BOXES)
def test_layouts_with_boxes_are_recognized_at_any_depth_unless_no_classes_are_wanted(tmp_path, name):
    make(tmp_path, *BOXES[name])
    message = f"is in the layout of {name.removesuffix(' above').removesuffix(' doubled')}, where an image has objects"
    with pytest.raises(ValueError, match=message):
        listed(tmp_path)
    if "down" in BOXES[name][0]:  # also below the folder of a split
        with pytest.raises(ValueError, match=message):
            listed(Source(str(tmp_path / "down"), "train"), Source(str(tmp_path), "test"))
    if name != "COCO":  # of which it is asked what train2017 and val2017 are
        assert [row for row in listed(tmp_path, label_type="none") if not row.reason]


WITH_BOXES_BESIDE = {
    "xml": ["vocals/Annotations/1.xml", "vocals/b.jpg", "drums/Annotations/2.xml", "drums/c.jpg"],
    "json": ["annotations/instances_default.json", "cat/1.jpg", "dog/2.jpg"],
}


@pytest.mark.parametrize("paths", WITH_BOXES_BESIDE.values(), ids=WITH_BOXES_BESIDE)
def test_classes_with_files_of_boxes_beside_them_are_classes(tmp_path, paths):
    make(tmp_path, *paths)
    images = {path.split("/")[0] for path in paths if path.endswith(".jpg")}
    assert {row.label for row in listed(tmp_path) if row.key.endswith(".jpg")} == images


CLASSES = {
    "vehicles": ["car/1.jpg", "train/2.jpg", "bus/side/3.jpg"],
    "words that begin so": ["train_station/1.jpg", "test_tube/2.jpg", "validator/3.jpg", "trainer/4.jpg"],
    "a kind of train": ["express_train/1.jpg", "freight_train/2.jpg", "test_tube/3.jpg"],
    "one of them": ["valid/1.jpg", "invalid/2.jpg"],
}


@pytest.mark.parametrize("paths", CLASSES.values(), ids=CLASSES)
def test_classes_that_are_called_almost_as_splits_are_classes(tmp_path, paths):
    make(tmp_path, *paths)
    assert {(row.split, row.label) for row in listed(tmp_path)} == {("", path.split("/")[0]) for path in paths}


def test_splits_inside_a_split_are_refused(tmp_path):
    make(tmp_path, "in/train/cat/1.jpg", "in/val/cat/2.jpg", "more/train/cat/1.jpg")
    for path in ("in", "more"):
        with pytest.raises(ValueError, match=f"--input=train={tmp_path}/{path}/train"):
            listed(Source(f"{tmp_path}/{path}", "train"))


def test_hidden_folders_are_no_classes_and_every_file_in_them_is_counted(tmp_path):
    paths = ["cat/1.jpg", "dog/2.jpg", ".ipynb_checkpoints/1-checkpoint.jpg", ".git/objects/12/34", ".hidden.jpg"]
    make(tmp_path / "flat", *paths)
    assert {row.key: (row.label, row.reason) for row in listed(tmp_path / "flat")} == {
        "cat/1.jpg": ("cat", ""),
        "dog/2.jpg": ("dog", ""),
        ".ipynb_checkpoints/1-checkpoint.jpg": ("", "system_file"),
        ".git/objects/12/34": ("", "hidden"),
        ".hidden.jpg": ("", "no_label"),
    }
    make(tmp_path / "split", ".git/HEAD", "train/.cache/x.jpg", "train/cat/1.jpg", "val/cat/2.jpg")
    assert {row.key: (row.split, row.label, row.reason) for row in listed(tmp_path / "split")} == {
        ".git/HEAD": ("", "", "hidden"),
        "train/.cache/x.jpg": ("train", "", "hidden"),
        "train/cat/1.jpg": ("train", "cat", ""),
        "val/cat/2.jpg": ("validation", "cat", ""),
    }


def test_a_label_list_is_not_of_hidden_files(tmp_path):
    make(tmp_path, "val/1.jpg", "val/2.jpg", "val/.ipynb_checkpoints/1-checkpoint.jpg")
    (tmp_path / "classes.txt").write_text("rose\ndaisy\n")
    rows = listed(Source(str(tmp_path / "val"), "validation", str(tmp_path / "classes.txt")))
    assert [(row.key, row.label, row.reason) for row in rows] == [
        (".ipynb_checkpoints/1-checkpoint.jpg", "", "system_file"),
        ("1.jpg", "rose", ""),
        ("2.jpg", "daisy", ""),
    ]


def convert_command(capsys, folder, *flags: str) -> tuple[int, str, str]:
    code = main(["convert", f"--input={folder}", f"--output={folder}-out", *flags])
    return code, *capsys.readouterr()


def test_an_archive_among_class_folders_is_named_with_what_to_do(few_digits, capsys):
    make(few_digits, "3.zip")
    code, _, err = convert_command(capsys, few_digits)
    assert code == 0
    assert "archives in the folders are not read (.zip): unpack them, or convert each as an input of its own" in err


def test_folders_without_images_and_hidden_ones_are_no_classes_of_the_dataset(few_digits, capsys):
    make(few_digits, "annotations/1.xml", "annotations/2.XML", ".ipynb_checkpoints/a.jpg")
    code, out, err = convert_command(capsys, few_digits)
    assert (code, err) == (
        0,
        "folders without images, which are not classes: annotations/ with 2 files such as 'annotations/1.xml'\n"
        "not images, so only listed in rejected.jsonl: 2 .xml, 1 .jpg\n",
    )
    assert "rejected: 3 of 39 inputs (no_class 2, system_file 1)" in out
    manifest = json.loads((Path(f"{few_digits}-out") / "manifest.json").read_text())
    assert manifest["classes"] == ["0", "1", "2"]
    stored = tf.data.TFRecordDataset(sorted(map(str, Path(f"{few_digits}-out").glob("*.tfrecord"))))
    labels = [tf.train.Example.FromString(data.numpy()).features.feature["image/class/text"] for data in stored]
    assert Counter(label.bytes_list.value[0] for label in labels) == {b"0": 12, b"1": 12, b"2": 12}


def test_how_folders_are_read_as_splits_is_said(few_digits, tmp_path, capsys):
    few_digits.rename(tmp_path / "train")
    shutil.copytree(tmp_path / "train", tmp_path / "in" / "VAL")
    (tmp_path / "train").rename(tmp_path / "in" / "train")
    code, out, err = convert_command(capsys, tmp_path / "in")
    assert (code, err) == (0, "read as splits: VAL/ as validation, train/ as train\n")
    assert "train: 36 examples of 3 classes" in out


def test_splits_that_share_no_class_are_refused_with_the_names_of_both(few_digits, tmp_path, capsys):
    labels = {name: number for number, name in enumerate("012", start=636)}  # as ImageNet's ground truth has them
    names = sorted(path.relative_to(few_digits) for path in few_digits.rglob("*.jpg"))
    lines = [f"{name},{name.parts[0] if index % 2 else labels[name.parts[0]]}" for index, name in enumerate(names)]
    splits = ["train" if index % 2 else "validation" for index in range(len(names))]
    text = "\n".join(["image,label,split", *(f"{line},{split}" for line, split in zip(lines, splits, strict=True))])
    (few_digits / "list.csv").write_text(text)
    code, out, err = convert_command(capsys, few_digits / "list.csv")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: the splits 'train' and 'validation' of ")
    assert "have no class in common: 'train' has '0', 'validation' has '636', …; " in err
    assert not Path(f"{few_digits}/list.csv-out").exists()
    (few_digits / "list.csv").write_text(text.replace(",636,", ",0,"))  # one class in common is enough
    assert convert_command(capsys, few_digits / "list.csv")[0] == 0


def test_one_of_three_splits_without_a_class_of_the_others_is_refused(few_digits, capsys):
    (few_digits / "0").rename(few_digits / "test")
    for path in ("train", "val"):
        shutil.copytree(few_digits / "1", few_digits / path / "one")
        shutil.copytree(few_digits / "2", few_digits / path / "two")
    shutil.copytree(few_digits / "test", few_digits / "test" / "zero")
    for path in [*(few_digits / "test").glob("*.jpg"), *few_digits.glob("[12]/*.jpg")]:
        path.unlink()
    code, _, err = convert_command(capsys, few_digits)
    assert code == 2
    assert "the splits 'test' and 'train' of " in err
    assert "'test' has 'zero', 'train' has 'one'" in err


@pytest.mark.parametrize("kind", ["folder", "splits", "list", "numbers", "zip"])
@pytest.mark.parametrize("second", ["cat", "dog"])
def test_inputs_of_a_single_class_are_noted_before_the_conversion(tmp_path, kind, second):
    make(tmp_path, "in/cat/1.jpg", f"in/{second}/2.jpg", "split/train/cat/1.jpg", f"split/val/{second}/2.jpg")
    numbers = {"cat": "3", "dog": "4"}
    for name, labels in (("names.csv", ("cat", second)), ("numbers.csv", (numbers["cat"], numbers[second]))):
        lines = [f"in/cat/1.jpg,{labels[0]}", f"in/{second}/2.jpg,{labels[1]}"]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    shutil.make_archive(f"{tmp_path}/in", "zip", tmp_path / "in")
    inputs = {"folder": "in", "splits": "split", "list": "names.csv", "numbers": "numbers.csv", "zip": "in.zip"}
    lines = list(dry_run(ConvertOptions((Source(f"{tmp_path}/{inputs[kind]}"),), f"{tmp_path}/out")))
    label = "3" if kind == "numbers" else "cat"
    line = (
        f"folders   all images have one class, {label!r}, so a classifier has nothing to tell apart; add images of "
        "another class before training"
    )
    assert lines.count(line) == (second == "cat")


def test_a_dry_run_reads_folders_as_the_conversion_does(tmp_path):
    make(tmp_path, "in/train/cat/1.jpg", "in/val/cat/2.jpg", "bad/train/cat/1.jpg", "bad/more/2.jpg")
    lines = list(dry_run(ConvertOptions((Source(f"{tmp_path}/in"),), f"{tmp_path}/out")))
    assert "folders   read as splits: train/ as train, val/ as validation" in lines
    with pytest.raises(ValueError, match=r"it is not clear which folders of .* are splits and which are classes"):
        list(dry_run(ConvertOptions((Source(f"{tmp_path}/bad"),), f"{tmp_path}/out")))


def parts(entries: Iterable[Batch | Part]) -> dict[str, Part]:
    return {part.archive.path if part.archive else part.folder: part for part in entries if isinstance(part, Part)}


def test_each_class_folder_and_each_archive_is_a_part_that_a_worker_of_its_own_can_list(tmp_path):
    make(tmp_path / "in", "train/cat/1.jpg", "train/dog/deep/2.jpg", "validation/cat/3.jpg", "loose.jpg")
    tar(tmp_path / "in" / "validation" / "dog.tar", tmp_path / "in" / "train" / "dog", "deep")
    opts = ConvertOptions((Source(f"{tmp_path}/in"),), "/out")
    top = list(list_part(Part(opts.sources[0]), opts))
    assert parts(top).keys() == {"train/", "validation/"}
    assert [row.key for batch in top if isinstance(batch, Batch) for row in batch.rows()] == ["loose.jpg"]
    train, validation = (list(list_part(parts(top)[name], opts)) for name in ("train/", "validation/"))
    assert parts(train).keys() == {"train/cat/", "train/dog/"}
    assert parts(validation).keys() == {"validation/cat/", "validation/dog.tar"}
    for part, key in (
        (parts(train)["train/dog/"], "train/dog/deep/2.jpg"),
        (parts(validation)["validation/dog.tar"], "validation/dog/deep/2.jpg"),
    ):
        assert [row.key for batch in list_below(part, opts) for row in batch.rows()] == [key]


@pytest.mark.parametrize("above", ["", "flowers/"], ids=["side_by_side", "in_one_folder"])
def test_archives_of_an_archive_are_parts_once_it_is_known_whether_a_folder_is_around_all(tmp_path, above):
    make(tmp_path, "1.jpg", "2.jpg")
    for label in ("daisy", "rose", "tulip"):
        (tmp_path / above).mkdir(exist_ok=True)
        tar(tmp_path / above / f"{label}.tar", tmp_path, "1.jpg", "2.jpg")
    tar(tmp_path / "in.tar", tmp_path, *(f"{above}{label}.tar" for label in ("daisy", "rose", "tulip")))
    opts = ConvertOptions((Source(f"{tmp_path}/in.tar"),), "/out")
    entries = list(list_part(Part(opts.sources[0]), opts))
    assert parts(entries).keys() == {"rose.tar", "tulip.tar"} | ({"daisy.tar"} if above else set())
    rows = [row for batch in list_below(parts(entries)["rose.tar"], opts) for row in batch.rows()]
    assert [storage.read_bytes(row.uri, row.version) for row in rows] == [b"1.jpg", b"2.jpg"]
    assert {row.key for row in listed(tmp_path / "in.tar")} == {
        f"{label}/{number}.jpg" for label in ("daisy", "rose", "tulip") for number in (1, 2)
    }


def test_a_link_in_a_linked_class_folder_that_leads_back_above_it_is_not_followed(tmp_path):
    make(tmp_path, "real/1.jpg", "in/dog/2.jpg")
    os.symlink(tmp_path / "real", tmp_path / "in" / "train")
    make(tmp_path, "real/cat/3.jpg")
    os.symlink(tmp_path / "in", tmp_path / "real" / "cat" / "up")
    assert [row.key for row in listed(tmp_path / "in")] == ["dog/2.jpg", "train/1.jpg", "train/cat/3.jpg"]


def test_parts_are_listed_and_contents_hashed_by_all_workers(tmp_path):
    """Runners keep a step on the worker of the step before it, unless a shuffle lies between them."""
    make(tmp_path, "cat/1.jpg")
    opts = ConvertOptions((Source(str(tmp_path)),), "/out", dedup="exact")
    pipeline = beam.Pipeline()
    plan_rows(pipeline, opts)
    graph = pipeline.to_runner_api().components.transforms
    maker = {output: step.unique_name for step in graph.values() for output in step.outputs.values()}
    inputs = {step.unique_name: [maker[name] for name in step.inputs.values()] for step in graph.values()}
    spread = {
        name: inputs[name][0] for name in ("Open folders", "Open class folders", "List archives", "Key by content")
    }
    assert [name.partition("/")[0] for name in spread.values()] == [
        "Spread parts of sources",
        "Spread parts of folders",
        "Spread parts of class folders",
        "Spread content",
    ]


def test_what_macos_stores_beside_each_file_of_a_tar_or_a_folder_is_no_input(tmp_path):
    """As its tar does for files that were downloaded, and its Finder on disks of Windows."""
    names = ("._f", "f/._cat", "f/cat/._1.jpg", "f/cat/1.jpg", "f/dog/._2.jpg", "f/dog/2.jpg")
    make(tmp_path / "in", *names)
    tar(tmp_path / "in.tar", tmp_path / "in", *names)
    for rows in (listed(tmp_path / "in.tar"), listed(tmp_path / "in/f")):
        assert {row.key: row.label for row in rows if not row.reason} == {"cat/1.jpg": "cat", "dog/2.jpg": "dog"}
        assert {row.reason for row in rows if row.reason} == {"system_file"}


def write_records(path: Path, images: list[Path]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for image in images:
            file.write(frame(serialize({"jpg": image.read_bytes(), "cls": image.parent.name.encode()})))


def test_every_file_beside_files_of_records_is_listed(capsys, tmp_path, few_digits):
    images, source = sorted(few_digits.glob("[01]/*")), tmp_path / "in"
    write_records(source / "train-00000-of-00003", images)
    write_records(source / ".cache" / "train-00001-of-00003", images)
    write_records(source / "more.TFRECORD", images)
    shutil.copy(images[0], source / "loose.jpg")
    (source / "README.md").write_text("about")
    flags = f"--input={source}", "--record=image=jpg,label=cls", f"--output={tmp_path}/out"
    code, _, err = run(capsys, "convert", *flags)
    assert code == 2, err  # they are more than a few
    code, _, err = run(capsys, "convert", *flags, "--max_rejected=20%")
    assert code == 0
    assert "1 of 3 files are there: without train-00001-of-00003 and 1 more" in err
    listed = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert {line["key"]: line["reason"] for line in listed} == {
        ".cache/train-00001-of-00003": "hidden",
        "more.TFRECORD": "no_label",
        "loose.jpg": "no_label",
        "README.md": "other_file",
    }


def test_a_pattern_of_ignore_without_a_file_is_named(capsys, few_digits, tmp_path):
    (few_digits / "0/notes.json").write_text("{}")
    flags = "--ignore=*.json", "--ignore=a[1].jpg", "--ignore=*.j*n"
    code, _, err = run(capsys, "convert", f"--input={few_digits}", f"--output={tmp_path}/out", *flags)
    assert (code, err.splitlines()) == (
        0,
        [
            "not images, or ignored, so only listed in rejected.jsonl: 1 --ignore=*.json --ignore=*.j*n",
            "no file is ignored because of --ignore=a[1].jpg",
        ],
    )
