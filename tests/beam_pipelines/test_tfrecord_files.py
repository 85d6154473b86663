"""TFRecords of other programs as inputs: written by TensorFlow in the layouts of their publishers, made small."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from beam_pipelines.conversion_flags import names
from beam_pipelines.options import Source
from support.folders import files
from support.inputs import listed
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.label_kinds import SEVERAL
from tpu_input.dataset_format.records import Record, decode, frame, read_frames

tf = pytest.importorskip("tensorflow")

Value = bytes | int | list[int]


def feature(value: Value) -> object:
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    values = value if isinstance(value, list) else [value]
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write(path: Path, *examples: Mapping[str, Value]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            features = tf.train.Features(feature={name: feature(value) for name, value in example.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


def images(digits: Path, count: int) -> Iterator[tuple[int, str, bytes]]:
    """Yields (label, name, JPEG) of that many digits of each class."""
    for label in range(10):
        for path in sorted((digits / str(label)).iterdir())[:count]:
            yield label, path.name, path.read_bytes()


def imagenet(label: int, name: str, data: bytes) -> dict[str, Value]:
    """An example as tensorflow/tpu's imagenet_to_gcs.py writes it, whose labels begin with 1."""
    return {
        "image/height": 32,
        "image/width": 32,
        "image/colorspace": b"RGB",
        "image/channels": 3,
        "image/class/label": label + 1,
        "image/class/synset": f"n{label:08d}".encode(),
        "image/format": b"JPEG",
        "image/filename": name.encode(),
        "image/encoded": data,
    }


def tfds(label: int, _: str, data: bytes) -> dict[str, Value]:
    """An example as TensorFlow Datasets writes it."""
    return {"image": data, "label": label}


def records(path: Path) -> dict[str, tuple[str, Record]]:
    """(split, record) by key."""
    contents = {}
    for shard in sorted(path.glob("*.tfrecord")):
        with open(shard, "rb") as file:
            for _, payload in read_frames(file):
                record = decode(payload)
                contents[record.key] = shard.name.partition("-")[0], record
    return contents


def converted(capsys, tmp_path, *args: object, expected_err: str = "") -> dict[str, tuple[str, Record]]:
    code, _, err = run(capsys, "convert", *args, f"--output={tmp_path}/out", "--shard_size=20KB")
    assert (code, err) == (0, expected_err)
    return records(tmp_path / "out")


def test_imagenet_as_the_tpu_converter_writes_it(capsys, digits, tmp_path):
    source, source_images = tmp_path / "in", list(images(digits, 12))
    for number in range(2):
        write(source / f"train-{number:05d}-of-00002", *(imagenet(*image) for image in source_images[number:100:2]))
    write(source / "validation-00000-of-00001", *(imagenet(*image) for image in source_images[100:]))
    expected_err = f"{source}: train-00000-of-00002 and 1 more as train, validation-00000-of-00001 as validation\n"
    contents = converted(capsys, tmp_path, f"--input={source}", "--record=imagenet", expected_err=expected_err)
    assert {(split, r.class_name, r.key.rpartition("/")[2], r.encoded) for split, r in contents.values()} == {
        ("train" if index < 100 else "validation", f"n{label:08d}", name, data)
        for index, (label, name, data) in enumerate(source_images)
    }
    assert len(contents) == len(source_images)
    assert all(record.label == int(record.class_name[1:]) for _, record in contents.values())  # as synsets are sorted
    assert next(iter(sorted(contents))).startswith("train-00000-of-00002/")
    code, out, _ = run(capsys, "verify", tmp_path / "out")
    assert (code, "no problems found" in out) == (0, True)


def test_tensorflow_datasets(capsys, digits, tmp_path):
    """Its records have a label that is a number; names are in label.labels.txt beside the files."""
    source = tmp_path / "digits" / "1.0.0"
    source_images = list(images(digits, 3))
    write(source / "digits-train.tfrecord-00000-of-00001", *(tfds(*image) for image in source_images[::2]))
    write(source / "digits-test.tfrecord-00000-of-00001", *(tfds(*image) for image in source_images[1::2]))
    (source / "label.labels.txt").write_text("".join(f"digit {9 - label}\n" for label in range(10)))
    (source / "dataset_info.json").write_text("{}")
    args = (f"--input={source}", "--record=tfds")
    code, _, err = run(capsys, "convert", *args, f"--output={tmp_path}/numbers")
    assert code == 0
    assert "labels are numbers, 0 to 9, and so are the names of the classes; name them with --labels=FILE" in err
    names = ("digits-test.tfrecord-00000-of-00001", "digits-train.tfrecord-00000-of-00001")
    expected_err = f"{source}: {names[0]} as test, {names[1]} as train\n"
    expected_err += "not images, so only listed in rejected.jsonl: 1 .json, 1 .txt\n"
    expected_err += "labels are numbers, 0 to 9: counted from 0 in the 10 names of --labels\n"
    contents = converted(capsys, tmp_path, *args, f"--labels={source}/label.labels.txt", expected_err=expected_err)
    assert sorted((split, r.label, r.class_name, r.encoded) for split, r in contents.values()) == sorted(
        ("train" if index % 2 == 0 else "test", label, f"digit {9 - label}", data)
        for index, (label, _, data) in enumerate(source_images)
    )


