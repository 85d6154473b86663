"""Further features of records: from lists, Parquet and WebDataset's JSON to batches, and through rewriting."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import tarfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.options import Source
from support.folders import files
from support.inputs import listed, make
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.records import Manifest, Record, decode, encode, frame, read_frames
from tpu_input.dataset_format.tfrecord import Example

FEATURE = "--feature=age:float,box:float[4],caption:string,year:int,tags:string[2]"


@pytest.fixture
def images(digits) -> list[Path]:
    return [sorted((digits / label).iterdir())[number] for number in range(10) for label in "012"]


def values(number: int) -> dict[str, object]:
    return {
        "age": number / 4,
        "box": [number, 1.5, 2, -3e-3],
        "caption": f"a, {number} ü",
        "year": 2000 + number,
        "tags": [str(number), "x"],
    }


def expected(number: int) -> dict[str, tuple[object, ...]]:
    single = as_float32(-3e-3)
    return {
        "age": (number / 4,),
        "box": (float(number), 1.5, 2.0, single),
        "caption": (f"a, {number} ü",),
        "year": (2000 + number,),
        "tags": (str(number), "x"),
    }


def as_float32(value: float) -> float:
    import struct

    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def stored(path: Path) -> dict[bytes, dict[str, tuple[object, ...]]]:
    """Features by image."""
    features_by_image = {}
    for shard in path.glob("*.tfrecord"):
        with open(shard, "rb") as file:
            for _, payload in read_frames(file):
                record = decode(payload)
                features_by_image[record.encoded] = record.features
    return features_by_image


def write_csv(path: Path, images: list[Path], rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "label", "age", "box", "caption", "year", "tags"])
        for image, row in zip(images, rows, strict=True):
            box = row["box"]
            text = " ".join(map(str, box)) if isinstance(box, list) else box
            tags = json.dumps(row["tags"]) if isinstance(row["tags"], list) else row["tags"]
            table.writerow([image, image.parent.name, row["age"], text, row["caption"], row["year"], tags])


def test_tensorflow_reads_what_encode_writes():
    tf = pytest.importorskip("tensorflow")
    features = {"a": (1.5, -0.25), "b": (2**40, -1), "c": ("ü", "")}
    record = Record("k", b"jpeg", 1, 2, 3, 4, "five", "0" * 64, features)
    example = tf.train.Example.FromString(encode(record))
    assert list(example.features.feature["a"].float_list.value) == [1.5, -0.25]
    assert list(example.features.feature["b"].int64_list.value) == [2**40, -1]
    assert list(example.features.feature["c"].bytes_list.value) == ["ü".encode(), b""]
    assert decode(encode(record)) == record


def write_inputs(folder: Path, kind: str, images: list[Path], rows: list[dict[str, object]]) -> list[str]:
    """Writes images with the features of rows as a kind of input, and returns the flags that read it."""
    if kind == "csv":
        write_csv(folder / "in.csv", images, rows)
    if kind == "jsonl":
        lines = [
            json.dumps({"image": str(image), "label": image.parent.name} | row)
            for image, row in zip(images, rows, strict=True)
        ]
        (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    if kind == "parquet":
        columns = {"image": [image.read_bytes() for image in images], "label": [image.parent.name for image in images]}
        pq.write_table(
            pa.table(columns | {name: [row[name] for row in rows] for name in rows[0]}), folder / "in.parquet"
        )
    if kind == "webdataset":
        with tarfile.open(folder / "in.tar", "w") as archive:
            for number, (image, row) in enumerate(zip(images, rows, strict=True)):
                parts = {
                    "jpg": image.read_bytes(),
                    "cls": f"d{image.parent.name}".encode(),
                    "json": json.dumps(row).encode(),
                }
                for ending, content in parts.items():
                    member = tarfile.TarInfo(f"{number:04d}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        return [f"--input={folder}/in.tar", "--record=webdataset"]
    return [f"--input={folder}/in.{kind}"]


KINDS = ["csv", "jsonl", "parquet", "webdataset"]


@pytest.mark.parametrize("kind", KINDS)
def test_features_that_were_corrected_are_said_and_replaced(capsys, images, tmp_path, kind):
    rows = [values(number) for number in range(len(images))]
    args = [f"--output={tmp_path}/out", FEATURE, *write_inputs(tmp_path, kind, images, rows)]
    assert run(capsys, "convert", *args)[0] == 0
    before = stored(tmp_path / "out")
    rows[7]["year"] = 7777
    write_inputs(tmp_path, kind, images, rows)
    assert "other names, sizes, labels or features" in refused(capsys, "convert", *args)
    code, _, err = run(capsys, "convert", *args, "--extend")
    assert (code, "whose inputs have other features now: " in err) == (0, True), err
    assert stored(tmp_path / "out") == before
    assert run(capsys, "convert", *args, "--extend", "--prune")[0] == 0
    manifest = Manifest.from_json((tmp_path / "out/manifest.json").read_bytes(), "")
    names = {shard.name for split in manifest.splits.values() for shard in split.shards}
    for shard in tmp_path.glob("out/*.tfrecord"):
        if shard.name not in names:
            shard.unlink()
    corrected = before[images[7].read_bytes()] | {"year": (7777,)}
    assert stored(tmp_path / "out") == before | {images[7].read_bytes(): corrected}


@pytest.mark.parametrize("kind", KINDS)
def test_features_of_every_kind_of_input(capsys, images, tmp_path, kind):
    rows = [values(number) for number in range(len(images))]
    args = [f"--output={tmp_path}/out", FEATURE, *write_inputs(tmp_path, kind, images, rows)]
    code, _, err = run(capsys, "convert", *args)
    assert (code, err) == (0, "")
    assert stored(tmp_path / "out") == {image.read_bytes(): expected(number) for number, image in enumerate(images)}
    manifest = Manifest.from_json((tmp_path / "out/manifest.json").read_bytes(), "")
    assert {name: tuple(feature) for name, feature in manifest.features.items()} == {
        "age": ("float", None),
        "box": ("float", 4),
        "caption": ("string", None),
        "tags": ("string", 2),
        "year": ("int", None),
    }
    assert run(capsys, "verify", tmp_path / "out")[0] == 0


@pytest.mark.long
def test_features_are_repaired_rewritten_and_batched(capsys, images, tmp_path):
    write_csv(tmp_path / "in.csv", images, [values(number) for number in range(len(images))])
    args = (f"--input={tmp_path}/in.csv", f"--output={tmp_path}/out", FEATURE, "--shard_size=10KB")
    assert run(capsys, "convert", *args)[0] == 0
    digests, before = files(tmp_path / "out"), stored(tmp_path / "out")
    shard = next((tmp_path / "out").glob("train-*.tfrecord"))
    shard.write_bytes(b"")
    assert run(capsys, "repair", tmp_path / "out")[::2] == (0, "")
    assert files(tmp_path / "out") == digests
    (tmp_path / "out/index" / shard.with_suffix(".parquet").name).unlink()
    assert run(capsys, "repair", tmp_path / "out")[0] == 0
    assert files(tmp_path / "out") == digests
    command = ("split", tmp_path / "out", "--splits=train=50%,test=50%", f"--output={tmp_path}/split")
    assert run(capsys, *command)[0] == 0
    assert stored(tmp_path / "split") == before
    assert run(capsys, "verify", tmp_path / "split")[0] == 0
    assert run(capsys, "report", tmp_path / "split")[0] == 0
    assert run(capsys, "convert", f"--input={tmp_path}/split", f"--output={tmp_path}/x")[0] in (0, 2)
    tf = pytest.importorskip("tensorflow")
    import tpu_input

    names = ("year", "age", "box", "caption")
    usual = tpu_input.InputConfig(image_size=16, features=names)
    configs = (usual, dataclasses.replace(usual, on_corrupt="skip"), dataclasses.replace(usual, cache="decoded"))
    for config in configs:
        batches = tpu_input.make_train_input_fn(f"{tmp_path}/out", config)({"batch_size": 4})
        assert {name: (spec.shape, spec.dtype) for name, spec in batches.element_spec[0].items() if name in names} == {
            "age": ((4,), tf.float32),
            "box": ((4, 4), tf.float32),
            "caption": ((4,), tf.string),
            "year": ((4,), tf.int64),
        }
        features, _ = next(iter(batches))
        for year, age, caption, box in zip(
            *(features[name].numpy() for name in ("year", "age", "caption", "box")), strict=True
        ):
            want = expected(int(year) - 2000)
            assert (age, caption.decode(), *box) == (want["age"][0], want["caption"][0], *want["box"])
    config = tpu_input.InputConfig(image_size=16, features=names)
    # Keys have the test's own folder in them, so by chance no image is in "validation".
    evaluated = tpu_input.make_eval_input_fn(f"{tmp_path}/out", config, "train")({"batch_size": 16})
    steps = tpu_input.eval_steps(f"{tmp_path}/out", "train", 16)
    years = []
    for features, _ in evaluated.take(steps).as_numpy_iterator():
        years += features["year"][features["weight"] > 0].tolist()
    num_examples = Manifest.from_json((tmp_path / "out/manifest.json").read_bytes(), "").splits["train"].num_examples
    assert (len(years), len(set(years))) == (num_examples, num_examples)
    input_fn = tpu_input.make_eval_input_fn(f"{tmp_path}/out", tpu_input.InputConfig(16, features=("height",)), "train")
    with pytest.raises(ValueError, match="has no feature 'height'; its features are: 'age', 'box', 'caption', 'tags'"):
        input_fn({"batch_size": 4})


def test_values_that_are_missing_or_of_another_type(capsys, images, tmp_path):
    rows = [values(number) for number in range(len(images))]
    rows[0]["age"], rows[1]["caption"] = "", ""  # NaN, and an empty text
    rows[2]["age"] = "old"
    rows[3]["box"] = [1, 2, 3]
    rows[4]["year"] = "2000.5"
    rows[5]["year"] = ""
    rows[6]["tags"] = "[1"
    rows[7]["year"] = str(2**70)
    rows[8]["year"] = "2_000"
    write_csv(tmp_path / "in.csv", images, rows)
    args = (f"--input={tmp_path}/in.csv", f"--output={tmp_path}/out")
    message = refused(capsys, "convert", *args)
    assert "the unknown column 'age'" in message
    assert "store it with --feature=NAME:TYPE" in message
    assert run(capsys, "convert", *args, FEATURE, "--max_rejected=50%")[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert Counter(line["reason"] for line in lines) == {"bad_feature": 7}
    features = stored(tmp_path / "out")
    assert math.isnan(features[images[0].read_bytes()]["age"][0])  # type: ignore[arg-type]
    assert features[images[1].read_bytes()]["caption"] == ("",)
    assert run(capsys, "verify", tmp_path / "out")[0] == 0
    for flag, text in (
        ("age", "is not a list of features"),
        ("age:double", "must be float, int, string, or float[4]"),
        ("image/x:int", "must not begin with image/"),
        ("weight:float", "is the name of a part of every batch"),
        ("age:float,age:int", "must name each feature once"),
        ("height:float", "has no column 'height'"),
    ):
        assert text in refused(capsys, "convert", *args[:1], f"--output={tmp_path}/b", f"--feature={flag}")


def test_inputs_that_have_no_features_are_refused(capsys, digits, tmp_path):
    message = refused(capsys, "convert", f"--input={digits}", "--feature=age:float", f"--output={tmp_path}/out")
    assert "it has no age: only lists, Parquet, WebDataset's JSON and datasets have features" in message
    assert not (tmp_path / "out/manifest.json").exists()


def test_values_of_parquet_that_python_cannot_hold_are_named(capsys, images, tmp_path):
    data = [image.read_bytes() for image in images]
    times = pa.array([1] * len(data), pa.timestamp("ns"))
    pq.write_table(pa.table({"image": data, "label": ["a"] * len(data), "taken": times}), tmp_path / "in.parquet")
    args = (f"--input={tmp_path}/in.parquet", f"--output={tmp_path}/out", "--feature=taken:string")
    message = refused(capsys, "convert", *args)
    assert f"'{tmp_path}/in.parquet' has values that cannot be read, in 'taken' of timestamp[ns]" in message
    assert message.count("\n") == 1


def test_text_of_parquet_that_is_no_utf_8_is_damage(capsys, images, tmp_path):
    labels = pa.array([b"\xff", *[b"a"] * (len(images) - 1)], pa.binary()).view(pa.string())
    data = [image.read_bytes() for image in images]
    pq.write_table(pa.table({"image": data, "label": labels}), tmp_path / "in.parquet")
    message = refused(capsys, "convert", f"--input={tmp_path}/in.parquet", f"--output={tmp_path}/out")
    assert f"'{tmp_path}/in.parquet' is not a complete Parquet file: 'utf-8' codec can't decode byte 0xff" in message


@pytest.mark.parametrize("kind", ["parquet", "webdataset", "tfrecord"])
def test_parts_of_records_that_are_not_stored_are_named(capsys, images, tmp_path, kind):
    pairs, path = [(image.read_bytes(), f"d{image.parent.name}") for image in images], tmp_path / f"in.{kind}"
    args = [f"--input={path}", f"--output={tmp_path}/out", "--feature=age:int"]
    if kind == "parquet":
        data, labels = zip(*pairs, strict=True)
        numbers = list(range(len(pairs)))
        pq.write_table(pa.table({"image": data, "label": labels, "age": numbers, "box": numbers}), path)
        extras, flag = "columns 'box'", []
    elif kind == "webdataset":
        path, extras, flag = tmp_path / "in.tar", "parts 'json.box', 'txt'", ["--record=webdataset"]
        args[0] = f"--input={path}"
        with tarfile.open(path, "w") as archive:
            for number, (data, label) in enumerate(pairs):
                parts = {"jpg": data, "cls": label.encode(), "json": b'{"age": 7, "box": 1}', "txt": b"caption"}
                for ending, content in parts.items():
                    member = tarfile.TarInfo(f"{number}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    else:
        extras, flag = "features 'box', 'origin'", ["--record=image=picture,label=class"]
        with path.open("wb") as file:
            for data, label in pairs:
                example = Example()
                parts = {"picture": data, "class": label.encode(), "image/format": b"JPEG", "origin": b"a", "box": b""}
                for name, content in parts.items():
                    example.features.feature[name].bytes_list.value.append(content)
                file.write(frame(example.SerializeToString()))
        del args[2]  # of TFRecords, no further features are stored
    code, _, err = run(capsys, "convert", *args, *flag)
    assert (code, err) == (0, f"{path}: the {extras} are not stored\n")


def test_null_in_json_lines_is_a_missing_value(tmp_path):
    make(tmp_path, "1.jpg", "2.jpg")
    lines = [
        {"image": "1.jpg", "label": "cat", "age": None, "box": None, "caption": None, "n": 1},
        {"image": "2.jpg", "label": "dog", "age": 1.5, "box": [1, 2], "caption": "a", "n": None},
    ]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    features = (("age", "float"), ("box", "float[2]"), ("caption", "string"), ("n", "int"))
    first, second = listed(tmp_path / "list.jsonl", features=features)
    assert first.features == '{"age": [NaN], "box": [NaN, NaN], "caption": [""], "n": [1]}'
    assert second.reason == "bad_feature"
    assert second.detail == "its n is 'None', not int: 0 values, 1 are needed"


def test_an_object_in_json_lines_is_stored_as_one_and_is_no_missing_number(tmp_path):
    make(tmp_path, "1.jpg", "2.jpg")
    lines = [
        {"image": "1.jpg", "label": "cat", "x": {"a": [{}, {"b": 1}]}, "n": 1},
        {"image": "2.jpg", "label": "dog", "x": {}, "n": {}},
    ]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = listed(tmp_path / "list.jsonl", features=(("x", "string"), ("n", "float")))
    assert json.loads(first.features) == {"x": ['{"a": [{}, {"b": 1}]}'], "n": [1]}
    assert second.reason == "bad_feature"


@pytest.mark.parametrize("flags", [{}, {"image_column": "image"}])
@pytest.mark.parametrize(
    ("name", "text"),
    [("in.csv", "image,label,split,group\n1.jpg,cat,test,g\n"),
     ("in.jsonl", '{"image": "1.jpg", "label": "cat", "split": "test", "group": "g"}\n')],
)  # fmt: skip
def test_split_and_group_are_features_too(tmp_path, name, text, flags):
    make(tmp_path, "1.jpg")
    (tmp_path / name).write_text(text)
    source = Source(str(tmp_path / name), **flags)
    (row,) = listed(source, features=(("group", "string"), ("split", "string")))
    assert (row.features, row.split, row.group) == ('{"group": ["g"], "split": ["test"]}', "test", "g")
