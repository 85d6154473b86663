"""Compressed archives, Parquet and WebDataset as inputs: made as their publishers make them, damaged, and resumed."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from beam_pipelines import storage
from support.folders import files
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.records import decode, read_frames

NAMES = ("zero", "one", "two")


@pytest.fixture
def images(digits) -> list[Path]:
    return [sorted((digits / label).iterdir())[number] for number in range(10) for label in "012"]


def convert(capsys: pytest.CaptureFixture[str], *args: object) -> None:
    code, _, err = run(capsys, "convert", *args)
    assert code == 0, err


def stored(path: Path) -> Counter[tuple[str, str, bytes]]:
    """(split, class, JPEG) of every record."""
    records = Counter[tuple[str, str, bytes]]()
    for shard in path.glob("*.tfrecord"):
        with open(shard, "rb") as file:
            for _, payload in read_frames(file):
                record = decode(payload)
                records[shard.name.partition("-")[0], record.class_name, record.encoded] += 1
    return records


def without_splits(records: Counter[tuple[str, str, bytes]]) -> Counter[tuple[str, bytes]]:
    return Counter({(label, data): count for (_, label, data), count in records.items()})


def tar_of(folder: Path) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(folder, folder.name)
    return content.getvalue()


def zstd_in_frames(content: bytes) -> bytes:
    """As pzstd writes it."""
    pieces = [content[offset : offset + 20_000] for offset in range(0, len(content), 20_000)]
    return b"".join(zstandard.ZstdCompressor().compress(piece) for piece in pieces)


def compressed(kind: str) -> Callable[[bytes], bytes]:
    import bz2
    import lzma

    by_kind: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
        "zst": zstd_in_frames,
    }
    return by_kind[kind]


@pytest.mark.long
@pytest.mark.parametrize("name", ["in.tar.gz", "in.tgz", "in.tar.zst", "in.tar.bz2", "in.tar.xz"])
def test_a_compressed_archive_becomes_the_same_dataset_as_its_folder(capsys, few_digits, tmp_path, name):
    shutil.copytree(few_digits, tmp_path / "flowers")
    kind = name.rpartition(".")[2].replace("tgz", "gz")
    (tmp_path / name).write_bytes(compressed(kind)(tar_of(tmp_path / "flowers")))
    for output, source in (("a", name), ("b", "flowers")):
        args = (f"--input={tmp_path}/{source}", f"--output={tmp_path}/{output}", "--shard_size=10KB")
        convert(capsys, *args)
    shards = {path: digest for path, digest in files(tmp_path / "b").items() if path.endswith(".tfrecord")}
    digests = files(tmp_path / "a")
    assert {path: digests[path] for path in shards} == shards
    assert not (tmp_path / "a" / ".jpeg2tpu").exists()
    assert len(list((tmp_path / "a").glob("*.tfrecord"))) > 3
    shard = next((tmp_path / "a").glob("train-*.tfrecord"))
    shard.write_bytes(b"")
    code, out, _ = run(capsys, "repair", tmp_path / "a")
    assert (code, "no problems found" in out) == (0, True)
    assert files(tmp_path / "a") == digests


def test_a_folder_of_compressed_archives_has_a_class_in_each(capsys, images, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for label in "012":
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz") as archive:
            for path in (path for path in images if path.parent.name == label):
                archive.add(path, path.name)
        (source / f"{label}.tar.gz").write_bytes(content.getvalue())
    convert(capsys, f"--input={source}", f"--output={tmp_path}/out")
    expected = Counter((path.parent.name, path.read_bytes()) for path in images)
    assert without_splits(stored(tmp_path / "out")) == expected


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_a_damaged_archive_is_refused_and_nothing_is_left(capsys, few_digits, tmp_path, kind):
    """Cut off in the middle, or before its last bytes."""
    archive = compressed(kind)(tar_of(few_digits))
    for content in (archive[: len(archive) * 2 // 3], archive[:-9]):
        (tmp_path / f"in.tar.{kind}").write_bytes(content)
        message = refused(capsys, "convert", f"--input={tmp_path}/in.tar.{kind}", f"--output={tmp_path}/out")
        assert f"{tmp_path}/in.tar.{kind}" in message
        assert "not a complete" in message
        assert not (tmp_path / "out").exists()


class Unavailable(io.FileIO):
    """A file that can be opened, and whose storage then fails."""

    def readinto(self, buffer: Any) -> int:
        raise storage.Unavailable("the bucket cannot be reached")

    def read(self, size: int | None = -1) -> bytes:
        raise storage.Unavailable("the bucket cannot be reached")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst", "parquet"])
def test_a_storage_that_fails_is_not_called_a_damaged_file(capsys, few_digits, tmp_path, monkeypatch, kind):
    if kind == "parquet":
        images = [path.read_bytes() for path in sorted(few_digits.rglob("*.jpg"))]
        table = pa.table({"image": images, "label": [str(number % 3) for number in range(len(images))]})
        pq.write_table(table, tmp_path / "in.parquet", use_dictionary=False)
        path = tmp_path / "in.parquet"
    else:
        path = tmp_path / f"in.tar.{kind}"
        path.write_bytes(compressed(kind)(tar_of(few_digits)))
    monkeypatch.setattr(storage, "open_file", Unavailable)
    message = refused(capsys, "convert", f"--input={path}", f"--output={tmp_path}/out")
    assert "the bucket cannot be reached" in message
    assert "not a complete" not in message


def test_what_unpacks_to_a_hundred_times_its_size_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("beam_pipelines.sources.unpacking._ALWAYS_ALLOWED", 1000)
    (tmp_path / "in.tgz").write_bytes(gzip.compress(bytes(10_000_000)))
    message = refused(capsys, "convert", f"--input={tmp_path}/in.tgz", f"--output={tmp_path}/out")
    assert "decompresses to more than 100 times its size, as no images do" in message
    assert not (tmp_path / "out").exists()


def webdataset(path: Path, examples: Iterator[dict[str, bytes]] | list[dict[str, bytes]]) -> None:
    """A shard as webdataset.TarWriter writes it: the files of an example follow each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, example in enumerate(examples):
            for ending, content in example.items():
                member = tarfile.TarInfo(f"{number:06d}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


@pytest.mark.long
def test_webdataset_with_numbers_names_and_fields(capsys, images, tmp_path):
    examples = [(path.read_bytes(), int(path.parent.name)) for path in images]
    for shard in range(2):
        webdataset(
            tmp_path / "in" / f"digits-train-{shard:06d}.tar",
            [{"cls": str(label).encode(), "jpg": data} for data, label in examples[shard:20:2]],
        )
    webdataset(
        tmp_path / "in" / "digits-val-000000.tar",
        [{"jpg": data, "cls": str(label).encode(), "json": b'{"x": 1}'} for data, label in examples[20:]],
    )
    (tmp_path / "labels.txt").write_text("\n".join(NAMES))
    args = (f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    for recognised in ((), ("--record=webdataset",)):
        code, _, err = run(capsys, "convert", *args[:1], f"--output={tmp_path}/numbers{len(recognised)}", *recognised)
        assert code == 0
        assert ("read as WebDataset, because it has 000000.cls; this is --record=webdataset" in err) != bool(recognised)
        assert "labels are numbers, 0 to 2, and so are the names of the classes; name them with --labels=FILE" in err
    convert(capsys, *args, "--record=webdataset", f"--labels={tmp_path}/labels.txt")
    assert stored(tmp_path / "out") == Counter(
        ("train" if index < 20 else "validation", NAMES[label], data) for index, (data, label) in enumerate(examples)
    )
    assert run(capsys, "verify", tmp_path / "out")[0] == 0
    for ending, content, label_field in (
        ("txt", lambda label: f"{NAMES[label]}\n".encode(), "label=txt"),
        ("json", lambda label: json.dumps({"a": [], "class": NAMES[label]}).encode(), "label=json.class"),
    ):
        shard = tmp_path / ending / "train.tar.gz"
        webdataset(
            tmp_path / "train.tar", [{"PNG": b"x", "jpg": data, ending: content(label)} for data, label in examples]
        )
        shard.parent.mkdir()
        shard.write_bytes(gzip.compress((tmp_path / "train.tar").read_bytes()))
        args = (f"--input={tmp_path}/train.tar", f"--output={tmp_path}/out-{ending}")
        assert "without a file .cls for the label, only with .j" in refused(
            capsys, "convert", *args, "--record=webdataset"
        )
        flags = (f"--input={shard.parent}", f"--record=webdataset,image=jpg,{label_field}")
        convert(capsys, *flags, f"--output={tmp_path}/out-{ending}")
        assert stored(tmp_path / f"out-{ending}") == Counter(("train", NAMES[label], data) for data, label in examples)


def test_examples_of_webdataset_that_cannot_be_used_are_listed(capsys, images, tmp_path):
    data = [path.read_bytes() for path in images]
    odd = [
        {"jpg": data[0], "cls": b""},
        {"cls": b"a"},
        {"jpg": data[1], "png": data[2], "cls": b"a"},
        {"jpg": data[3], "cls": b"\xff"},
        {"jpg": data[4], "cls": b"9999999999999"},
        {"jpg": b"no image", "cls": b"a"},
        {"jpg": data[5]},
    ]
    good = [{"jpg": image, "cls": b"ab"[index % 2 : index % 2 + 1]} for index, image in enumerate(data[6:])]
    webdataset(tmp_path / "in.tar", good + odd)
    args = (f"--input={tmp_path}/in.tar", "--record=webdataset", f"--output={tmp_path}/out", "--max_rejected=90%")
    convert(capsys, *args)
    reasons = [json.loads(line)["reason"] for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert Counter(reasons) == {"no_label": 2, "bad_record": 3, "not_an_image": 1}
    assert sum(stored(tmp_path / "out").values()) == len(good) + 1  # a number of 13 digits is a name


def parquet(path: Path, images: list[Path], **changes: object) -> None:
    """A file as `datasets.Dataset.to_parquet()` writes it: groups of 100 rows, ClassLabel in the metadata."""
    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(NAMES), "_type": "ClassLabel"},
    }
    columns = {
        "image": pa.array(
            [{"bytes": path.read_bytes(), "path": f"x/{path.name}"} for path in images],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        ),
        "label": pa.array([int(path.parent.name) for path in images], pa.int64()),
    } | changes
    table = pa.table({name: column for name, column in columns.items() if column is not None})
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=7)


