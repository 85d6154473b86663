"""Contract over inputs that have numbers for classes: one rule decides which number is the first, or refuses all."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from beam_pipelines.options import Source
from support.inputs import listed
from support.pipelines_commands import refused
from tpu_input.dataset_format.tfrecord import frame, serialize

NAMES = tuple(f"class {letter}" for letter in "abcdefghijkl")  # 12, so that "10" and "2" are in another order as text
NumberedInput = tuple[Source, bool]  # and whether the names are those of --labels


def image(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), 9 * number, np.uint8)).save(file, "JPEG")
    return file.getvalue()


def csv_list(folder: Path, numbers: Sequence[int | str]) -> NumberedInput:
    lines = [f"{index:03d}.jpg,{number}\n" for index, number in enumerate(numbers)]
    (folder / "l.csv").write_text("image,label\n" + "".join(lines))
    return Source(str(folder / "l.csv"), label_names=str(folder / "names.txt")), False


def json_list(folder: Path, numbers: Sequence[int | str]) -> NumberedInput:
    lines = [{"image": f"{index:03d}.jpg", "label": number} for index, number in enumerate(numbers)]
    (folder / "l.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Source(str(folder / "l.jsonl"), label_names=str(folder / "names.txt")), False


def label_list(folder: Path, numbers: Sequence[int | str]) -> NumberedInput:
    (folder / "l.txt").write_text("".join(f"{number}\n" for number in numbers))
    names = str(folder / "names.txt")
    return Source(str(folder / "images"), label_list=str(folder / "l.txt"), label_names=names), False


def webdataset(folder: Path, numbers: Sequence[int | str]) -> NumberedInput:
    with tarfile.open(folder / "x.tar", "w") as tar:
        for index, number in enumerate(numbers):
            for ending, data in (("jpg", image(index)), ("cls", str(number).encode())):
                member = tarfile.TarInfo(f"{index:03d}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return Source(str(folder / "x.tar"), record="webdataset"), True


def parquet(folder: Path, numbers: Sequence[int | str]) -> NumberedInput:
    images = [{"bytes": image(index), "path": f"{index:03d}.jpg"} for index in range(len(numbers))]
    pq.write_table(pa.table({"image": images, "label": list(numbers)}), folder / "x.parquet")
    return Source(str(folder / "x.parquet")), True


def tfrecords(folder: Path, numbers: Sequence[int | str]) -> NumberedInput:
    with open(folder / "x.tfrecord", "wb") as file:
        for index, number in enumerate(numbers):
            label = number.encode() if isinstance(number, str) else number
            file.write(frame(serialize({"cls": label, "jpg": image(index)})))
    return Source(str(folder / "x.tfrecord"), record="image=jpg,label=cls"), True


INPUTS: tuple[Callable[[Path, Sequence[Any]], NumberedInput], ...] = (
    csv_list,
    json_list,
    label_list,
    webdataset,
    parquet,
    tfrecords,
)
N = len(NAMES)
SETS: dict[str, tuple[Sequence[int], int | None]] = {  # numbers, and the first one if it is certain
    "0 to N - 1": (range(N), 0),
    "1 to N": (range(1, N + 1), 1),
    "0 with gaps": ((5, 0, 7), 0),
    "N with gaps": ((N, 2, 5), 1),
    "only 0": ((0, 0), 0),
    "0 to N": (range(N + 1), None),
    "neither 0 nor N": ((3, 4, 5), None),
    "one beyond N": ((*range(1, N + 1), N + 1), None),
    "one below 0": ((*range(N), -2), None),
}


def folders(folder: Path, names: Sequence[str]) -> NumberedInput:
    for index, name in enumerate(names):
        path = folder / "classes" / name / f"{index:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image(index))
    return Source(str(folder / "classes")), False


def names_of(folder: Path, numbered_input: NumberedInput, **options: object) -> dict[int, str]:
    source, is_labels = numbered_input
    rows = listed(source, **({"labels": NAMES} if is_labels else {}), **options)
    assert not [row for row in rows if row.reason]
    return {int(re.findall(r"\d{3}", row.key)[-1]): row.label for row in rows}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in NAMES))
    return tmp_path


def with_images(folder: Path, count: int) -> None:
    (folder / "images").mkdir()
    for index, place in itertools.product(range(count), (folder, folder / "images")):
        (place / f"{index:03d}.jpg").write_bytes(image(index))


@pytest.mark.parametrize("case", SETS)
@pytest.mark.parametrize("make", INPUTS, ids=lambda make: make.__name__)
def test_the_first_number_is_decided_from_all_or_refused(folder: Path, make, case: str) -> None:
    numbers, first = SETS[case]
    with_images(folder, len(numbers))
    numbered_input = make(folder, numbers)
    if first is None:
        smallest, largest = min(numbers), max(numbers)
        with pytest.raises(ValueError, match=f"the numbers {smallest} to {largest}, for {N} names in .*; "):
            names_of(folder, numbered_input)
    else:
        assert names_of(folder, numbered_input) == {
            index: NAMES[number - first] for index, number in enumerate(numbers)
        }


@pytest.mark.parametrize("make", INPUTS[:3], ids=lambda make: make.__name__)
@pytest.mark.parametrize("numbers", [range(N), range(1, N + 1), (3, 4)])
def test_numbers_that_the_table_has_are_those_meant(folder: Path, make, numbers: Sequence[int]) -> None:
    (folder / "names.txt").write_text("".join(f"{number} {name}\n" for number, name in enumerate(NAMES)))
    with_images(folder, len(numbers))
    numbered_input = make(folder, numbers)
    if max(numbers) == N:
        with pytest.raises(ValueError, match=rf"has 12 names, for 0 to 11, and none for {N}; "):
            names_of(folder, numbered_input)
    else:
        assert names_of(folder, numbered_input) == {index: NAMES[number] for index, number in enumerate(numbers)}


@pytest.mark.parametrize(
    "text", ["a\nb\na\n", "1,a\n2,b\n3,a\n", "a\ncafé\ncafe\u0301\n", "a\nb\na\u00a0\n", "a\n\nb\n"]
)
@pytest.mark.parametrize("make", INPUTS[:3], ids=lambda make: make.__name__)
def test_a_name_is_in_a_table_once(folder: Path, make, text: str) -> None:
    (folder / "names.txt").write_text(text)
    with_images(folder, 3)
    with pytest.raises(ValueError, match="must name each class once"):
        names_of(folder, make(folder, (1, 2, 3)))


SPELLINGS = (
    "cat",
    "cat ",
    "\u00a0cat",
    "cat\u200b",
    "\ufeffcat",
    "caf\u00e9",
    "cafe\u0301",
    " cafe\u0301\u3000",
    "ca t",
)


@pytest.mark.parametrize("make", [*INPUTS, folders], ids=lambda make: make.__name__)
def test_names_have_one_form(folder: Path, make) -> None:
    with_images(folder, len(SPELLINGS))
    source, _ = make(folder, SPELLINGS)
    expected = ["cat"] * 5 + ["caf\u00e9"] * 3 + ["ca t"]
    rows = listed(dataclasses.replace(source, label_names=""))
    assert {int(re.findall(r"\d{3}", row.key)[-1]): row.label for row in rows} == dict(enumerate(expected))
    assert listed(dataclasses.replace(source, label_names=""), labels=("cat\u2003", "cafe\u0301", "ca t")) == rows


@pytest.mark.parametrize("make", [csv_list, json_list, webdataset, parquet, tfrecords], ids=lambda make: make.__name__)
def test_a_name_of_blanks_is_none(folder: Path, make) -> None:
    with_images(folder, 3)
    source, _ = make(folder, ["cat", " \u00a0", "\u200b"])
    rows = sorted(listed(dataclasses.replace(source, label_names="")), key=lambda row: row.key)
    assert [row.reason for row in rows] == ["", "no_label", "no_label"]


def test_several_numbers_an_image_are_decided_together(folder: Path) -> None:
    for labels, first in (([[0, 3], [5], []], 0), ([[1, 3], [N]], 1), ([[0, 3], [N]], None), ([[2], [3]], None)):
        lines = [{"image": f"{index:03d}.jpg", "label": numbers} for index, numbers in enumerate(labels)]
        (folder / "l.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for index in range(len(labels)):
            (folder / f"{index:03d}.jpg").write_bytes(image(index))
        source = Source(str(folder / "l.jsonl"), label_names=str(folder / "names.txt"))
        if first is None:
            with pytest.raises(ValueError, match="for 12 names"):
                listed(source, label_type="classes")
            continue
        names = {row.key: set(row.label.split("\x1f")) - {""} for row in listed(source, label_type="classes")}
        expected = {NAMES[number - first] for number in labels[0]}
        assert names["000.jpg"] == expected


def test_endings_of_webdataset_may_be_in_capitals(folder: Path) -> None:
    webdataset(folder, ["cat", "dog"])
    with tarfile.open(folder / "x.tar") as tar, tarfile.open(folder / "y.tar", "w") as copy:
        for member in tar:
            content = tar.extractfile(member)
            member.name = member.name.upper()
            copy.addfile(member, content)
    for label in ("", ",label=cls", ",label=CLS,image=jpg"):
        rows = listed(Source(str(folder / "y.tar"), record=f"webdataset{label}"))
        assert [row.label for row in rows] == ["cat", "dog"]


@pytest.mark.parametrize(("ending", "label"), [("txt", "txt"), ("json", "json.FIELD")])
def test_a_tar_with_labels_of_another_ending_is_told_how_to_read_it(capsys, folder: Path, ending, label) -> None:
    webdataset(folder, ["cat", "dog"])
    with tarfile.open(folder / "x.tar") as tar, tarfile.open(folder / "y.tar", "w") as copy:
        for member in tar:
            content = tar.extractfile(member)
            member.name = member.name.replace(".cls", f".{ending}")
            copy.addfile(member, content)
    message = refused(capsys, "convert", f"--input={folder}/y.tar", f"--output={folder}/out")
    assert f"WebDataset: --record=webdataset,label={label}" in message