def test_a_pattern_and_features_by_name(capsys, digits, tmp_path):
    source_images = list(images(digits, 2))
    write(
        tmp_path / "in" / "part-1", *({"jpg": data, "what": f"d{label}".encode()} for label, _, data in source_images)
    )
    (tmp_path / "in" / "readme").write_text("no records")
    contents = converted(capsys, tmp_path, f"--input={tmp_path}/in/part-*", "--record=image=jpg,label=what")
    assert sorted((r.class_name, r.encoded) for _, r in contents.values()) == sorted(
        (f"d{n}", d) for n, _, d in source_images
    )
    index = json.loads((tmp_path / "out" / "manifest.json").read_text())["sources"]
    assert index == [
        {
            "path": f"{tmp_path}/in/part-*",
            "split": "",
            "label_list": "",
            "record": "image=jpg,label=what",
        }
    ]


def test_what_cannot_be_a_record_is_rejected_with_a_reason(capsys, digits, tmp_path):
    _, _, data = next(images(digits, 1))
    good: list[dict[str, Value]] = [{"i": d, "l": b"a" if n % 2 else b"b"} for n, _, d in images(digits, 9)]
    bad: dict[str, list[dict[str, Value]]] = {
        "bad_record": [{"l": b"a"}, {"i": 3, "l": b"a"}, {"i": data, "l": b"\xff"}],
        "no_label": [{"i": data}, {"i": data, "l": b""}, {"i": data, "l": [1, 2]}],
        "unknown_label": [{"i": data, "l": b"c"}],
        "not_an_image": [{"i": b"GET", "l": b"a"}],
        "empty": [{"i": b"", "l": b"a"}],
    }
    (tmp_path / "names.txt").write_text("a\nb\n")
    write(tmp_path / "in" / "x.tfrecord", *good, *(example for examples in bad.values() for example in examples))
    with open(tmp_path / "in" / "y.tfrecord", "wb") as file:
        file.write(frame(b"\xff\xff\xff"))
    args = (f"--input={tmp_path}/in", "--record=image=i,label=l", f"--labels={tmp_path}/names.txt")
    contents = converted(capsys, tmp_path, *args, "--max_rejected=50%")
    assert len(contents) == len(good)
    rejected = json.loads((tmp_path / "out" / "manifest.json").read_text())["num_rejected"]
    expected = {reason: len(examples) for reason, examples in bad.items()}
    expected["bad_record"] += 1
    assert rejected == expected
    lines = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    assert {json.loads(line)["key"] for line in lines} == {
        *(f"x.tfrecord/{number:06d}" for number in range(len(good), len(good) + 9)),
        "y.tfrecord/000000",
    }


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_file_ends_in_one_line_or_in_the_same_records(capsys, digits, tmp_path, seed):
    source_images = list(images(digits, 2))
    path = tmp_path / "in" / "a.tfrecord"
    write(path, *({"image": data, "label": b"d%d" % label} for label, _, data in source_images))
    data, random_ = bytearray(path.read_bytes()), random.Random(seed)
    if seed % 2:
        data = data[: random_.randrange(1, len(data))]
    else:
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
    path.write_bytes(data)
    message = refused(capsys, "convert", f"--input={path.parent}", "--record=tfds", f"--output={tmp_path}/out")
    assert "is not a complete TFRecord file: record " in message
    assert not (tmp_path / "out").exists()


def test_mistakes_are_answered_with_one_line(capsys, digits, tmp_path):
    (_, _, data), output = next(images(digits, 1)), f"--output={tmp_path}/out"
    write(tmp_path / "in" / "a.tfrecord", {"picture": data, "label": 1})
    args = ("convert", f"--input={tmp_path}/in", output)
    assert "record format 'imagnet' is unknown; it must be imagenet, tfds, flowers" in refused(
        capsys, *args, "--record=imagnet"
    )
    assert "first_label of a record format must be a number, got 'x'" in refused(
        capsys, *args, "--record=first_label=x"
    )
    assert "without the feature 'image', only with label, picture" in refused(capsys, *args, "--record=tfds")
    assert "names no files of records" in refused(
        capsys, "convert", f"--input={tmp_path}/in/b*", "--record=tfds", output
    )
    (tmp_path / "in" / "a.tfrecord").write_bytes(gzip.compress(b"x"))
    assert "a.tfrecord' is not a complete TFRecord file: record 0 at byte 0 is truncated" in refused(
        capsys, *args, "--record=tfds"
    )