def test_parquet_of_hugging_face(capsys, images, tmp_path):
    source = tmp_path / "in" / "data"
    parquet(source / "train-00000-of-00002.parquet", images[:25:2])
    parquet(source / "train-00001-of-00002-0123456789abcdef.parquet", images[1:25:2])
    parquet(source / "test-00000-of-00001.parquet", images[25:])
    (tmp_path / "in" / "README.md").write_text("# Dataset card")
    args = (f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--shard_size=10KB")
    assert "which is Parquet with images, as Hugging Face's datasets are; add --record=huggingface" in refused(
        capsys, "convert", *args
    )
    convert(capsys, *args, "--record=huggingface")
    assert stored(tmp_path / "out") == Counter(
        ("train" if index < 25 else "test", NAMES[int(path.parent.name)], path.read_bytes())
        for index, path in enumerate(images)
    )
    assert not (tmp_path / "out" / ".jpeg2tpu").exists()
    shard, before = next((tmp_path / "out").glob("test-*.tfrecord")), files(tmp_path / "out")
    shard.write_bytes(b"")
    code, out, _ = run(capsys, "repair", tmp_path / "out")
    assert (code, "no problems found" in out) == (0, True)
    assert files(tmp_path / "out") == before
    parquet(tmp_path / "in" / "default" / "train" / "0000.parquet", images)
    assert (
        run(capsys, "convert", f"--input={tmp_path}/in/default", "--record=huggingface", f"--output={tmp_path}/b")[0]
        == 0
    )
    assert {split for split, _, _ in stored(tmp_path / "b")} == {"train"}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("partial-test/0", "test"),
        ("split=val/part-0", "validation"),
        ("val2017/0", "validation"),
        ("testset-0", "test"),
        ("TestImages", "test"),
        ("sharksTest-0", "test"),
        ("held_out/deeper/0", "test"),
        ("train/devset/0", "validation"),
    ],
)
@pytest.mark.parametrize("ending", ["parquet", "tar"])
def test_a_split_in_the_name_of_a_file_or_folder_is_used(capsys, images, tmp_path, name, split, ending):
    for path, subset in ((f"train/0.{ending}", images[:4]), (f"{name}.{ending}", images[4:7])):
        if ending == "parquet":
            parquet(tmp_path / "in" / path, subset)
            continue
        (tmp_path / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        webdataset(
            tmp_path / "in" / path,
            [{"jpg": image.read_bytes(), "cls": image.parent.name.encode()} for image in subset],
        )
    record = "huggingface" if ending == "parquet" else "webdataset"
    convert(capsys, f"--input={tmp_path}/in", f"--record={record}", f"--output={tmp_path}/out")
    assert Counter(part for part, _, _ in stored(tmp_path / "out").elements()) == {"train": 4, split: 3}


def test_parquet_with_plain_columns(capsys, images, tmp_path):
    labels = pa.array([NAMES[int(path.parent.name)] for path in images])
    data = pa.array([path.read_bytes() for path in images], pa.large_binary())
    parquet(tmp_path / "x.parquet", images, image=None, label=None, photo=data, what=labels, other=data)
    args = (f"--input={tmp_path}/x.parquet", f"--output={tmp_path}/out")
    assert "has the columns 'photo', 'other' for the image; name one: --record=huggingface,image=COLUMN" in refused(
        capsys, "convert", *args
    )
    assert "for the label; name one: --record=huggingface,label=COLUMN" in refused(
        capsys, "convert", *args, "--record=huggingface,image=photo"
    )
    assert "has no column 'foto' for the image, only 'photo', 'what', 'other'" in refused(
        capsys, "convert", *args, "--record=image=foto,label=what"
    )
    assert "the column 'what' of" in refused(capsys, "convert", *args, "--record=image=what,label=what")
    convert(capsys, *args, "--record=image=photo,label=what")
    expected = Counter((NAMES[int(path.parent.name)], path.read_bytes()) for path in images)
    assert without_splits(stored(tmp_path / "out")) == expected


def test_rows_of_parquet_without_bytes_or_label_are_listed(capsys, images, tmp_path):
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells: list[dict[str, object] | None] = [{"bytes": path.read_bytes(), "path": None} for path in images]
    cells[3], cells[4], cells[5] = {"bytes": None, "path": "/data/3.jpg"}, None, {"bytes": b"no image", "path": "é.jpg"}
    labels: list[int | None] = [int(path.parent.name) for path in images]
    labels[6], labels[7] = None, -1
    parquet(tmp_path / "x.parquet", images, image=pa.array(cells, struct), label=pa.array(labels, pa.int64()))
    args = (f"--input={tmp_path}/x.parquet", f"--output={tmp_path}/out", "--max_rejected=50%")
    convert(capsys, *args)
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert {line["key"]: line["reason"] for line in lines} == {
        "x.parquet/000003-3.jpg": "bad_record",
        "x.parquet/000004": "bad_record",
        "x.parquet/000005-é.jpg": "not_an_image",
        "x.parquet/000006": "no_label",
        "x.parquet/000007": "no_label",
    }
    assert sum(stored(tmp_path / "out").values()) == len(images) - 5
    labels[8] = 3  # a mistake of the whole file: another base of numbers, or names that lack
    parquet(tmp_path / "y.parquet", images, image=pa.array(cells, struct), label=pa.array(labels, pa.int64()))
    message = refused(
        capsys, "convert", f"--input={tmp_path}/y.parquet", f"--output={tmp_path}/y", "--max_rejected=50%"
    )
    assert "the label of 'y.parquet/000008' is 3, but its file declares 3 names of classes, for 0 to 2" in message


@pytest.mark.long
def test_damaged_parquet_is_refused_or_read_the_same(capsys, images, tmp_path):
    """200 times with 1 to 8 changed bytes: no traceback, and nothing is left of what is refused."""
    parquet(tmp_path / "whole.parquet", images[:6])
    original, rng = (tmp_path / "whole.parquet").read_bytes(), random.Random(7)
    from beam_pipelines.options import ConvertOptions, Source
    from beam_pipelines.sources.listing import list_rows

    refusals = 0
    for case in range(200):
        content = bytearray(original if case % 2 else original[: rng.randrange(len(original))])
        for _ in range(rng.randrange(1, 9)):
            if content:
                content[rng.randrange(len(content))] = rng.randrange(256)
        path, output = tmp_path / f"{case}.parquet", tmp_path / f"out-{case}"
        path.write_bytes(content)
        source = Source(str(path))
        message, rows = "", list[object]()
        try:
            rows = list(list_rows(source, ConvertOptions((source,), str(output))))
        except ValueError as error:
            message = str(error)
        refusals += bool(message)
        assert not message or (str(path) in message and not (output.exists() and files(output)))
        assert len(rows) <= 6
    assert refusals > 100


@pytest.mark.long
def test_an_interrupted_conversion_goes_on_with_what_was_unpacked(capsys, images, tmp_path):
    parquet(tmp_path / "train-00000-of-00001.parquet", images * 20)
    args = [f"--input={tmp_path}/train-00000-of-00001.parquet", "--shard_size=10KB"]
    convert(capsys, *args, f"--output={tmp_path}/whole")
    command = [sys.executable, "-m", "beam_pipelines", "convert", *args, f"--output={tmp_path}/out"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list((tmp_path / "out").glob(".jpeg2tpu/*/*.receipt")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    [copy] = (tmp_path / "out" / ".jpeg2tpu").glob("images-*")
    assert copy.stat().st_size == 20 * sum(path.stat().st_size for path in images)
    convert(capsys, *args, f"--output={tmp_path}/out")
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_list_inputs_of_a_pipeline_needs_an_output_to_unpack_to(few_digits, tmp_path):
    import apache_beam as beam

    from beam_pipelines import ListInputs, Source, WriteDataset

    (tmp_path / "in.tgz").write_bytes(gzip.compress(tar_of(few_digits)))
    source, output = Source(f"{tmp_path}/in.tgz"), f"{tmp_path}/out"
    pipeline = beam.Pipeline()
    pipeline | ListInputs(source)
    with pytest.raises(Exception, match=r"next to the dataset that is made from them: ListInputs\(…, output=OUTPUT\)"):
        pipeline.run()
    with beam.Pipeline() as pipeline:
        pipeline | ListInputs(source, output=output) | WriteDataset(output)
    assert sum(stored(tmp_path / "out").values()) == len(list(few_digits.rglob("*.jpg")))
    assert not (tmp_path / "out" / ".jpeg2tpu").exists()


@pytest.mark.cloud
def test_what_is_unpacked_on_a_bucket_lies_beside_the_dataset_until_it_is_complete(capsys, cloud, images, tmp_path):
    bucket = cloud.make_bucket()
    parquet(tmp_path / "in/data/train-00000-of-00001.parquet", images)
    examples = [{"jpg": path.read_bytes(), "cls": NAMES[int(path.parent.name)].encode()} for path in images]
    webdataset(tmp_path / "shards/train-0.tar", examples)
    (tmp_path / "shards/train-1.tar.gz").write_bytes(gzip.compress((tmp_path / "shards/train-0.tar").read_bytes()))
    cloud.upload(tmp_path / "in", f"{bucket}/in")
    cloud.upload(tmp_path / "shards", f"{bucket}/shards")
    convert(capsys, f"--input={bucket}/in", "--record=huggingface", f"--output={bucket}/a")
    convert(capsys, f"--input={tmp_path}/in", "--record=huggingface", f"--output={tmp_path}/a")
    convert(capsys, f"--input={bucket}/shards", "--record=webdataset", f"--output={bucket}/b")
    convert(capsys, f"--input={tmp_path}/shards", "--record=webdataset", f"--output={tmp_path}/b")
    for name in "ab":
        objects, expected = cloud.files(f"{bucket}/{name}"), files(tmp_path / name)
        assert objects.keys() == expected.keys()
        assert all(objects[path] == expected[path] for path in expected if path.endswith(".tfrecord"))
    assert sum(stored(tmp_path / "b").values()) == 2 * len(images)


def test_a_compressed_archive_of_webdataset_is_named_as_such_wherever_its_labels_are(capsys, images, tmp_path):
    with tarfile.open(tmp_path / "train-0.tar.gz", "w:gz") as archive:
        for number, image in enumerate(images[:3]):
            archive.add(image, f"{number}.jpg")
            label = tarfile.TarInfo(f"{number}.cls")
            label.size = 1
            archive.addfile(label, io.BytesIO(b"0"))
    error = refused(capsys, "convert", f"--input={tmp_path / 'train-0.tar.gz'}", f"--output={tmp_path / 'out'}")
    assert "has '0.cls', the label of an image" in error
    assert "--record=webdataset" in error


def test_categories_of_pandas_are_labels_of_parquet(capsys, images, tmp_path):
    """They are dictionaries in Arrow."""
    encoded = [image.read_bytes() for image in images[:6]]
    names = ["cat", "dog", "cat", None, "dog", "cat"]
    table = pa.table({"image": encoded, "label": pa.array(names).dictionary_encode()})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    convert(capsys, f"--input={tmp_path / 'in.parquet'}", f"--output={tmp_path / 'out'}", "--max_rejected=50%")
    expected = Counter((name, data) for name, data in zip(names, encoded, strict=True) if name)
    assert without_splits(stored(tmp_path / "out")) == expected


def test_a_null_in_a_list_of_classes_rejects_its_row_alone(capsys, images, tmp_path):
    encoded = [image.read_bytes() for image in images[:4]]
    labels = pa.array([[0, 1], [1, None], [], [1]], pa.list_(pa.int64()))
    pq.write_table(pa.table({"image": encoded, "label": labels}), tmp_path / "in.parquet")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    args = [f"--input={tmp_path / 'in.parquet'}", f"--output={tmp_path / 'out'}", "--label_type=classes"]
    convert(capsys, *args, f"--labels={tmp_path / 'names.txt'}", "--max_rejected=50%")
    rejected = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert [(line["key"], line["reason"], line["detail"]) for line in rejected] == [
        ("in.parquet/000001", "bad_record", "the list in the column 'label' has a null")
    ]
