"""Layouts in which datasets are published, made small; the commands are those of the table in docs/conversion.md."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.options import Source
from support.inputs import listed, make
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


def ilsvrc(images: list[Path]) -> Counter[tuple[str, str, bytes]]:
    """The ids of ILSVRC are not in the order of the synsets."""
    expected, numbers = [], []
    Path("val").mkdir()
    for number, path in enumerate(images):
        synset = SYNSETS[number % 2]
        if number < 14:
            Path("train", synset).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, Path("train", synset))
        else:
            shutil.copy(path, f"val/ILSVRC2012_val_{number:08d}.JPEG")
            numbers.append(str(2 - number % 2))
        expected.append(("train" if number < 14 else "validation", synset, path.read_bytes()))
    Path("ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(numbers) + "\n")
    Path("synsets.txt").write_text("\n".join(reversed(SYNSETS)) + "\n")
    return Counter(expected)


def hugging_face_parquet(images: list[Path]) -> Counter[tuple[str, str, bytes]]:
    Path("dataset/data").mkdir(parents=True)
    names = ["tench", "goose"]
    declared = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}}}
    for split, paths in (("train", images[1:17]), ("test", images[:1] + images[17:])):
        cells = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
        table = pa.table({"image": cells, "label": [int(path.parent.name) for path in paths]})
        table = table.replace_schema_metadata({"huggingface": json.dumps(declared)})
        pq.write_table(table, f"dataset/data/{split}-00000-of-00001.parquet")
    Path("dataset/README.md").write_text("---\nlicense: mit\n---\n")
    return Counter(
        ("train" if 0 < number < 17 else "test", names[int(path.parent.name)], path.read_bytes())
        for number, path in enumerate(images)
    )


def webdataset(images: list[Path]) -> Counter[tuple[str, str, bytes]]:
    Path("shards").mkdir()
    Path("names.txt").write_text("tench\ngoose\n")
    expected = []
    for shard in ("train-000000", "train-000001", "val-000000"):
        with tarfile.open(f"shards/{shard}.tar", "w") as archive:
            for number, path in enumerate(images):
                if (number % 3) != ("train-000000", "train-000001", "val-000000").index(shard):
                    continue
                for ending, data in (("cls", path.parent.name.encode()), ("jpg", path.read_bytes())):
                    member = tarfile.TarInfo(f"{number:06d}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
                split = "train" if shard.startswith("train") else "validation"
                expected.append((split, ("tench", "goose")[int(path.parent.name)], path.read_bytes()))
    return Counter(expected)


def cats_and_dogs(images: list[Path]) -> Counter[tuple[str, str, bytes]]:
    Path("train").mkdir()
    for number, path in enumerate(images):
        shutil.copy(path, f"train/{('cat', 'dog')[number % 2]}.{number}.jpg")
    return Counter(("", ("cat", "dog")[number % 2], path.read_bytes()) for number, path in enumerate(images))


def flowers102(images: list[Path]) -> Counter[tuple[str, str, bytes]]:
    with tarfile.open("102flowers.tgz", "w:gz") as archive:
        for number, path in enumerate(images):
            archive.add(path, f"jpg/image_{number:05d}.jpg")
    Path("labels.txt").write_text("".join(f"{number % 7}\n" for number in range(len(images))))
    return Counter(("", str(number % 7), path.read_bytes()) for number, path in enumerate(images))


LAYOUTS = {
    "ILSVRC as published": ilsvrc,
    "Hugging Face Parquet": hugging_face_parquet,
    "WebDataset": webdataset,
    "Kaggle's cats and dogs": cats_and_dogs,
    "torchvision's Flowers102 and others": flowers102,
    "Kaggle's ImageNet": kaggle_imagenet,
    "Hugging Face imagefolder": hugging_face,
    "Kaggle's cassava": cassava,
    "Kaggle's dog breeds": dog_breeds,
    "Kaggle's Intel scenes": intel,
}
# What the command says beside its results; "./" is the working folder.
NOTES = {
    "Hugging Face imagefolder": ["./folder/metadata.csv: the columns 'text' are not stored"],
    "Hugging Face Parquet": [
        "./dataset: data/test-00000-of-00001.parquet as test, data/train-00000-of-00001.parquet as train",
        "not images, so only listed in rejected.jsonl: 1 .md",
    ],
    "WebDataset": ["./shards: train-000000.tar and 1 more as train, val-000000.tar as validation"],
}
COMMANDS = {
    layout: shlex.split(command)
    for layout, command in re.findall(r"^\| ([^:|]+): [^|]*\| `(convert [^`]*)` \|", PAGE.read_text(), re.MULTILINE)
}


def test_every_row_of_the_table_has_a_layout():
    assert COMMANDS.keys() == LAYOUTS.keys()


def stored(path: Path) -> Counter[tuple[str, str, bytes]]:
    """(split, class, JPEG) of every record."""
    records = Counter[tuple[str, str, bytes]]()
    for shard in path.glob("*.tfrecord"):
        with open(shard, "rb") as file:
            for _, payload in read_frames(file):
                record = decode(payload)
                records[shard.name.partition("-")[0], record.class_name, record.encoded] += 1
    return records


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_published_layout_is_stored_with_its_labels_and_splits(capsys, images, tmp_path, monkeypatch, layout):
    monkeypatch.chdir(tmp_path)
    expected, command = LAYOUTS[layout](images), COMMANDS[layout]
    code, _, err = run(capsys, *command)
    assert code == 0, err
    records = stored(tmp_path / command[-1].partition("=")[2])
    if not any(split for split, _, _ in expected):  # splits by hash
        records = Counter({("", label, data): count for (_, label, data), count in records.items()})
    assert records == expected
    assert err == "".join(f"{line}\n".replace("./", f"{tmp_path}/") for line in NOTES.get(layout, []))


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


@pytest.mark.long
def test_coco_and_voc_are_refused_and_the_recipes_make_a_list(capsys, images, tmp_path, monkeypatch):
    coco, voc = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[:2]
    (tmp_path / "coco/val2017").mkdir(parents=True)
    (tmp_path / "coco/annotations").mkdir()
    boxes = []
    for number, path in enumerate(images):
        shutil.copy(path, tmp_path / f"coco/val2017/{number}.jpg")
        if number:
            boxes.append({"image_id": number, "category_id": 17 + number % 2, "area": 9.5})
            boxes.append({"image_id": number, "category_id": 44, "area": 3.5})
    categories = [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}, {"id": 44, "name": "bottle"}]
    listed = [{"id": number, "file_name": f"{number}.jpg"} for number in range(len(images))]
    instances = {"images": listed, "annotations": boxes, "categories": categories}
    (tmp_path / "coco/annotations/instances_val2017.json").write_text(json.dumps(instances))
    monkeypatch.chdir(tmp_path / "coco")
    message = refused(capsys, "convert", "--input=.", f"--output={tmp_path}/out")
    assert "is in the layout of COCO, where an image has objects with boxes" in message
    shutil.copytree(".", "../unpacked/coco")
    message = refused(capsys, "convert", "--input=../unpacked", f"--output={tmp_path}/out")
    assert "is in the layout of COCO" in message
    exec(coco, {})
    assert run(capsys, "convert", "--input=val.csv", f"--output={tmp_path}/out")[0] == 0
    assert sorted(label for _, label, _ in stored(tmp_path / "out").elements()) == ["cat"] * 11 + ["dog"] * 12
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (tmp_path / "VOC2012" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "VOC2012")
    for number, path in enumerate(images):
        shutil.copy(path, f"JPEGImages/{number}.jpg")
        name = ("cat", "dog")[number % 2]
        Path(f"Annotations/{number}.xml").write_text(
            f"<annotation><filename>{number}.jpg</filename><object><name>{name}</name></object></annotation>"
        )
    Path("ImageSets/Main/train.txt").write_text("0\n")
    message = refused(capsys, "convert", "--input=.", f"--output={tmp_path}/voc")
    assert "is in the layout of Pascal VOC, where an image has objects with boxes; make a list" in message
    Path("../VOCdevkit").mkdir()
    for years in (["VOC2012"], ["VOC2012", "VOC2007"]):
        shutil.copytree(".", f"../VOCdevkit/{years[-1]}")
        message = refused(capsys, "convert", "--input=../VOCdevkit", f"--output={tmp_path}/voc")
        assert "VOCdevkit' is in the layout of Pascal VOC" in message
    exec(voc, {})
    assert run(capsys, "convert", "--input=voc.csv", f"--output={tmp_path}/voc")[0] == 0
    assert Counter(label for _, label, _ in stored(tmp_path / "voc").elements()) == {"cat": 12, "dog": 12}


def test_the_labels_of_open_images_become_sets(capsys, images, tmp_path, monkeypatch):
    recipe = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[2]
    monkeypatch.chdir(tmp_path)
    Path("train").mkdir()
    Path("class-descriptions.csv").write_text("/m/01,Cat\n/m/02,Dog\n/m/03,Sofa\n")
    lines, expected = ["ImageID,Source,LabelName,Confidence"], Counter[tuple[bytes, tuple[str, ...]]]()
    for number, path in enumerate(images):
        shutil.copy(path, f"train/{number:016x}.jpg")
        labels = {name: number >> bit & 1 for bit, name in enumerate(("/m/01", "/m/02", "/m/03"))}
        lines += [f"{number:016x},verification,{name},{value}" for name, value in labels.items()]
        classes = tuple(name for name, value in zip(("Cat", "Dog", "Sofa"), labels.values(), strict=True) if value)
        expected[path.read_bytes(), classes] += 1
    Path("oidv6-train-annotations-human-imagelabels.csv").write_text("\n".join(lines) + "\n")
    exec(recipe, {})
    command = re.search(r"jpeg2tpu (convert --input=train.jsonl .*)", PAGE.read_text())
    assert command
    assert run(capsys, *command[1].split())[0] == 0
    assert Counter((data, label) for _, label, data in stored(tmp_path / "open_images").elements()) == expected


def test_an_unknown_layout_is_refused_with_what_was_seen_and_the_closest_layouts(capsys, images, tmp_path):
    (tmp_path / "in/images").mkdir(parents=True)
    (tmp_path / "in/labels").mkdir()
    for number, path in enumerate(images):
        shutil.copy(path, tmp_path / f"in/images/{('cat', 'dog')[number % 2]}_{number}.jpg")
        (tmp_path / f"in/labels/{number}.txt").write_text("0 0.5 0.5 1 1\n")
    (tmp_path / "in/data.yaml").write_text("nc: 2\n")
    args = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--max_rejected=100%")
    code, _, err = run(capsys, *args)  # a line about labels/, which is no class, goes before the refusal
    *_, message = err.splitlines()
    assert code == 2
    assert (
        "has only one class, 'images'; a classifier needs at least 2; the closest layouts are images whose" in message
    )
    assert "with the class: --label_pattern='(cat|dog)' and images with their classes in a file" in message
    assert message.endswith("; it has images/*.jpg (24 files), labels/*.txt (24 files), *.yaml (1 file)")
    (tmp_path / "in/all.csv").write_text(f"name,y\n{images[0]},a\n")
    *_, message = run(capsys, *args)[2].splitlines()
    assert f"the closest layouts are a list of image,label: --input={tmp_path}/in/all.csv and " in message
    assert message.endswith(", …")


def test_a_folder_of_zips_is_refused_with_what_is_read(capsys, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("cats.zip", "dogs.zip"):
        (tmp_path / "in" / name).write_bytes(b"PK")
    message = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--max_rejected=100%")
    assert (
        f"the closest layouts are a .zip of class folders: --input={tmp_path}/in/cats.zip and a folder with a"
        in message
    )


@pytest.mark.long
def test_numbers_and_patterns_that_fit_nothing(capsys, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cats_and_dogs(images)
    args = ("convert", "--input=train", "--output=out")
    assert "must have one group, in parentheses, for the class; it has 0" in refused(
        capsys, *args, "--label_pattern=cat"
    )
    assert "is not a regular expression" in refused(capsys, *args, "--label_pattern=(cat")
    assert "--label_names is for numbers in lists" in refused(capsys, *args, "--label_names=x.txt")
    assert run(capsys, *args, "--label_pattern=(cat|do)", "--max_rejected=100%")[0] == 0
    assert {label for _, label, _ in stored(tmp_path / "out")} == {"cat", "do"}
    assert (
        run(
            capsys,
            "convert",
            "--input=train",
            "--output=b",
            "--label_pattern=([ac]..|d..[.][123])",
            "--max_rejected=90%",
        )[0]
        == 0
    )
    reasons = {json.loads(line)["reason"] for line in (tmp_path / "b" / "rejected.jsonl").read_text().splitlines()}
    assert reasons == {"no_label"}
    lines = [f"train/{('cat', 'dog')[number % 2]}.{number}.jpg,{number % 3}" for number in range(len(images))]
    (tmp_path / "list.csv").write_text("image,label\n" + "\n".join(lines) + "\n")
    (tmp_path / "names.txt").write_text("a\nb\n")
    command = ("convert", "--input=list.csv", "--output=c", "--label_names=names.txt")
    message = refused(capsys, *command)
    assert "the labels are the numbers 0 to 2, for 2 names in" in message
    assert "or write its lines as NUMBER,NAME" in message
    (tmp_path / "names.txt").write_text("0,zero\n2,two\n1,one and a half\n")
    assert run(capsys, *command)[0] == 0
    assert {label for _, label, _ in stored(tmp_path / "c")} == {"zero", "two", "one and a half"}
    (tmp_path / "names.txt").write_text("0,zero\n0,two\n")
    assert "names a number twice" in refused(capsys, *command)


def test_mistakes_are_answered_with_one_line(capsys, images, tmp_path):
    (tmp_path / "list.csv").write_text(f"id,kind\n{images[0]},a\n")
    args = ("convert", f"--input={tmp_path}/list.csv", f"--output={tmp_path}/out")
    assert "or name its columns with --image_column and --label_column" in refused(capsys, *args)
    assert "has no column 'label', only 'id', 'kind'; name one with --label_column" in refused(
        capsys, *args, "--image_column=id"
    )
    assert "has no column 'Id', only" in refused(capsys, *args, "--image_column=Id", "--label_column=kind")
    message = refused(capsys, *args, "--image_column=id", "--label_column=kind", f"--image_folder={tmp_path}/none")
    assert f"the folder of images '{tmp_path}/none' does not exist" in message
    message = refused(capsys, "convert", f"--input={tmp_path}", f"--output={tmp_path}/out", "--image_suffix=.jpg")
    assert "--image_suffix is for lists, but no --input is a .csv, .tsv or .jsonl" in message


def test_a_shard_is_repaired_from_images_in_another_folder(capsys, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dog_breeds(images)
    assert run(capsys, *COMMANDS["Kaggle's dog breeds"])[0] == 0
    shard = next((tmp_path / "dogs").glob("train-*.tfrecord"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    code, out, _ = run(capsys, "repair", tmp_path / "dogs")
    assert (code, "no problems found" in out) == (0, True)
    assert shard.read_bytes() == content


def test_kaggle_names_the_images_of_its_training_set_without_their_folder(tmp_path):
    make(tmp_path, "train/n01440764/n01440764_10026.JPEG", "train/n02007558/n02007558_7.JPEG")
    (tmp_path / "LOC_train_solution.csv").write_text(
        "ImageId,PredictionString\n"
        "n01440764_10026,n01440764 1 2 3 4 \n"
        "n02007558_7,n02007558 1 2 3 4 n02007558 5 6 7 8 \n"
    )
    rows = listed(Source(str(tmp_path / "LOC_train_solution.csv"), image_folder=str(tmp_path / "train")))
    assert [(row.key, row.label, row.reason) for row in rows] == [
        ("n01440764/n01440764_10026.JPEG", "n01440764", ""),
        ("n02007558/n02007558_7.JPEG", "n02007558", ""),
    ]


@pytest.mark.parametrize("flags", [{}, {"image_column": "ImageID", "label_column": "LabelName"}])
def test_the_csv_of_open_images_is_refused_with_what_it_is(tmp_path, flags):
    (tmp_path / "in.csv").write_text("ImageID,Source,LabelName,Confidence\n1,verification,/m/01,0\n")
    with pytest.raises(ValueError, match=r"as Open Images publishes them.*docs/conversion.md, “Open Images”"):
        listed(Source(str(tmp_path / "in.csv"), **flags))


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("train-00000-of-00001", "TFRecords or Parquet of another program: --record=imagenet, tfds, flowers"),
        ("x-train.tfrecord", "TFRecords or Parquet of another program: --record=imagenet, tfds, flowers"),
        ("train-000000.tar", "WebDataset: --record=webdataset"),
    ],
)
def test_files_of_records_without_record_are_refused_with_how_to_read_them(capsys, images, tmp_path, name, layout):
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in" / name, "w") as archive:
        archive.add(images[0], "0.jpg")
    message = refused(capsys, "convert", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}")
    assert f"the closest layouts are {layout}" in message
