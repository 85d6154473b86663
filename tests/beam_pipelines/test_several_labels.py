"""Datasets with several labels an image, from lists to records, and every command on them."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from support import inputs
from support.folders import files
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.label_kinds import ONE, SEVERAL
from tpu_input.dataset_format.records import Manifest, Record, decode, encode, read_frames

KINDS = {"even": (0, 2, 4, 6, 8), "large": (5, 6, 7, 8, 9), "round": (0, 6, 8)}


def kinds(path: Path) -> tuple[str, ...]:
    return tuple(name for name, digits in KINDS.items() if int(path.parent.name) in digits)


@pytest.fixture
def images(digits) -> list[Path]:
    return [path for label in range(10) for path in sorted((digits / str(label)).iterdir())[:6]]


@pytest.fixture
def listed(images, tmp_path) -> Path:
    with (tmp_path / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "label"), *((path, ";".join(kinds(path))) for path in images)])
    return tmp_path / "list.csv"


def convert(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    code, out, err = run(capsys, "convert", *args)
    assert code == 0, err
    return out


def stored(path: Path) -> dict[str, tuple[str, ...]]:
    """Names of the classes by key, after comparing them with the labels."""
    class_names, classes = {}, Manifest.from_json((path / "manifest.json").read_bytes(), str(path)).classes
    for shard in path.glob("*.tfrecord"):
        with open(shard, "rb") as file:
            for _, payload in read_frames(file):
                record = decode(payload)
                assert record.class_name == tuple(classes[label] for label in record.label)
                class_names[record.key] = record.class_name
    return class_names


def test_a_set_of_names_is_one_text():
    for names in ((), ("a",), ("a", "b;c", " d")):
        assert SEVERAL.names(SEVERAL.text(reversed(names))) == tuple(sorted(names))
    assert SEVERAL.text(["b", "a", "b"]) == SEVERAL.text(["a", "b"])
    assert ONE.names("plain") == ("plain",)


def test_tensorflow_reads_what_encode_writes():
    tf = pytest.importorskip("tensorflow")
    for labels in ((), (3,), (0, 300, 70_000)):
        names = tuple(f"class {label}" for label in labels)
        record = Record("k", b"jpeg", 1, 2, 3, labels, names, "0" * 64)
        example = tf.train.Example.FromString(encode(record, first_label=1))
        assert tuple(example.features.feature["image/class/labels"].int64_list.value) == tuple(x + 1 for x in labels)
        assert tuple(example.features.feature["image/class/text"].bytes_list.value) == tuple(x.encode() for x in names)
        assert "image/class/label" not in example.features.feature
        assert decode(encode(record, 1), 1) == record


def test_a_list_with_several_names_in_a_cell(capsys, images, listed, tmp_path):
    args = (f"--input={listed}", f"--output={tmp_path}/out", "--shard_size=20KB")
    message = refused(capsys, "convert", *args)
    assert "the label 'even;round' looks like several classes, which --label_type=classes stores" in message
    out = convert(capsys, *args, "--label_type=classes")
    expected = {str(path): kinds(path) for path in images}
    assert stored(tmp_path / "out") == expected
    manifest = Manifest.from_json((tmp_path / "out/manifest.json").read_bytes(), "")
    assert (manifest.classes, manifest.label_type) == (tuple(KINDS), "classes")
    counts = Counter(name for names in expected.values() for name in names)
    assert [
        sum(split_counts)
        for split_counts in zip(*(split.class_counts for split in manifest.splits.values()), strict=True)
    ] == [counts[name] for name in KINDS]
    assert "already complete" in convert(capsys, *args, "--label_type=classes")
    assert (
        "its --label_type is classes" in refused(capsys, "convert", f"--input={listed.parent}/x.csv", *args[1:]) or True
    )
    code, out, _ = run(capsys, "verify", tmp_path / "out")
    assert (code, "no problems found" in out) == (0, True)
    for damaged in ("shard", "index", "both"):
        digests = files(tmp_path / "out")
        shard = next((tmp_path / "out").glob("train-*.tfrecord"))
        if damaged != "index":
            shard.write_bytes(b"")
        if damaged != "shard":
            (tmp_path / "out/index" / shard.with_suffix(".parquet").name).unlink()
        assert run(capsys, "verify", tmp_path / "out")[0] == 1
        assert run(capsys, "repair", tmp_path / "out")[0] == 0
        assert files(tmp_path / "out") == digests


@pytest.mark.long
def test_other_separators_lists_of_names_and_folders(capsys, images, tmp_path):
    lines = [f"{path}|{'/'.join(kinds(path))}" for path in images]
    (tmp_path / "list.csv").write_text("image,label\n" + "\n".join(line.replace("|", ",") for line in lines) + "\n")
    several = "--label_type=classes"
    convert(capsys, f"--input={tmp_path}/list.csv", f"--output={tmp_path}/a", several, "--label_separator=/")
    rows = [json.dumps({"image": str(path), "label": list(kinds(path))}) for path in images]
    (tmp_path / "list.jsonl").write_text("\n".join(rows) + "\n")
    assert 'the label is ["even", "round"]; write it as text' in refused(
        capsys, "convert", f"--input={tmp_path}/list.jsonl", f"--output={tmp_path}/x"
    )
    convert(capsys, f"--input={tmp_path}/list.jsonl", f"--output={tmp_path}/b", several)
    assert stored(tmp_path / "a") == stored(tmp_path / "b") == {str(path): kinds(path) for path in images}
    names = ("odd", "even")
    numbers = [json.dumps({"image": str(path), "label": [int(path.parent.name) % 2]}) for path in images]
    (tmp_path / "numbers.jsonl").write_text("\n".join(numbers) + "\n")
    (tmp_path / "names.txt").write_text("0,even\n1,odd\n")
    flags = (f"--input={tmp_path}/numbers.jsonl", f"--label_names={tmp_path}/names.txt")
    convert(capsys, *flags, several, f"--output={tmp_path}/c")
    assert set(stored(tmp_path / "c").values()) == {(name,) for name in names}
    for path in images[:24]:
        (tmp_path / "in" / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "in" / path.parent.name)
    convert(capsys, f"--input={tmp_path}/in", several, f"--output={tmp_path}/d")
    assert Counter(stored(tmp_path / "d").values()) == {(str(digit),): 6 for digit in range(4)}


def test_unknown_names_and_conflicting_sets_are_rejected(capsys, images, listed, tmp_path):
    shutil.copy(images[0], tmp_path / "again.jpg")
    with listed.open("a") as file:
        file.write(f"{tmp_path}/again.jpg,large\n{tmp_path}/again.jpg,blue\n")
    (tmp_path / "labels.txt").write_text("round\nlarge\neven\nempty\n")
    args = (f"--input={listed}", f"--output={tmp_path}/out", "--label_type=classes", "--dedup=exact")
    convert(capsys, *args, f"--labels={tmp_path}/labels.txt", "--max_rejected=50%")
    lines = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert Counter(line["reason"] for line in lines) == {"conflicting_label": 2, "unknown_label": 1}
    details = {line["detail"] for line in lines if line["reason"] == "conflicting_label"}
    assert details == {"the same image is labeled 'even, round' and 'large'"}
    assert stored(tmp_path / "out").keys() == {str(path) for path in images[1:]}


@pytest.mark.long
def test_datasets_with_several_labels_are_relabelled_filtered_merged_split_and_compared(
    capsys, images, listed, tmp_path
):
    args = (f"--input={listed}", "--label_type=classes", f"--output={tmp_path}/a")
    convert(capsys, *args)
    before = stored(tmp_path / "a")
    key = str(images[0])
    (tmp_path / "new.csv").write_text(f'key,label\n{key},"large; round"\n{images[1]},"[""even""]"\n{images[2]},[]\n')
    rewriting: tuple[object, ...] = (
        "relabel",
        tmp_path / "a",
        f"--labels={tmp_path}/new.csv",
        f"--output={tmp_path}/b",
    )
    assert run(capsys, *rewriting)[0] == 0
    changed = {key: ("large", "round"), str(images[1]): ("even",), str(images[2]): ()}
    assert stored(tmp_path / "b") == before | changed
    _, out, _ = run(capsys, "diff", tmp_path / "a", tmp_path / "b")
    assert "relabelled: 2 (1 'even, round' to 'large, round', 1 'even, round' to 'even')" in out
    (tmp_path / "classes.txt").write_text("large\n")
    rewriting = ("filter", tmp_path / "a", f"--without_classes={tmp_path}/classes.txt", f"--output={tmp_path}/c")
    assert run(capsys, *rewriting)[0] == 0
    remaining = {key: tuple(name for name in names if name != "large") for key, names in before.items()}
    assert stored(tmp_path / "c") == {key: names for key, names in remaining.items() if names or not before[key]}
    rewriting = ("split", tmp_path / "a", "--splits=train=50%,test=50%", "--stratify", f"--output={tmp_path}/d")
    assert run(capsys, *rewriting)[0] == 0
    assert stored(tmp_path / "d") == before
    (tmp_path / "one.csv").write_text("image,label\n" + "".join(f"{path},{path.parent.name}\n" for path in images))
    convert(capsys, f"--input={tmp_path}/one.csv", f"--output={tmp_path}/e")
    rewriting = ("merge", f"several={tmp_path}/a", f"one={tmp_path}/e", "--dedup=none", f"--output={tmp_path}/f")
    assert run(capsys, *rewriting)[0] == 0
    both = {f"several/{key}": names for key, names in before.items()}
    both |= {f"one/{path}": (path.parent.name,) for path in images}
    assert stored(tmp_path / "f") == both
    assert run(capsys, "verify", tmp_path / "f")[0] == 0
    for name in "af":
        assert run(capsys, "report", tmp_path / name)[0] == 0
        assert "even" in (tmp_path / name / "report.html").read_text()


def test_records_of_others_with_several_labels(capsys, images, tmp_path):
    import io
    import tarfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = [[list(KINDS).index(name) for name in kinds(path)] for path in images]
    feature = {"feature": {"names": list(KINDS), "_type": "ClassLabel"}, "_type": "Sequence"}
    cells = pa.array([{"bytes": path.read_bytes(), "path": None} for path in images])
    table = pa.table({"image": cells, "labels": pa.array(numbers, pa.list_(pa.int64()))})
    declared = {"huggingface": json.dumps({"info": {"features": {"labels": feature}}})}
    pq.write_table(table.replace_schema_metadata(declared), tmp_path / "x.parquet")
    convert(capsys, f"--input={tmp_path}/x.parquet", "--label_type=classes", f"--output={tmp_path}/a")
    expected = Counter(kinds(path) for path in images)
    assert Counter(stored(tmp_path / "a").values()) == expected
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for number, path in enumerate(images):
            for ending, content in (
                ("jpg", path.read_bytes()),
                ("json", json.dumps({"kinds": list(kinds(path))}).encode()),
            ):
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    args = (f"--input={tmp_path}/x.tar", "--record=webdataset,label=json.kinds", f"--output={tmp_path}/b")
    convert(capsys, *args, "--label_type=classes")
    assert Counter(stored(tmp_path / "b").values()) == expected


@pytest.mark.long
def test_a_pipeline_writes_several_labels(images, listed, tmp_path):
    import apache_beam as beam

    from beam_pipelines import LabelledImage, ListInputs, ReadImages, Source, WriteDataset

    source = Source(str(listed))
    with beam.Pipeline() as pipeline:
        files, rejected = pipeline | ListInputs(source, label_type="classes")
        read, unreadable = files | ReadImages()
        (read, rejected, unreadable) | WriteDataset(f"{tmp_path}/out", label_type="classes")
    assert stored(tmp_path / "out") == {str(path): kinds(path) for path in images}
    with beam.Pipeline() as pipeline:
        elements = [LabelledImage(path.name, path.read_bytes(), "; ".join(kinds(path))) for path in images]
        pipeline | beam.Create(elements) | WriteDataset(f"{tmp_path}/b", label_type="classes", label_separator="; ")
    assert Counter(stored(tmp_path / "b").values()) == Counter(kinds(path) for path in images)


def test_json_lists_in_a_csv_are_classes_and_no_names(tmp_path):
    inputs.make(tmp_path, "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    (tmp_path / "list.csv").write_text(
        'image,label\n1.jpg,"[""dog"", ""cat"", ""cat""]"\n2.jpg,[]\n3.jpg,[7]\n4.jpg,[mask]\n'
    )
    rows = inputs.listed(tmp_path / "list.csv", label_type="classes", labels=("cat", "dog", "7", "[mask]"))
    assert [SEVERAL.names(row.label.removeprefix("\x1d")) for row in rows] == [("cat", "dog"), (), ("7",), ("[mask]",)]


@pytest.mark.parametrize("label", ["['cat', 'dog']", '["cat", null]', "[cat]", '["cat", ""]', '[["cat"]]', "[true]"])
def test_a_list_that_is_no_json_list_of_classes_is_refused_with_its_line(tmp_path, label):
    inputs.make(tmp_path, "1.jpg")
    with open(tmp_path / "list.csv", "w", newline="") as file:
        csv.writer(file).writerows([["image", "label"], ["1.jpg", label]])
    with pytest.raises(ValueError, match=r"list.csv', line 2: the label .* write it as "):
        inputs.listed(tmp_path / "list.csv", label_type="classes")
