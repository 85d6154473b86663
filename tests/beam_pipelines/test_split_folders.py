"""Folders of splits in class folders, and copies of classes: read as what they are, or refused, never mixed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.pipelines_commands import refused, run
from tpu_input import read_manifest


@pytest.fixture
def images(few_digits) -> list[Path]:
    return sorted(few_digits.glob("[01]/*"))


def copied(images: list[Path], root: Path, pattern: str) -> None:
    """Copies 8 images of two classes, the first three of each four as train."""
    for number, image in enumerate(images[:4] + images[12:16]):
        label, split = ("cat", "dog")[number // 4], ("val", "train")[number % 4 < 3]
        path = root / pattern.format(label=label, split=split, n=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, path)


@pytest.mark.parametrize("form", ["folder", "tar for each class", "zip", pytest.param("gs", marks=pytest.mark.cloud)])
def test_splits_in_class_folders_are_read_as_splits(request, capsys, tmp_path, images, form):
    copied(images, tmp_path / "in", "{label}/{split}/{n}.jpg")
    source = tmp_path / "in"
    (source / "cat/notes.txt").write_text("about cats")
    (source / "dog/.thumbs").mkdir()
    shutil.copy(images[0], source / "dog/.thumbs/0.jpg")
    if form == "zip":
        source = shutil.make_archive(str(tmp_path / "all"), "zip", source)
    elif form == "gs":
        cloud = request.getfixturevalue("cloud")
        bucket = cloud.make_bucket()
        cloud.upload(source, f"{bucket}/in")
        source = f"{bucket}/in"
    elif form == "tar for each class":
        for label in ("cat", "dog"):
            shutil.make_archive(str(tmp_path / "tars" / label), "tar", source / label)
        source = tmp_path / "tars"
    code, _, err = run(capsys, "convert", f"--input={source}", f"--output={tmp_path}/out", "--max_rejected=20%")
    assert code == 0
    assert "read as splits: CLASS/train/ as train, CLASS/val/ as validation" in err
    splits = read_manifest(str(tmp_path / "out")).splits
    assert {name: split.num_examples for name, split in splits.items()} == {"train": 6, "validation": 2}
    lines = (tmp_path / "out/rejected.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["reason"] for line in lines) == ["hidden", "other_file"]


@pytest.mark.parametrize("place", ["in/cat/more.jpg", "in/bird/0.jpg"])
def test_splits_in_some_class_folders_are_never_mixed(capsys, tmp_path, images, place):
    copied(images, tmp_path / "in", "{label}/{split}/{n}.jpg")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    shutil.copy(images[20], tmp_path / place)
    message = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    assert "class folder 'cat' has 'train' and 'val' in it, which would be mixed" in message
    (tmp_path / place).unlink()
    message = refused(capsys, "convert", f"--input=train={tmp_path}/in", f"--output={tmp_path}/out")
    assert "class folder 'cat' has 'train' and 'val' in it, which would be mixed" in message


@pytest.mark.parametrize("form", ["folder", "tar", "tar with splits"])
def test_a_copy_of_the_classes_is_no_class(capsys, tmp_path, images, form):
    copied(images, tmp_path / "in", "{label}/{n}.jpg")
    copied(images, tmp_path / "copy", "{split}/{label}/{n}.jpg" if "splits" in form else "{label}/{n}.jpg")
    if form == "folder":
        shutil.copytree(tmp_path / "copy", tmp_path / "in/backup")
    else:
        shutil.make_archive(str(tmp_path / "in/backup"), "tar", tmp_path / "copy")
    convert = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    message = refused(capsys, *convert)
    if "splits" in form:
        assert "class folder 'backup' has 'train' and 'val' in it, which would be mixed" in message
        return
    assert "'backup' would be a class, but has folders of other classes in it, 'cat' and 'dog' (8 files" in message
    (tmp_path / "labels.txt").write_text("backup\ncat\ndog\n")
    assert run(capsys, *convert, f"--labels={tmp_path}/labels.txt")[0] == 0


def labelled(folder: Path, how: str) -> list[str]:
    """Returns the flags by which the images of a folder get labels that are not the names of their folders."""
    if how == "pattern":
        return ["--label_pattern=(cat|dog)"]
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*.jpg"))
    list_of_labels = folder.with_name("labels.txt")
    list_of_labels.write_text("".join(f"{'cat' if 'cat' in str(path) else 'dog'}\n" for path in paths))
    return [f"--label_list={list_of_labels}"]


@pytest.mark.parametrize("how", ["pattern", "list"])
@pytest.mark.parametrize("form", ["folder", "tar"])
def test_folders_of_splits_are_splits_wherever_labels_come_from(capsys, tmp_path, images, how, form):
    copied(images, tmp_path / "in", "{split}/{label}.{n}.jpg")
    flags = labelled(tmp_path / "in", how)
    source = tmp_path / "in"
    if form == "tar":
        source = Path(shutil.make_archive(str(tmp_path / "all"), "tar", source))
    code, _, err = run(capsys, "convert", f"--input={source}", f"--output={tmp_path}/out", *flags)
    assert code == 0, err
    assert "read as splits: train/ as train, val/ as validation" in err
    splits = read_manifest(str(tmp_path / "out")).splits
    assert {name: (split.num_examples, split.class_counts) for name, split in splits.items()} == {
        "train": (6, (3, 3)),
        "validation": (2, (1, 1)),
    }


@pytest.mark.parametrize("how", ["pattern", "list"])
@pytest.mark.parametrize("more", ["{label}.{n}.jpg", "more/{split}/{label}.{n}.jpg"])
def test_folders_of_splits_beside_other_images_are_never_mixed(capsys, tmp_path, images, how, more):
    copied(images, tmp_path / "in", "{split}/{label}.{n}.jpg")
    convert = ("convert", f"--input=train={tmp_path}/in", f"--output={tmp_path}/out")
    flags = [flag.replace("list=", "list=train=") for flag in labelled(tmp_path / "in", how)]
    assert "it is not clear which split an image belongs to" in refused(capsys, *convert, *flags)
    copied(images[4:], tmp_path / "in", more)
    convert = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    message = refused(capsys, *convert, *labelled(tmp_path / "in", how))
    assert "some images are in 'train/' and 'val/', some are in other folders or are given a split" in message


@pytest.mark.parametrize(
    "names", [("train", "dev"), ("train2017", "val2017"), ("training_set", "test_set"), (".", "val")]
)
@pytest.mark.parametrize("labels", [[], ["--unlabelled"]])
def test_folders_that_may_be_splits_are_never_mixed(capsys, tmp_path, images, names, labels):
    for label, class_images in (("cat", images[:4]), ("dog", images[12:16])):
        for number, image in enumerate(class_images):
            folder = tmp_path / "in" / label / names[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(image, folder / f"{number}.jpg")
    message = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *labels)
    assert "class folder 'cat' has " in message
    assert "in it, which would be mixed, as other files are next to the folders of splits" in message


@pytest.mark.parametrize(
    "names",
    [
        ("train_set", "holdout_set"),
        ("imgs-train", "imgs-dev"),
        ("trainA", "testA"),
        ("TrainImages", "ValImages"),
        ("train", "hold-out"),
    ],
)
def test_folders_with_a_split_in_their_names_are_no_classes(capsys, tmp_path, images, names):
    for number, name in enumerate(names):
        for label in ("cat", "dog"):
            (tmp_path / "in" / name / label).mkdir(parents=True)
            shutil.copy(images[number + (12 if label == "dog" else 0)], tmp_path / "in" / name / label / "1.jpg")
    message = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    assert "it is not clear which folders of" in message
    assert all(name in message for name in names)


def test_a_folder_of_a_split_around_those_of_splits_is_no_split_with_classes(capsys, tmp_path, images):
    copied(images, tmp_path / "in", "train/{split}/{label}/{n}.jpg")
    message = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    assert "folders of splits lie in folders of splits, such as 'train/" in message


@pytest.mark.parametrize(
    ("names", "has_warning"), [(("trn", "tst"), True), (("a", "b", "c"), True), (("a", "b", "c", "d"), False)]
)
def test_classes_with_the_same_folders_in_them_may_be_splits(capsys, tmp_path, images, names, has_warning):
    for number, name in enumerate(names):
        for label in ("cat", "dog"):
            (tmp_path / "in" / name / label).mkdir(parents=True)
            shutil.copy(images[number + (12 if label == "dog" else 0)], tmp_path / "in" / name / label / "1.jpg")
    code, _, err = run(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    assert code == 0
    assert ("though each has 'cat' and 'dog' in it; if these are the classes" in err) == has_warning, err
    (tmp_path / "names.txt").write_text("\n".join(names))
    flags = f"--output={tmp_path}/named", f"--labels={tmp_path}/names.txt"
    assert run(capsys, "convert", f"--input={tmp_path}/in", *flags)[::2] == (0, "")