def test_a_runner_and_two_processes_write_the_same_bytes(capsys, digits, tmp_path):
    for number in range(3):
        examples = [imagenet(*image) for image in list(images(digits, 6))[number::3]]
        write(tmp_path / "in" / f"train-{number:05d}-of-00003", *examples)
    for name, flags in (("a", ("--num_processes=2",)), ("b", ("--runner=DirectRunner",))):
        args = (f"--input={tmp_path}/in", "--record=imagenet", f"--output={tmp_path}/{name}", "--shard_size=10KB")
        assert run(capsys, "convert", *args, *flags)[0] == 0
    assert files(tmp_path / "a") == files(tmp_path / "b")
    shard = sorted((tmp_path / "a").glob("train-*.tfrecord"))[1]
    shard.write_bytes(b"")
    assert "no problems found" in run(capsys, "repair", tmp_path / "a")[1]
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.cloud
def test_in_a_bucket_as_on_disk(capsys, cloud, digits, tmp_path):
    bucket = cloud.make_bucket()
    write(tmp_path / "in" / "train-00000-of-00001", *(imagenet(*image) for image in images(digits, 4)))
    cloud.upload(tmp_path / "in", f"{bucket}/in")
    args = ("--record=imagenet", "--shard_size=10KB")
    for source, output in ((f"{bucket}/in/train-*", f"{bucket}/out"), (f"{tmp_path}/in/train-*", f"{tmp_path}/out")):
        assert run(capsys, "convert", f"--input={source}", f"--output={output}", *args)[0] == 0
    local = {path: digest for path, digest in files(tmp_path / "out").items() if path.endswith(".tfrecord")}
    objects = cloud.files(f"{bucket}/out")
    assert {path: objects[path] for path in local} == local


def test_with_several_labels_a_record_without_its_feature_or_with_floats_is_rejected(few_digits, tmp_path):
    image = next(file for file in few_digits.rglob("*") if file.is_file()).read_bytes()
    labels = [
        {"cls": tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 0]))},
        {"cls": tf.train.Feature(int64_list=tf.train.Int64List())},
        {"cls": tf.train.Feature()},
        {},
        {"cls": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))},
    ]
    encoded = {"jpg": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image]))}
    with tf.io.TFRecordWriter(str(tmp_path / "in.tfrecord")) as writer:
        for label in labels:
            features = tf.train.Features(feature=encoded | label)
            writer.write(tf.train.Example(features=features).SerializeToString())
    rows = listed(
        Source(str(tmp_path / "in.tfrecord"), record="image=jpg,label=cls"),
        label_type="classes",
        labels=("cat", "dog"),
    )
    assert [(SEVERAL.names(row.label) if not row.reason else row.reason) for row in rows] == [
        ("cat", "dog"),
        (),
        (),
        "no_label",
        "no_label",
    ]


def test_a_damaged_first_record_is_refused_with_the_name_of_its_file(capsys, tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "in.tfrecord")) as writer:
        writer.write(tf.train.Example().SerializeToString() + b"\x12\x00")
    content = bytearray((tmp_path / "in.tfrecord").read_bytes())
    content[12] ^= 1
    (tmp_path / "in.tfrecord").write_bytes(content)
    error = refused(
        capsys, "convert", f"--input={tmp_path / 'in.tfrecord'}", "--record=tfds", f"--output={tmp_path / 'out'}"
    )
    assert "/in.tfrecord' is not a complete TFRecord file: record 0 at byte 0 has a corrupt payload" in error


@pytest.mark.parametrize(
    ("lines", "classes"),
    [
        ("0:daisy\n1:tulip: red\n", ("daisy", "tulip: red")),
        ("1:daisy\n2:tulip\n", ("1:daisy", "2:tulip")),  # not as TF-Slim counts
        ("0:daisy\n1:\n", ("0:daisy", "1:")),
    ],
)
def test_labels_are_read_as_tf_slim_writes_them(tmp_path, lines, classes):
    (tmp_path / "labels.txt").write_text(lines)
    assert names(str(tmp_path / "labels.txt")) == classes
