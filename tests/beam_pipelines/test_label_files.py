"""Files of labels and of class names that are handed in beside images: each mistake is one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support.pipelines_commands import refused, run
from tpu_input import read_manifest
from tpu_input.dataset_format.tfrecord import frame, serialize


@pytest.fixture
def images(few_digits) -> list[Path]:
    return sorted(few_digits.glob("[01]/*"))


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


@pytest.mark.parametrize("name", ["{n}.jpg", "frame_{n}_b.jpg", "a{n}/0.jpg"])
def test_labels_that_depend_on_the_order_of_numbers_in_names_are_refused(capsys, tmp_path, images, name):
    for number, image in enumerate(images[:12], 1):
        (path := tmp_path / "in" / name.format(n=number)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, path)
    (tmp_path / "labels.txt").write_text("cat\n" * 6 + "dog\n" * 6)
    flags = f"--input={tmp_path}/in", f"--label_list={tmp_path}/labels.txt", f"--output={tmp_path}/o"
    message = refused(capsys, "convert", *flags)
    assert "in the order of text" in message
    assert f"'{name.format(n=10)} cat'" in message
    (tmp_path / "labels.txt").write_text(
        "".join(f"{name.format(n=n)} {'cat' if n < 7 else 'dog'}\n" for n in range(1, 13))
    )
    assert run(capsys, "convert", *flags)[0] == 0


@pytest.mark.parametrize(
    "names", [[f"{n:02}.jpg" for n in range(12)], ["1a23.jpg", "12a3.jpg", "9f10.jpg", "10f9.jpg"]]
)
def test_labels_in_the_order_of_names_of_one_length_are_read(capsys, tmp_path, images, names):
    (tmp_path / "in").mkdir()
    for image, name in zip(images, names, strict=False):
        shutil.copy(image, tmp_path / "in" / name)
    (tmp_path / "labels.txt").write_text("".join(f"class-{name[:-4]}\n" for name in sorted(names)))
    flags = f"--input={tmp_path}/in", f"--label_list={tmp_path}/labels.txt", f"--output={tmp_path}/o"
    assert run(capsys, "convert", *flags)[0] == 0
    index = [row for path in (tmp_path / "o/index").iterdir() for row in pq.read_table(path).to_pylist()]
    classes = json.loads((tmp_path / "o/manifest.json").read_text())["classes"]
    assert {row["key"]: classes[row["label"]] for row in index} == {name: f"class-{name[:-4]}" for name in names}


@pytest.mark.parametrize("kind", ["folders", "list"])
def test_names_that_may_not_be_meant_as_classes_of_their_own_are_said(capsys, tmp_path, images, kind):
    names = ["Cat", "cat", "01", "1", "NA", "dog b", "dog_b", "emu"]
    lines = ["image,label"]
    for image, name in zip(images, names, strict=False):
        (path := tmp_path / "in" / name / "0.jpg").parent.mkdir(parents=True)
        shutil.copy(image, path)
        lines.append(f"in/{name}/0.jpg,{name}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    source = tmp_path / ("in" if kind == "folders" else "list.csv")
    _, _, err = run(capsys, "convert", f"--input={source}", f"--output={tmp_path}/o", "--splits=train=100%")
    assert "white space or form of a number: '01' and '1', 'Cat' and 'cat', 'dog b' and 'dog_b'; if" in err
    assert "'NA' is a class, as any other name" in err


def test_a_split_whose_name_resembles_another_is_said(capsys, tmp_path, flat):
    lines = [f"flat/{path.name},{n % 2},{'val' if n < 2 else 'trian'}" for n, path in enumerate(sorted(flat.iterdir()))]
    (tmp_path / "list.csv").write_text("\n".join(["image,label,split", *lines]))
    _, _, err = run(capsys, "convert", f"--input={tmp_path}/list.csv", f"--output={tmp_path}/o")
    assert "the split 'trian' is a split of its own; if 'train' is meant" in err


def test_names_before_numbers_are_refused(capsys, tmp_path, flat):
    (tmp_path / "names.txt").write_text("cat,2\ndog,0\nemu,1\n")
    (tmp_path / "in.csv").write_text("image,label\n" + "".join(f"flat/{n:02d}.jpg,{n % 3}\n" for n in range(8)))
    flags = f"--input={tmp_path}/in.csv", f"--label_names={tmp_path}/names.txt", f"--output={tmp_path}/o"
    assert "of NAME,NUMBER; write them as NUMBER,NAME" in refused(capsys, "convert", *flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--unlabelled", "--label_type=classes"], "--unlabelled stores no labels, but --label_type=classes does"),
        (["--label_type=class", "--unlabelled"], "--unlabelled stores no labels, but --label_type=class does"),
        (["--unlabelled", "--labels=NAMES"], "labels names classes, but the images are stored without labels"),
        (["--label_type=none", "--stratify"], "stratify divides the images of each class, but"),
    ],
)
def test_what_needs_labels_contradicts_images_without(capsys, tmp_path, flat, flags, message):
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    flags = [flag.replace("NAMES", f"{tmp_path}/names.txt") for flag in flags]
    assert message in refused(capsys, "convert", f"--input={flat}", f"--output={tmp_path}/out", *flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["", "\n \n"])
@pytest.mark.parametrize("flag", ["labels", "label_names"])
def test_a_file_of_no_names_is_no_file_of_names(capsys, tmp_path, flat, flag, content):
    lines = [f"flat/{path.name},{number % 2}" for number, path in enumerate(sorted(flat.iterdir()))]
    (tmp_path / "list.csv").write_text("\n".join(["image,label", *lines]) + "\n")
    (tmp_path / "names.txt").write_text(content)
    flags = f"--input={tmp_path}/list.csv", f"--output={tmp_path}/out", f"--{flag}={tmp_path}/names.txt"
    message = refused(capsys, "convert", *flags)
    assert "names.txt' has no name; it must have the name of a class in each line" in message


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
    message = refused(capsys, "convert", f"--input={tmp_path}/train.tfrecord", *flags)
    assert "the names in --labels begin with numbers, such as" in message
    assert "write only the names, one per line in the order of the numbers" in message


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
