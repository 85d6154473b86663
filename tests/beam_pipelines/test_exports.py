"""Exports: what another reader of the format finds is the dataset, and a conversion of it gives the dataset back."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
import shutil
import sys
import tarfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tpu_input
from beam_pipelines.convert import convert
from beam_pipelines.shard_formats.all_formats import EXPORTS, SHARD_FORMATS
from support.conversion import after_planning, options
from support.folders import files
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.manifest import ENDINGS, Manifest
from tpu_input.dataset_format.records import Record, decode, read_frames

FEATURES = "--feature=age:float,box:int[2],caption:string"
LABELS = {
    "class": lambda name: name,
    "classes": lambda name: {"1": "", "2": "0;2"}.get(name, name),
    "none": lambda _: "",
}


@pytest.fixture(params=LABELS)
def labels(request) -> str:
    return str(request.param)


@pytest.fixture
def dataset(few_digits, labels, capsys, tmp_path) -> Path:
    """A dataset of some digits in two splits, with features and with labels of a kind; keys have dots and no ASCII."""
    folder = tmp_path / "im\N{LATIN SMALL LETTER A WITH DIAERESIS}ges.of.digits"
    shutil.copytree(few_digits, folder)
    with open(tmp_path / "list.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["image", "label", "split", "age", "box", "caption"])
        for number, path in enumerate(sorted(folder.glob("*/*.jpg"))):
            split = "test" if number % 4 == 0 else "train"
            label = LABELS[labels](path.parent.name)
            lines.writerow([path.relative_to(tmp_path), label, split, number / 10, f"{number} 7", f'"{number}" \u732b'])
    more = [f"--label_type={labels}", FEATURES, "--shard_size=10KB"]
    code, _, err = run(capsys, "convert", f"--input={tmp_path}/list.csv", f"--output={tmp_path}/dataset", *more)
    assert code == 0, err
    return tmp_path / "dataset"


def manifest_of(path: Path) -> Manifest:
    return Manifest.from_json((path / "manifest.json").read_text(), str(path), allow_export=True)


def records(dataset: Path) -> Iterator[tuple[str, Record]]:
    for split, content in manifest_of(dataset).splits.items():
        for shard in content.shards:
            with open(dataset / shard.name, "rb") as file:
                yield from ((split, decode(payload)) for _, payload in read_frames(file))


def export(capsys: pytest.CaptureFixture[str], dataset: Path, name: str, *flags: str, to: str = "export") -> Path:
    output = dataset.parent / to
    code, _, err = run(capsys, "export-dataset", dataset, f"--format={name}", f"--output={output}", *flags)
    assert code == 0, err
    return output


def read_webdataset(path: Path, manifest: Manifest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (split, parts of an example) in the order of the shards, as Python's tarfile reads them."""
    for shard in json.loads((path / "index.json").read_text())["shardlist"]:
        examples: dict[str, dict[str, bytes]] = {}
        with tarfile.open(path / shard["url"]) as tar:
            for member in tar:
                name, _, ending = member.name.partition(".")
                content = tar.extractfile(member)
                assert content
                assert (member.mode, member.mtime, member.uid) == (0o644, 0, 0)
                examples.setdefault(name, {})[ending] = content.read()
        assert len(examples) == shard["nsamples"]
        assert (path / shard["url"]).stat().st_size == shard["filesize"]
        for name, parts in examples.items():
            fields = json.loads(parts["json"])
            assert urllib.parse.unquote(name) == fields["key"]
            assert parts.get("cls", b"").decode() == (
                str(fields["label"]) if isinstance(fields.get("label"), int) else ""
            )
            yield shard["url"].partition("-")[0], {"image": parts["jpg"]} | fields


