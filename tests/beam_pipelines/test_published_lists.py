"""Layouts in which datasets are published, made small; the commands are those of the table in docs/conversion.md."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path

import pytest

from support.pipelines_commands import refused, run
from tpu_input.dataset_format.records import decode, read_frames

PAGE = Path(__file__).parents[2] / "docs" / "conversion.md"
SYNSETS = ("n01440764", "n02017213")


@pytest.fixture
def images(digits) -> list[Path]:
    return [path for label in "01" for path in sorted((digits / label).iterdir())[:12]]


def kaggle_imagenet(images: list[Path]) -> Counter[tuple[str, str, bytes]]:
    data = Path("ILSVRC/Data/CLS-LOC")
    (data / "val").mkdir(parents=True)
    expected = []
    lines = ["ImageId,PredictionString"]
    for number, path in enumerate(images):
        synset = SYNSETS[number % 2]
        if number < 14:
            (data / "train" / synset).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, data / "train" / synset / f"{synset}_{number}.JPEG")
        else:
            name = f"ILSVRC2012_val_{number:08d}"
            shutil.copy(path, data / "val" / f"{name}.JPEG")
            boxes = [f"{synset} 1 2 30 40"] * (1 + number % 3)
            lines.append(f"{name},{' '.join(boxes)} ")
        expected.append(("train" if number < 14 else "validation", synset, path.read_bytes()))
    Path("LOC_val_solution.csv").write_text("\n".join(lines) + "\n")
    return Counter(expected)


def hugging_face(images: list[Path]) -> Counter[tuple[str, str, bytes]]:
    Path("folder/a").mkdir(parents=True)
    lines = ["file_name,text,label"]
    for number, path in enumerate(images):
        shutil.copy(path, f"folder/a/{number}.jpg")
        lines.append(f'a/{number}.jpg,"a caption, quoted",{path.parent.name}')
    Path("folder/metadata.csv").write_text("\n".join(lines) + "\n")
    return Counter(("", path.parent.name, path.read_bytes()) for path in images)


def cassava(images: list[Path]) -> Counter[tuple[str, str, bytes]]:
    Path("train_images").mkdir()
    lines = ["image_id,label"]
    for number, path in enumerate(images):
        shutil.copy(path, f"train_images/{number}.jpg")
        lines.append(f"{number}.jpg,{number % 5}")
    Path("train.csv").write_text("\n".join(lines) + "\n")
    return Counter(("", str(number % 5), path.read_bytes()) for number, path in enumerate(images))


def dog_breeds(images: list[Path]) -> Counter[tuple[str, str, bytes]]:
    Path("train").mkdir()
    lines = ["id,breed"]
    for number, path in enumerate(images):
        shutil.copy(path, f"train/{number:032x}.jpg")
        lines.append(f"{number:032x},{'boston_bull' if number % 2 else 'dingo'}")
    Path("labels.csv").write_text("\n".join(lines) + "\n")
    return Counter(
        ("", "boston_bull" if number % 2 else "dingo", path.read_bytes()) for number, path in enumerate(images)
    )


def intel(images: list[Path]) -> Counter[tuple[str, str, bytes]]:
    expected = []
    for number, path in enumerate(images):
        split, label = ("train", "test")[number % 3 == 0], ("sea", "street")[number % 2]
        folder = Path(f"seg_{split}/seg_{split}/{label}")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
        expected.append((split, label, path.read_bytes()))
    return Counter(expected)


LAYOUTS = {
    "Kaggle's ImageNet": kaggle_imagenet,
    "Hugging Face imagefolder": hugging_face,
    "Kaggle's cassava": cassava,
    "Kaggle's dog breeds": dog_breeds,
    "Kaggle's Intel scenes": intel,
}
COMMANDS = {
    layout: shlex.split(command)
    for layout, command in re.findall(r"^\| ([^:|]+): [^|]*\| `(convert [^`]*)` \|", PAGE.read_text(), re.MULTILINE)
}


def test_every_row_of_the_table_has_a_layout():
    assert COMMANDS.keys() == LAYOUTS.keys()


def stored(path: Path) -> Counter[tuple[str, str, bytes]]:
    """(split, class, JPEG) of every record."""
    found = Counter[tuple[str, str, bytes]]()
    for shard in path.glob("*.tfrecord"):
        with open(shard, "rb") as file:
            for _, payload in read_frames(file):
                record = decode(payload)
                found[shard.name.partition("-")[0], record.class_name, record.encoded] += 1
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_published_layout_is_stored_with_its_labels_and_splits(capsys, images, tmp_path, monkeypatch, layout):
    monkeypatch.chdir(tmp_path)
    expected, command = LAYOUTS[layout](images), COMMANDS[layout]
    code, _, err = run(capsys, *command)
    assert code == 0, err
    found = stored(tmp_path / command[-1].partition("=")[2])
    if not any(split for split, _, _ in expected):  # splits by hash
        found = Counter({("", label, data): count for (_, label, data), count in found.items()})
    assert found == expected
    said = f"{tmp_path}/folder/metadata.csv: the columns 'text' are not stored\n" if "folder" in command[1] else ""
    assert err == said


def test_a_line_of_kaggle_s_imagenet_with_two_synsets_is_rejected(capsys, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kaggle_imagenet(images)
    lines = Path("LOC_val_solution.csv").read_text()
    Path("LOC_val_solution.csv").write_text(
        lines + f"ILSVRC2012_val_00000014,{SYNSETS[0]} 1 2 3 4 {SYNSETS[1]} 1 2 3 4\n"
    )
    assert run(capsys, *COMMANDS["Kaggle's ImageNet"], "--max_rejected=10%")[0] == 0
    [line] = (tmp_path / "imagenet" / "rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["reason"] == "bad_line"
    assert "names the synsets n01440764, n02017213" in json.loads(line)["detail"]


@pytest.mark.parametrize(("name", "separator"), [("list.tsv", "\t"), ("list.csv", ";"), ("list.csv", "\t")])
def test_tabs_and_semicolons(capsys, images, tmp_path, name, separator):
    lines = [separator.join(("image", "label", "split"))]
    lines += [separator.join((str(path), f"a, {path.parent.name}", "train")) for path in images]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    assert run(capsys, "convert", f"--input={tmp_path}/{name}", f"--output={tmp_path}/out")[0] == 0
    assert stored(tmp_path / "out") == Counter(
        ("train", f"a, {path.parent.name}", path.read_bytes()) for path in images
    )


def test_json_lines_with_other_fields(capsys, images, tmp_path):
    lines = [
        json.dumps({"file_name": str(path), "label": path.parent.name, "box": [1, 2], "split": "train"})
        for path in images
    ]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    args = (f"--input={tmp_path}/metadata.jsonl", f"--output={tmp_path}/out")
    assert "unknown field 'file_name'" in refused(capsys, "convert", *args)
    code, _, err = run(capsys, "convert", *args, "--image_column=file_name")
    assert (code, err) == (0, f"{tmp_path}/metadata.jsonl: the columns 'box' are not stored\n")
    assert stored(tmp_path / "out") == Counter(("train", path.parent.name, path.read_bytes()) for path in images)


def test_mistakes_are_answered_with_one_line(capsys, images, tmp_path):
    (tmp_path / "list.csv").write_text(f"id,kind\n{images[0]},a\n")
    args = ("convert", f"--input={tmp_path}/list.csv", f"--output={tmp_path}/out")
    assert "or name its columns with --image_column and --label_column" in refused(capsys, *args)
    assert "has no column 'label', only 'id', 'kind'; name one with --label_column" in refused(
        capsys, *args, "--image_column=id"
    )
    assert "has no column 'Id', only" in refused(capsys, *args, "--image_column=Id", "--label_column=kind")
    said = refused(capsys, *args, "--image_column=id", "--label_column=kind", f"--image_folder={tmp_path}/none")
    assert f"the folder of images '{tmp_path}/none' does not exist" in said
    said = refused(capsys, "convert", f"--input={tmp_path}", f"--output={tmp_path}/out", "--image_suffix=.jpg")
    assert "--image_suffix is for lists, but no --input is a .csv, .tsv or .jsonl" in said


def test_a_shard_is_repaired_from_images_in_another_folder(capsys, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dog_breeds(images)
    assert run(capsys, *COMMANDS["Kaggle's dog breeds"])[0] == 0
    shard = next((tmp_path / "dogs").glob("train-*.tfrecord"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    code, out, _ = run(capsys, "repair", tmp_path / "dogs")
    assert (code, "no problems found" in out) == (0, True)
    assert shard.read_bytes() == whole
