"""What somebody who did not know the code found with files of their own: nothing is lost, and mistakes are one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from estimator_app.config import read_recipe
from support.pipelines_commands import refused, run
from tpu_input import read_manifest
from tpu_input.dataset_format.tfrecord import frame, serialize


def records(path: Path, images: list[Path]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for image in images:
            file.write(frame(serialize({"jpg": image.read_bytes(), "cls": image.parent.name.encode()})))


@pytest.fixture
def images(few_digits) -> list[Path]:
    return sorted(few_digits.glob("[01]/*"))


def test_every_file_beside_files_of_records_is_listed(capsys, tmp_path, images):
    source = tmp_path / "in"
    records(source / "train-00000-of-00003", images)
    records(source / ".cache" / "train-00001-of-00003", images)
    records(source / "more.TFRECORD", images)
    shutil.copy(images[0], source / "loose.jpg")
    (source / "README.md").write_text("about")
    flags = f"--input={source}", "--record=image=jpg,label=cls", f"--output={tmp_path}/out"
    code, _, err = run(capsys, "convert", *flags)
    assert code == 2, err  # they are more than a few
    code, _, err = run(capsys, "convert", *flags, "--max_rejected=20%")
    assert code == 0
    assert "1 of 3 files are there: without train-00001-of-00003 and 1 more" in err
    listed = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert {each["key"]: each["reason"] for each in listed} == {
        ".cache/train-00001-of-00003": "hidden",
        "more.TFRECORD": "no_label",
        "loose.jpg": "no_label",
        "README.md": "other_file",
    }


@pytest.fixture
def flat(tmp_path, images) -> Path:
    (tmp_path / "flat").mkdir()
    for number, image in enumerate(images[:4] + images[12:16]):
        shutil.copy(image, tmp_path / "flat" / f"{number:02d}.jpg")
    return tmp_path / "flat"


@pytest.mark.parametrize("name", ["{n:02d}", "{n:02d}.jpg", "other/{n:02d}.jpg"])
def test_a_label_list_names_images_with_or_without_ending_and_folder(capsys, tmp_path, flat, name):
    lines = [f"{name.format(n=n)} {'dog' if n % 2 else 'cat'}" for n in reversed(range(8))]
    (tmp_path / "labels.txt").write_text("\n".join(lines))
    code, _, err = run(
        capsys, "convert", f"--input={flat}", f"--label_list={tmp_path}/labels.txt", f"--output={tmp_path}/o"
    )
    assert code == 0, err
    assert json.loads((tmp_path / "o/manifest.json").read_text())["classes"] == ["cat", "dog"]


def test_a_header_of_a_label_list_is_no_label(capsys, tmp_path, flat):
    (tmp_path / "labels.txt").write_text("label\n" + "cat\ndog\n" * 3 + "cat\n")
    flags = f"--input={flat}", f"--label_list={tmp_path}/labels.txt", f"--output={tmp_path}/o"
    assert "begins with 'label', which is the header of a column" in refused(capsys, "convert", *flags)


def test_names_before_numbers_are_refused(capsys, tmp_path, flat):
    (tmp_path / "names.txt").write_text("cat,2\ndog,0\nemu,1\n")
    (tmp_path / "in.csv").write_text("image,label\n" + "".join(f"flat/{n:02d}.jpg,{n % 3}\n" for n in range(8)))
    flags = f"--input={tmp_path}/in.csv", f"--label_names={tmp_path}/names.txt", f"--output={tmp_path}/o"
    assert "of NAME,NUMBER; write them as NUMBER,NAME" in refused(capsys, "convert", *flags)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", "a path is empty"),
        ("gs:/bucket/x", "'gs:/bucket/x' is not a URI; write gs://, or for a local folder ./gs:/bucket/x"),
        ("/", "overlap: one contains the other"),
    ],
)
def test_an_output_that_nobody_means_is_refused(capsys, few_digits, tmp_path, monkeypatch, output, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "convert", f"--input={few_digits}", f"--output={output}")
    assert [path.name for path in tmp_path.iterdir()] == [few_digits.name]


# Each list has nine times the one before: 3 * 10**19 values, if aliases were followed.
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 21))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mixup: 0.1\nmixup: 0.2\n", "'mixup' is there twice"),
        ("[" * 3000 + "]" * 3000, "cannot be read"),
        ("a: !!python/object/apply:os.system [x]", "cannot be read"),
        (BOMB, "there is no option 'a0'"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_one_line(tmp_path, text, said):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        read_recipe(str(tmp_path / "r.yaml"))
    assert "\n" not in str(error.value)


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


def copied(images: list[Path], root: Path, pattern: str) -> None:
    """Copies 8 images of two classes, the first three of each four as train."""
    for number, image in enumerate(images[:4] + images[12:16]):
        label, split = ("cat", "dog")[number // 4], ("val", "train")[number % 4 < 3]
        path = root / pattern.format(label=label, split=split, n=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, path)


@pytest.mark.parametrize("form", ["folder", "tar for each class", "zip"])
def test_splits_in_class_folders_are_read_as_splits(capsys, tmp_path, images, form):
    copied(images, tmp_path / "in", "{label}/{split}/{n}.jpg")
    source = tmp_path / "in"
    (source / "cat/notes.txt").write_text("about cats")
    (source / "dog/.thumbs").mkdir()
    shutil.copy(images[0], source / "dog/.thumbs/0.jpg")
    if form == "zip":
        source = Path(shutil.make_archive(str(tmp_path / "all"), "zip", source))
    elif form != "folder":
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
    said = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    assert "class folder 'cat' has 'train' and 'val' in it, which would be mixed" in said
    (tmp_path / place).unlink()
    said = refused(capsys, "convert", f"--input=train={tmp_path}/in", f"--output={tmp_path}/out")
    assert "class folder 'cat' has 'train' and 'val' in it, which would be mixed" in said


@pytest.mark.parametrize("form", ["folder", "tar", "tar with splits"])
def test_a_copy_of_the_classes_is_no_class(capsys, tmp_path, images, form):
    copied(images, tmp_path / "in", "{label}/{n}.jpg")
    copied(images, tmp_path / "copy", "{split}/{label}/{n}.jpg" if "splits" in form else "{label}/{n}.jpg")
    if form == "folder":
        shutil.copytree(tmp_path / "copy", tmp_path / "in/backup")
    else:
        shutil.make_archive(str(tmp_path / "in/backup"), "tar", tmp_path / "copy")
    convert = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    said = refused(capsys, *convert)
    if "splits" in form:
        assert "class folder 'backup' has 'train' and 'val' in it, which would be mixed" in said
        return
    assert "'backup' would be a class, but has folders of other classes in it, 'cat' and 'dog' (8 files" in said
    (tmp_path / "labels.txt").write_text("backup\ncat\ndog\n")
    assert run(capsys, *convert, f"--labels={tmp_path}/labels.txt")[0] == 0


@pytest.mark.parametrize("form", ["folder", "list"])
def test_images_without_labels_are_divided_as_asked(capsys, tmp_path, flat, form):
    (tmp_path / "list.csv").write_text("image\n" + "".join(f"flat/{path.name}\n" for path in sorted(flat.iterdir())))
    source = flat if form == "folder" else tmp_path / "list.csv"
    flags = f"--input={source}", f"--output={tmp_path}/out", "--unlabelled", "--splits=train=50%,test=50%"
    code, _, err = run(capsys, "convert", *flags)
    assert code == 0, err
    splits = read_manifest(str(tmp_path / "out")).splits
    assert splits.keys() == {"train", "test"}
    assert sum(split.num_examples for split in splits.values()) == 8


@pytest.mark.parametrize("content", ["", "\n \n"])
@pytest.mark.parametrize("flag", ["labels", "label_names"])
def test_a_file_of_no_names_is_no_file_of_names(capsys, tmp_path, flat, flag, content):
    lines = [f"flat/{path.name},{number % 2}" for number, path in enumerate(sorted(flat.iterdir()))]
    (tmp_path / "list.csv").write_text("\n".join(["image,label", *lines]) + "\n")
    (tmp_path / "names.txt").write_text(content)
    flags = f"--input={tmp_path}/list.csv", f"--output={tmp_path}/out", f"--{flag}={tmp_path}/names.txt"
    said = refused(capsys, "convert", *flags)
    assert "names.txt' has no name; it must have the name of a class in each line" in said


@pytest.mark.parametrize("lines", ["3,c\n1,a\n2,b\n", "2:c\n0:a\n1:b\n", "1 a\n2 b\n3 c\n"])
def test_numbers_in_front_of_labels_are_no_names(capsys, tmp_path, images, lines):
    with open(tmp_path / "train.tfrecord", "wb") as file:
        for number, image in enumerate(images[:9]):
            file.write(frame(serialize({"image/encoded": image.read_bytes(), "image/class/label": 1 + number % 3})))
    (tmp_path / "names.txt").write_text(lines)
    flags = (
        "--record=image=image/encoded,label=image/class/label",
        f"--labels={tmp_path}/names.txt",
        f"--output={tmp_path}/out",
    )
    said = refused(capsys, "convert", f"--input={tmp_path}/train.tfrecord", *flags)
    assert "the names in --labels begin with numbers, such as" in said
    assert "write only the names, one per line in the order of the numbers" in said


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
    assert "it is not clear which images are of which split" in refused(capsys, *convert, *flags)
    copied(images[4:], tmp_path / "in", more)
    convert = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    said = refused(capsys, *convert, *labelled(tmp_path / "in", how))
    assert "some images lie in 'train/' and 'val/', some lie in other folders or are given a split" in said


@pytest.mark.parametrize(
    "names", [("train", "dev"), ("train2017", "val2017"), ("training_set", "test_set"), (".", "val")]
)
@pytest.mark.parametrize("labels", [[], ["--unlabelled"]])
def test_folders_that_may_be_splits_are_never_mixed(capsys, tmp_path, images, names, labels):
    for label, chosen in (("cat", images[:4]), ("dog", images[12:16])):
        for number, image in enumerate(chosen):
            folder = tmp_path / "in" / label / names[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(image, folder / f"{number}.jpg")
    said = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *labels)
    assert "class folder 'cat' has " in said
    assert "in it, which would be mixed, as other files lie beside folders of splits" in said


def test_a_folder_of_a_split_around_those_of_splits_is_no_split_with_classes(capsys, tmp_path, images):
    copied(images, tmp_path / "in", "train/{split}/{label}/{n}.jpg")
    said = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    assert "folders of splits lie in folders of splits, such as 'train/" in said