def read_parquet(path: Path, manifest: Manifest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the same, as Arrow reads it, with the names of the classes that Hugging Face's metadata declare."""
    for file in sorted(path.glob("*.parquet")):
        table = pq.read_table(file)
        features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
        assert set(features) == set(table.column_names)
        for row in table.to_pylist():
            row["image"] = row["image"]["bytes"]
            for column in ("label", "labels"):
                if column in row:
                    names = features[column].get("feature", features[column])["names"]
                    label = row[column] if column == "label" else tuple(row[column])
                    row |= {
                        "label": label,
                        "class": manifest.label_kind.class_name(
                            [names[index] for index in manifest.label_kind.indices(label)]
                        ),
                    }
            yield file.name.partition("-")[0], row


def read_array_record(path: Path, manifest: Manifest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the same, as TensorFlow reads the records that grain finds."""
    grain = pytest.importorskip("grain")
    import tensorflow as tf

    for split in manifest.splits:
        for content in grain.sources.ArrayRecordDataSource(sorted(map(str, path.glob(f"{split}-*")))):
            record = decode(content)
            features = tf.train.Example.FromString(content).features.feature
            parts = {"key": features["image/key"].bytes_list.value[0].decode(), "sha256": record.sha256}
            parts |= {"image": features["image/encoded"].bytes_list.value[0], "class": record.class_name}
            labels = tuple(features["image/class/labels"].int64_list.value)
            parts["label"] = (
                labels if manifest.label_kind.is_list else features["image/class/label"].int64_list.value[0]
            )
            parts |= {"box": list(features["box"].int64_list.value), "age": features["age"].float_list.value[:1]}
            parts["age"] = next(iter(parts["age"]), None)
            parts["caption"] = next((value.decode() for value in features["caption"].bytes_list.value), None)
            yield split, parts


def read_mds(path: Path, manifest: Manifest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the same, as the format is described: docs.mosaicml.com, MDS."""
    types: dict[str, Any] = {"bytes": bytes, "str": bytes.decode, "json": json.loads}
    types |= {
        "int": lambda data: int(np.frombuffer(data, "<i8")[0]),
        "float32": lambda data: np.frombuffer(data, "<f4")[0],
    }
    for split in manifest.splits:
        for shard in json.loads((path / split / "index.json").read_text())["shards"]:
            data = (path / split / shard["raw_data"]["basename"]).read_bytes()
            assert (shard["format"], shard["version"], shard["raw_data"]["bytes"]) == ("mds", 2, len(data))
            ends = np.frombuffer(data, "<u4", 1 + shard["samples"], 4)
            for begin, end in itertools.pairwise(ends.tolist()):
                sizes = [size for size in shard["column_sizes"] if size is None]
                variable = iter(np.frombuffer(data, "<u4", len(sizes), begin).tolist())
                position, parts = begin + 4 * len(sizes), dict[str, Any]()
                for name, encoding, size in zip(
                    shard["column_names"], shard["column_encodings"], shard["column_sizes"], strict=True
                ):
                    size = size or next(variable)
                    parts[name], position = types[encoding](data[position : position + size]), position + size
                assert position == end
                yield split, parts | {"label": parts.get("label", parts.get("labels"))}


READ = {
    "webdataset": read_webdataset,
    "parquet": read_parquet,
    "array_record": read_array_record,
    "mds": read_mds,
}


def test_every_format_is_in_every_registry_and_read_here():
    assert list(SHARD_FORMATS) == list(ENDINGS) == ["tfrecord", *EXPORTS]
    assert set(EXPORTS) == set(READ)


@pytest.mark.parametrize("name", EXPORTS)
def test_another_reader_finds_the_dataset_and_a_conversion_gives_it_back(capsys, dataset, labels, name):
    output, manifest = export(capsys, dataset, name), manifest_of(dataset)
    examples = list(READ[name](output, manifest_of(output)))
    expected = list(records(dataset))
    assert len(examples) == len(expected) > 20
    for (split, parts), (split_there, record) in zip(examples, expected, strict=True):
        assert (split, parts["key"], parts["image"]) == (split_there, record.key, record.encoded)
        assert parts["sha256"] == record.sha256 == hashlib.sha256(parts["image"]).hexdigest()
        if labels != "none":
            as_tuple = (lambda value: tuple(value)) if labels == "classes" else (lambda value: value)
            assert (as_tuple(parts["label"]), as_tuple(parts["class"])) == (record.label, record.class_name)
        assert {feature: parts[feature] for feature in ("box", "caption")} == {
            "box": list(record.features["box"]),
            "caption": record.features["caption"][0],
        }
        assert parts["age"] == record.features["age"][0]
    code, out, _ = run(capsys, "diff", dataset, output)
    assert (code, out) == (0, f"{len(expected)} examples are the same in {str(dataset)!r} and {str(output)!r}\n")
    more = [f"--label_type={labels}", FEATURES, "--shard_size=10KB"]
    code, _, err = run(capsys, "convert", f"--input={output}", f"--output={dataset.parent}/back", *more)
    assert (code, err) == (0, "")
    back = manifest_of(dataset.parent / "back")
    assert (back.splits, back.classes) == (manifest.splits, manifest.classes)  # the same shards, byte for byte


@pytest.fixture
def digits_of_one_kind(few_digits, capsys, tmp_path) -> Path:
    flags = ["--shard_size=10KB", "--seed=4"]
    assert run(capsys, "convert", f"--input={few_digits}", f"--output={tmp_path}/dataset", *flags)[0] == 0
    return tmp_path / "dataset"


@pytest.mark.parametrize("name", EXPORTS)
def test_inputs_that_name_their_splits_come_back_with_their_fingerprint(capsys, few_digits, tmp_path, name):
    for split, pattern in (("validation", "*/*[05].jpg"), ("train", "*/*.jpg")):
        for path in list(few_digits.glob(pattern)):
            target = tmp_path / "images" / split / path.parent.name
            target.mkdir(parents=True, exist_ok=True)
            path.rename(target / path.name)
    flags = ["--shard_size=10KB", "--seed=4"]
    assert run(capsys, "convert", f"--input={tmp_path}/images", f"--output={tmp_path}/dataset", *flags)[0] == 0
    output = export(capsys, tmp_path / "dataset", name)
    assert run(capsys, "convert", f"--input={output}", f"--output={tmp_path}/back", *flags)[0] == 0
    assert manifest_of(tmp_path / "back").fingerprint == manifest_of(tmp_path / "dataset").fingerprint
    assert set(manifest_of(tmp_path / "back").splits) == {"train", "validation"}


@pytest.mark.parametrize("name", EXPORTS)
def test_splits_that_a_hash_has_chosen_come_back_as_the_same_shards(capsys, digits_of_one_kind, tmp_path, name):
    output = export(capsys, digits_of_one_kind, name)
    flags = ["--shard_size=10KB", "--seed=4"]
    assert run(capsys, "convert", f"--input={output}", f"--output={tmp_path}/back", *flags)[0] == 0
    assert manifest_of(tmp_path / "back").splits == manifest_of(digits_of_one_kind).splits


@pytest.mark.parametrize("name", EXPORTS)
def test_the_files_depend_neither_on_processes_nor_on_the_runner_nor_on_an_interruption(
    capsys, monkeypatch, digits_of_one_kind, tmp_path, name
):
    first = files(export(capsys, digits_of_one_kind, name))
    assert first == files(export(capsys, digits_of_one_kind, name, "--num_processes=3", to="again"))
    assert first == files(export(capsys, digits_of_one_kind, name, "--runner=DirectRunner", to="beam"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    flags = ("export-dataset", digits_of_one_kind, f"--format={name}", f"--output={tmp_path}/resumed")
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["beam_pipelines.convert"], "commit", interrupted)
        run(capsys, *flags)
    assert not (tmp_path / "resumed" / "manifest.json").exists()
    code, out, _ = run(capsys, *flags)
    num_shards = sum(len(split.shards) for split in manifest_of(digits_of_one_kind).splits.values())
    assert code == 0
    assert f"resumed: {num_shards} of {num_shards} shards were written by an earlier run" in out
    assert first == files(tmp_path / "resumed")
    assert "already complete, nothing to do" in run(capsys, *flags)[1]


@pytest.mark.parametrize("name", EXPORTS)
def test_one_split_in_shards_of_another_size_replaces_an_export(capsys, digits_of_one_kind, name):
    output = export(capsys, digits_of_one_kind, name)
    message = refused(
        capsys, "export-dataset", digits_of_one_kind, f"--format={name}", "--split=train", f"--output={output}"
    )
    assert "holds another dataset" in message
    export(capsys, digits_of_one_kind, name, "--split=train", "--shard_size=1MB", "--overwrite")
    assert {split for split, _ in READ[name](output, manifest_of(output))} == {"train"}
    (shard,) = manifest_of(output).splits["train"].shards
    names = {path.name for path in output.rglob("*")}
    assert {path for path in names if path.endswith(ENDINGS[name])} == {shard.name}
    code, out, _ = run(capsys, "diff", digits_of_one_kind, output)
    assert code == 1
    assert [line.partition(":")[0] for line in out.splitlines()[1:]] == ["removed"]


@pytest.mark.parametrize("name", EXPORTS)
def test_diff_finds_what_was_changed_in_an_export(capsys, digits_of_one_kind, name):
    output = export(capsys, digits_of_one_kind, name)
    path = output / EXPORTS[name].path(manifest_of(output).splits["train"].shards[0].name)
    content, jpeg = path.read_bytes(), next(record for _, record in records(digits_of_one_kind)).encoded
    assert content.count(jpeg) == 1
    path.write_bytes(content.replace(jpeg, jpeg[:-3] + bytes([jpeg[-3] ^ 1]) + jpeg[-2:]))
    if name == "array_record":  # which has checksums
        assert f"{path.name}' is not a complete ArrayRecord" in refused(capsys, "diff", digits_of_one_kind, output)
    else:
        code, out, _ = run(capsys, "diff", digits_of_one_kind, output, "--json")
        assert code == 1
        differences = json.loads(out)
        assert len(differences["other_bytes"]) == 1
        assert not differences["added"] | differences["removed"] | differences["relabelled"] | differences["moved"]
    path.write_bytes(content[: len(content) // 2])
    assert str(path.name) in refused(capsys, "diff", digits_of_one_kind, output)


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_no_dataset_and_every_reader_of_datasets_says_so(capsys, digits_of_one_kind, tmp_path, name):
    output = export(capsys, digits_of_one_kind, name)
    commands = [
        ("verify", output),
        ("report", output),
        ("reshard", output, "--shard_size=1MB", f"--output={tmp_path}/no"),
        ("export-dataset", output, f"--format={name}", f"--output={tmp_path}/no"),
    ]
    for command in commands:
        message = refused(capsys, *command)
        assert f"is an export in the format {name}, not a dataset" in message
        assert f"jpeg2tpu convert --input={output}" in message
    with pytest.raises(ValueError, match=f"an export in the format {name}"):
        tpu_input.read_manifest(str(output))


@pytest.mark.parametrize("name", EXPORTS)
def test_a_pipe_as_a_shard_is_refused_and_not_waited_for(capsys, digits_of_one_kind, tmp_path, name):
    output = export(capsys, digits_of_one_kind, name)
    shard = min(output.rglob(f"train-*.{ENDINGS[name]}"))
    shard.unlink()
    os.mkfifo(shard)
    assert shard.name in refused(capsys, "diff", digits_of_one_kind, output)
    assert shard.name in refused(capsys, "convert", f"--input={output}", f"--output={tmp_path}/no")


def test_a_dataset_that_grows_while_it_is_exported_is_said(
    capsys, few_digits, digits_of_one_kind, tmp_path, monkeypatch
):
    def grow() -> None:
        shutil.copytree(few_digits / "0", few_digits / "3")
        convert(options(few_digits, digits_of_one_kind, seed=4, max_rejected=0.01, extend=True))

    after_planning(monkeypatch, grow)
    command = ("export-dataset", digits_of_one_kind, "--format=webdataset", f"--output={tmp_path}/out")
    assert "has changed while it was exported" in refused(capsys, *command)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert run(capsys, *command, "--overwrite")[0] == 0


@pytest.mark.cloud
@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_in_a_bucket_is_the_one_on_disk(capsys, cloud, digits_of_one_kind, name):
    bucket, output = cloud.make_bucket(), export(capsys, digits_of_one_kind, name)
    cloud.upload(digits_of_one_kind, f"{bucket}/dataset")
    to = f"--output={bucket}/export"
    code, _, err = run(capsys, "export-dataset", f"{bucket}/dataset", f"--format={name}", to)
    assert code == 0, err
    local, uploaded = files(output), cloud.files(f"{bucket}/export")
    assert {path for path in local if path != "manifest.json"} == {path for path in uploaded if path != "manifest.json"}
    shards = [path for path in local if path.endswith(f".{ENDINGS[name]}")]
    assert {path: uploaded[path] for path in shards} == {path: local[path] for path in shards}
    code, out, err = run(capsys, "diff", digits_of_one_kind, f"{bucket}/export")
    assert (code, err) == (0, "")
    assert "36 examples are the same" in out


def test_mistakes_are_answered_with_one_line(capsys, digits_of_one_kind, tmp_path):
    command = ("export-dataset", digits_of_one_kind)
    output = f"--output={tmp_path}/out"
    assert "cannot be written to, only local folders and gs://" in refused(
        capsys, *command, "--format=parquet", "--output=s3://b/x"
    )
    assert "has no split 'tset'" in refused(capsys, *command, "--format=parquet", "--split=tset", output)
    assert "overlap" in refused(capsys, *command, "--format=parquet", f"--output={digits_of_one_kind}/x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    assert "contains other files" in refused(capsys, *command, "--format=parquet", output)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["mine.txt"]


def test_a_feature_with_the_name_of_a_part_is_refused(capsys, few_digits, tmp_path):
    lines = ["image,label,height", *(f"{path},{path.parent.name},3" for path in few_digits.glob("*/*.jpg"))]
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    args = (f"--input={tmp_path}/list.csv", f"--output={tmp_path}/d", "--feature=height:int")
    assert run(capsys, "convert", *args)[0] == 0
    message = refused(capsys, "export-dataset", tmp_path / "d", "--format=webdataset", f"--output={tmp_path}/out")
    assert "the feature 'height'" in message


def test_what_is_missing_names_its_extra(capsys, monkeypatch, digits_of_one_kind, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = refused(capsys, "export-dataset", digits_of_one_kind, "--format=array_record", f"--output={tmp_path}/out")
    assert message == (
        "error: --format=array_record needs array_record; install it with: pip install 'jpeg2tpu[array_record]'\n"
    )


def test_a_damaged_record_is_named_and_nothing_is_left_out(capsys, digits_of_one_kind, tmp_path):
    shard = digits_of_one_kind / manifest_of(digits_of_one_kind).splits["train"].shards[0].name
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    command = ("export-dataset", digits_of_one_kind, "--format=webdataset", f"--output={tmp_path}/out")
    message = refused(capsys, *command)
    assert "1 of" in message
    assert f"jpeg2tpu verify --repair {digits_of_one_kind}" in message
    assert not (tmp_path / "out" / "manifest.json").exists()
