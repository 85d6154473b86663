"""Contract over the kinds of inputs in the registry: what holds for one holds for all, and each recognises its own."""

from __future__ import annotations

import collections
import csv
import functools
import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.options import Source
from beam_pipelines.runners import phases
from beam_pipelines.shard_formats.all_formats import EXPORTS
from beam_pipelines.sources.input_kinds import InputKind
from beam_pipelines.sources.listing import KINDS, kind_of
from beam_pipelines.storage import STORES
from support.folders import files
from support.pipelines_commands import refused, run
from support.stored_records import splits_by_key
from tpu_input.dataset_format.records import Record, decode, read_frames
from tpu_input.dataset_format.tfrecord import frame, serialize


def images(digits: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yields (class, name of the file, content) of 12 digits of two classes."""
    for label in ("3", "7"):
        for number, path in enumerate(sorted((digits / label).iterdir())[:6]):
            yield f"digit {label}", f"{label}{number}.jpg", path.read_bytes()


def folder(work: Path, digits: Path) -> list[str]:
    for label, name, data in images(digits):
        (work / "in" / label).mkdir(parents=True, exist_ok=True)
        (work / "in" / label / name).write_bytes(data)
    return [f"{work}/in"]


def archive(work: Path, digits: Path) -> list[str]:
    with tarfile.open(work / "in.tar", "w") as tar:
        for label, name, data in images(digits):
            add(tar, f"{label}/{name}", data)
    return [f"{work}/in.tar"]


def zipped(work: Path, digits: Path) -> list[str]:
    with zipfile.ZipFile(work / "in.zip", "w") as archive:
        for label, name, data in images(digits):
            archive.writestr(f"{label}/{name}", data)
    return [f"{work}/in.zip"]


def labels(work: Path, digits: Path) -> list[str]:
    samples = sorted(images(digits), key=lambda sample: sample[1])
    (work / "in").mkdir()
    for _, name, data in samples:
        (work / "in" / name).write_bytes(data)
    (work / "labels.txt").write_text("".join(f"{label}\n" for label, _, _ in samples))
    return [f"{work}/in", f"--label_list={work}/labels.txt"]


def table(work: Path, digits: Path) -> list[str]:
    (path,) = folder(work, digits)
    with open(work / "in.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [("image", "label"), *((f"{path}/{label}/{n}", label) for label, n, _ in images(digits))]
        )
    return [f"{work}/in.csv"]


def parquet(work: Path, digits: Path) -> list[str]:
    samples = list(images(digits))
    column = [{"bytes": data, "path": name} for _, name, data in samples]
    pq.write_table(pa.table({"image": column, "label": [label for label, _, _ in samples]}), work / "in.parquet")
    return [f"{work}/in.parquet"]


def tfrecords(work: Path, digits: Path) -> list[str]:
    with open(work / "in.tfrecord", "wb") as file:
        for label, _, data in images(digits):
            file.write(frame(serialize({"jpg": data, "cls": label.encode()})))
    return [f"{work}/in.tfrecord", "--record=image=jpg,label=cls"]


def webdataset(work: Path, digits: Path, folder: str = "") -> list[str]:
    with tarfile.open(work / "in.tar", "w") as tar:
        for label, name, data in images(digits):
            add(tar, f"{folder}{name}", data)
            add(tar, f"{folder}{name.replace('jpg', 'cls')}", label.encode())
    return [f"{work}/in.tar"]


def dataset(work: Path, digits: Path) -> list[str]:
    work = work / "first"
    work.mkdir()
    from beam_pipelines import ConvertOptions, convert

    convert(ConvertOptions((Source(folder(work, digits)[0]),), f"{work}/dataset"))
    return [f"{work}/dataset"]


def exported(work: Path, digits: Path, name: str) -> list[str]:
    from beam_pipelines import convert
    from beam_pipelines.rewrite import exporting

    convert(exporting(dataset(work, digits)[0], f"{work}/export", name))
    return [f"{work}/export"]


def exporter(name: str) -> Callable[[Path, Path], list[str]]:
    make = functools.partial(exported, name=name)
    make.__name__ = f"exported_{name}"  # type: ignore[attr-defined]
    return make


EXPORTED = tuple(map(exporter, EXPORTS))


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


# Inputs of each kind; one that is registered without having any fails.
INPUTS: dict[str, tuple[Callable[[Path, Path], list[str]], ...]] = {
    "a folder of class folders": (folder,),
    "an archive of class folders": (archive, zipped),
    "a list": (table,),
    "images with a list of their labels": (labels,),
    "records": (parquet, tfrecords, webdataset),
    "a dataset": (dataset,),
    "an export": EXPORTED,
}
ALL = [(kind, make) for kind in KINDS for make in INPUTS[kind.name]]


def converted(
    capsys: pytest.CaptureFixture[str], work: Path, arguments: list[str], *flags: str
) -> list[tuple[str, bytes]]:
    path, *more = arguments
    code, _, err = run(capsys, "convert", f"--input={path}", *more, f"--output={work}/out", *flags)
    assert code == 0, err
    records: list[Record] = []
    for shard in (work / "out").glob("*.tfrecord"):
        with open(shard, "rb") as file:
            records += [decode(payload) for _, payload in read_frames(file)]
    return sorted((record.class_name, record.encoded) for record in records)


@pytest.mark.parametrize(("kind", "make"), ALL, ids=lambda value: getattr(value, "__name__", ""))
def test_all_kinds_of_the_same_images_give_the_same_records(
    capsys, digits, tmp_path, kind: InputKind, make: Callable[[Path, Path], list[str]]
) -> None:
    arguments = make(tmp_path, digits)
    assert converted(capsys, tmp_path, arguments) == sorted((label, data) for label, _, data in images(digits))


# Stores that inputs are read from, by scheme: each has a fixture with make_bucket() and upload(). One that is
# registered without being here fails.
FIXTURES = {
    "gs": pytest.param("cloud", marks=pytest.mark.cloud),
    "s3": pytest.param("s3"),
    "az": pytest.param("az", marks=pytest.mark.cloud),
    "hf": pytest.param("hub"),
}


@pytest.mark.parametrize("store", [FIXTURES[scheme] for scheme, store in STORES.items() if store.is_listing])
@pytest.mark.parametrize(("kind", "make"), ALL, ids=lambda value: getattr(value, "__name__", ""))
def test_all_kinds_give_the_same_records_from_a_store(capsys, request, digits, tmp_path, kind, make, store) -> None:
    arguments = make(tmp_path, digits)
    place = request.getfixturevalue(store)
    bucket = place.make_bucket()
    for path in tmp_path.glob("*.csv"):
        path.write_text(path.read_text().replace(str(tmp_path), bucket))
    place.upload(tmp_path, bucket)
    flags = [flag.replace(str(tmp_path), bucket) for flag in arguments]
    assert converted(capsys, tmp_path, flags) == sorted((label, data) for label, _, data in images(digits))


@pytest.mark.parametrize("make", [archive, zipped, parquet, tfrecords, webdataset])
def test_files_of_images_give_the_same_records_from_a_web_server(capsys, web, digits, tmp_path, make) -> None:
    path, *more = make(tmp_path, digits)
    path = path.replace(str(tmp_path), f"{web.url}/a%20folder")
    web.root = {"a folder": tmp_path}
    assert converted(capsys, tmp_path, [path, *more]) == sorted((label, data) for label, _, data in images(digits))


# Options that let the rows of an input pass through all steps of planning, or fail there.
OPTIONS = (
    ["--shard_size=10KB", "--seed=3"],
    ["--shard_size=10KB", "--dedup=near", r"--group_by=([0-9])\d*\.", "--splits=train=60%,test=40%"],
    ["--dedup=exact", "--splits=train=60%,test=40%", "--num_shards=train=3", "--stratify"],
)


@pytest.mark.parametrize("flags", OPTIONS, ids=["default", "groups", "stratify"])
@pytest.mark.parametrize(("kind", "make"), ALL, ids=lambda value: getattr(value, "__name__", ""))
def test_beam_makes_the_plan_that_is_made_in_this_process(capsys, digits, tmp_path, kind, make, flags) -> None:
    path, *more = make(tmp_path, digits)
    command = ["convert", f"--input={path}", *more, *flags, "--max_rejected=100%"]
    local = run(capsys, *command, f"--output={tmp_path}/here")
    beam = run(capsys, *command, f"--output={tmp_path}/beam", "--runner=DirectRunner")
    assert outcome(beam) == [line.replace("/here", "/beam") for line in outcome(local)]
    assert files(tmp_path / "beam") == files(tmp_path / "here")


def outcome(result: tuple[int | str | None, str, str]) -> list[str]:
    """The exit code and the lines that a command has printed, but those that say how far it is, after some seconds."""
    code, out, err = result
    return [str(code), *(line for line in f"{out}{err}".splitlines() if line.partition(":")[0] not in phases.UNITS)]


@pytest.mark.parametrize(("kind", "make"), ALL, ids=lambda value: getattr(value, "__name__", ""))
def test_a_split_before_an_input_is_that_of_all_its_images(capsys, digits, tmp_path, kind, make) -> None:
    path, *more = make(tmp_path, digits)
    more = [flag.replace("label_list=", "label_list=test=") for flag in more]
    if make in (dataset, *EXPORTED):  # its examples have splits already, which are others
        assert "contradicts the split" in refused(capsys, "convert", f"--input=test={path}", f"--output={tmp_path}/out")
        return
    converted(capsys, tmp_path, [f"test={path}", *more])
    assert set(splits_by_key(tmp_path / "out").values()) == {"test"}


def table_with_splits(work: Path, digits: Path, names: list[str]) -> list[str]:
    (path,) = folder(work, digits)
    lines = [(f"{path}/{label}/{n}", label, split) for (label, n, _), split in zip(images(digits), names, strict=True)]
    with open(work / "in.csv", "w", newline="") as file:
        csv.writer(file).writerows([("image", "label", "Split"), *lines])
    return [f"{work}/in.csv", "--image_column=image"]


def json_with_splits(work: Path, digits: Path, names: list[str]) -> list[str]:
    (path,) = folder(work, digits)
    rows = [
        {"image": f"{path}/{label}/{n}", "label": label, "split": split}
        for (label, n, _), split in zip(images(digits), names, strict=True)
    ]
    (work / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return [f"{work}/in.jsonl"]


def parquet_with_splits(work: Path, digits: Path, names: list[str]) -> list[str]:
    (path,) = parquet(work, digits)
    pq.write_table(pq.read_table(path).append_column("split", [names]), path)
    return [path]


def webdataset_with_splits(work: Path, digits: Path, names: Sequence[str | int]) -> list[str]:
    with tarfile.open(work / "in.tar", "w") as tar:
        for (label, name, data), split in zip(images(digits), names, strict=True):
            add(tar, name, data)
            add(tar, name.replace("jpg", "cls"), label.encode())
            add(tar, name.replace("jpg", "json"), json.dumps({"split": split}).encode())
    return [f"{work}/in.tar"]


WITH_SPLITS = (table_with_splits, json_with_splits, parquet_with_splits, webdataset_with_splits)


@pytest.mark.parametrize("make", WITH_SPLITS)
def test_splits_that_inputs_name_have_one_vocabulary(capsys, digits, tmp_path, make) -> None:
    path, *more = make(tmp_path, digits, ["train", "Training", "val", "VALID", "dev", "test"] * 2)
    converted(capsys, tmp_path, [path, *more])
    counts = collections.Counter(splits_by_key(tmp_path / "out").values())
    assert counts == {"train": 4, "validation": 6, "test": 2}


@pytest.mark.parametrize("name", ["nan", "None", "N/A"])
@pytest.mark.parametrize("make", WITH_SPLITS)
def test_what_stands_for_no_split_is_refused(capsys, digits, tmp_path, make, name) -> None:
    path, *more = make(tmp_path, digits, ["train"] * 11 + [name])
    message = refused(capsys, "convert", f"--input={path}", *more, f"--output={tmp_path}/out")
    assert f"is '{name}', which stands for none" in message
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_split_of_webdataset_that_is_no_text_is_rejected_not_ignored(capsys, digits, tmp_path) -> None:
    path, *more = webdataset_with_splits(tmp_path, digits, ["train"] * 11 + [1])
    message = refused(capsys, "convert", f"--input={path}", *more, f"--output={tmp_path}/out")
    assert "bad_split 1" in message


@pytest.mark.parametrize(
    "flags", [("--splits=train=50%,val=50%",), ("--splits=Training=50%,dev=50%",), ("--splits=train=50%,VALID=50%",)]
)
def test_splits_that_options_name_have_the_same_vocabulary(capsys, digits, tmp_path, flags) -> None:
    converted(capsys, tmp_path, [*folder(tmp_path, digits), *flags])
    assert set(splits_by_key(tmp_path / "out").values()) == {"train", "validation"}


def test_inputs_of_splits_have_the_same_vocabulary(capsys, digits, tmp_path) -> None:
    (path,) = folder(tmp_path, digits)
    converted(capsys, tmp_path, [f"Train={path}", f"--input=dev={path}"])
    assert set(splits_by_key(tmp_path / "out").values()) == {"train", "validation"}
    message = refused(
        capsys, "convert", f"--input=train={path}", f"--input=training={path}", f"--output={tmp_path}/again"
    )
    assert "must have its own split" in message


@pytest.mark.parametrize("text", ["0.5", "cat;dog", "cat|dog", "[1, 2]"])
@pytest.mark.parametrize("make", [table, parquet, tfrecords, webdataset, labels])
def test_what_is_no_single_class_is_refused(capsys, digits, tmp_path, monkeypatch, make, text) -> None:
    samples = [(text, name, data) for _, name, data in images(digits)]
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "images", lambda digits: iter(samples))
        (tmp_path / "in" / text).mkdir(parents=True) if make is table else None
        path, *more = make(tmp_path, digits)
    message = refused(capsys, "convert", f"--input={path}", *more, f"--output={tmp_path}/out")
    assert f"the label '{text}'" in message
    assert "list it in --labels" in message


@pytest.mark.parametrize("more", [(), ("--label_type=classes",)], ids=["one label", "several"])
@pytest.mark.parametrize("make", [table, parquet, tfrecords, webdataset, labels])
def test_a_label_of_minus_one_is_none(capsys, digits, tmp_path, monkeypatch, make, more) -> None:
    samples = [("-1" if name == "30.jpg" else label, name, data) for label, name, data in images(digits)]
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "images", lambda digits: iter(samples))
        (tmp_path / "in" / "-1").mkdir(parents=True) if make is table else None
        arguments = [*make(tmp_path, digits), *more]
    assert "no_label" in refused(
        capsys, "convert", f"--input={arguments[0]}", *arguments[1:], f"--output={tmp_path}/no"
    )
    stored = converted(capsys, tmp_path, arguments, "--max_rejected=10%")
    assert {name if isinstance(name, str) else name[0] for name, _ in stored} == {"digit 3", "digit 7"}
    assert len(stored) == 11


@pytest.mark.parametrize(("kind", "make"), ALL, ids=lambda value: getattr(value, "__name__", ""))
def test_a_kind_recognises_its_own_and_no_kind_before_it_does(digits, tmp_path, kind, make) -> None:
    path, *flags = make(tmp_path, digits)
    fields = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    if make is webdataset:
        fields["record"] = "webdataset"  # as recognise() finds
    assert kind_of(Source(path, **fields)) is kind


def test_a_tar_that_can_only_be_webdataset_is_read_as_it_and_the_command_says_so(capsys, digits, tmp_path) -> None:
    (path,) = webdataset(tmp_path, digits)
    code, _, err = run(capsys, "convert", f"--input={path}", f"--output={tmp_path}/out")
    assert (code, err) == (0, f"{path}: read as WebDataset, because it has 30.cls; this is --record=webdataset\n")
    code, _, err = run(capsys, "convert", f"--input={path}", "--record=webdataset", f"--output={tmp_path}/out")
    assert (code, err) == (0, "")  # it is complete: the same conversion


def test_a_folder_of_such_tars_and_numbers_without_names(capsys, digits, tmp_path) -> None:
    (tmp_path / "shards").mkdir()
    for shard in range(2):
        with tarfile.open(tmp_path / f"shards/train-{shard:06d}.tar", "w") as tar:
            for label, name, data in images(digits):
                add(tar, f"{shard}{name}", data)
                add(tar, f"{shard}{name.replace('jpg', 'cls')}", b"0" if label.endswith("3") else b"1")
    code, _, err = run(capsys, "convert", f"--input={tmp_path}/shards", f"--output={tmp_path}/out")
    lines = err.splitlines()
    assert code == 0
    assert lines[0].startswith(f"{tmp_path}/shards: read as WebDataset, because it has ")
    assert lines[-1].startswith(
        "labels are numbers, 0 to 1, and so are the names of the classes; name them with --labels="
    )


def test_what_can_be_two_kinds_is_refused_with_both(capsys, digits, tmp_path) -> None:
    (path,) = webdataset(tmp_path, digits, folder="cat/")
    message = refused(capsys, "convert", f"--input={path}", f"--output={tmp_path}/out")
    assert "can be read in two ways" in message
    assert "--record=webdataset" in message
    assert "--ignore='*.cls'" in message
    code, _, err = run(capsys, "convert", f"--input={path}", f"--output={tmp_path}/out", "--record=webdataset")
    assert code == 0, err
    message = refused(capsys, "convert", f"--input={path}", f"--output={tmp_path}/cat", "--ignore=*.cls")
    assert "only one class" in message  # it is read as folders
