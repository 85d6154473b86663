"""Lists become rows, and every line is one."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
from pathlib import Path

import pytest
import tensorflow as tf

from beam_pipelines import conversion_flags, storage
from beam_pipelines.__main__ import main
from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources.listing import check_source
from beam_pipelines.sources.lists import rows_of_list
from beam_pipelines.sources.rows import Row, check_names, find_all
from support.inputs import listed, make, reasons


def test_a_csv_takes_columns_in_any_order_quotes_utf8_and_relative_paths(tmp_path):
    (tmp_path / "été, 1.jpg").write_bytes(b"123")
    (tmp_path / "list.csv").write_text('label,image,split,group\ncat,"été, 1.jpg",test,g1\n', encoding="utf-8-sig")
    assert listed(tmp_path / "list.csv") == [
        Row("été, 1.jpg", f"{tmp_path}/été, 1.jpg", "cat", "test", "g1", num_bytes=3, number=2)
    ]


def test_a_csv_without_header_is_path_and_label_as_in_tensorflow_tpu(tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"1")
    (tmp_path / "list.csv").write_text("1.jpg,cat\n")
    assert [(row.key, row.label, row.reason) for row in listed(tmp_path / "list.csv")] == [("1.jpg", "cat", "")]


def test_a_jsonl_list_reads_the_same(tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"1")
    (tmp_path / "list.jsonl").write_text('{"image": "1.jpg", "label": "cat"}\nnot json\n\n{"label": "cat"}\n')
    assert reasons(listed(tmp_path / "list.jsonl")) == {"1.jpg": "", "line 2": "bad_line", "line 4": "bad_line"}


def test_every_bad_line_of_a_list_is_a_row_with_a_reason(tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"1")
    lines = ["image,label,split", "1.jpg,dog,", "1.jpg,,", "gone.jpg,cat,", ",cat,", "1.jpg,cat,a/b", ""]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    rows = listed(tmp_path / "list.csv", labels=("cat", "cow"))
    assert sorted(row.reason for row in rows) == [
        "bad_line",
        "bad_split",
        "missing",
        "no_label",
        "unknown_label",
    ]


class Counted(str):
    """A class name that counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_a_label_is_looked_up_and_not_compared_with_every_class():
    labels = tuple(Counted(f"n{number:08d}") for number in range(21_841))
    options = ConvertOptions((Source("/list.csv"),), "/out", labels=labels)
    options = pickle.loads(pickle.dumps(options))  # as a Beam worker gets them
    before = Counted.compared
    assert check_names(Row("1.jpg", label="n00021840"), options).reason == ""
    assert check_names(Row("1.jpg", label="n00021841"), options).reason == "unknown_label"
    assert Counted.compared - before < 10


def test_a_file_is_one_key_however_a_list_spells_it_and_is_found_as_it_is_spelled(tmp_path):
    make(tmp_path, "c0/0.jpg", "else/deep/0.jpg")
    os.symlink(tmp_path / "else" / "deep", tmp_path / "link")
    (tmp_path / "list.csv").write_text("c0/0.jpg,a\n./c0/0.jpg,a\nc0/../c0//0.jpg,a\nlink/../deep/0.jpg,a\n")
    rows = listed(tmp_path / "list.csv")
    assert {(row.key, row.reason) for row in rows} == {("c0/0.jpg", ""), ("deep/0.jpg", "")}


def test_no_line_of_a_list_ends_a_conversion(tmp_path):
    make(tmp_path, "1.jpg")
    lines = [
        r'{"image": "\ud800.jpg", "label": "cat"}',
        r'{"image": "1.jpg", "label": "\udfff"}',
        r'{"image": "1.jpg", "label": "cat", "group": "\ud800"}',
        r'{"image": "a\u0000b.jpg", "label": "cat"}',
        '{"image": "ftp://x.org/1.jpg", "label": "cat"}',
        '{"image": "%s.jpg", "label": "cat"}' % ("x" * 300),
        '{"image": "1.jpg", "label": "cat", "split": "%s"}' % ("x" * 65),
        "[" * 100_000,
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    rows = sorted(listed(tmp_path / "list.jsonl"), key=lambda row: row.number)
    assert [row.reason for row in rows] == ["bad_line"] * 3 + ["missing"] * 3 + ["bad_split", "bad_line"]
    assert rows[0].detail == "line 1 is not UTF-8; save the list as UTF-8"
    assert rows[4].detail == (
        "images of a list can be local files, gs://, s3://, az:// and hf://, or URLs with http:// or https://"
    )


def test_the_split_of_a_line_that_is_rejected_anyway_is_no_path(tmp_path):
    make(tmp_path, "1.jpg")
    (tmp_path / "list.csv").write_text("image,label,split\n1.jpg,,../../escaped\n1.jpg,bird,/x\ngone.jpg,cat,../x\n")
    rows = listed(tmp_path / "list.csv", labels=("cat", "dog"))
    assert sorted((row.reason, row.split) for row in rows) == [("bad_split", ""), ("missing", ""), ("no_label", "")]


def test_a_csv_without_the_columns_needed_is_refused(tmp_path):
    (tmp_path / "list.csv").write_text("file,class,size\na,b,1\n")
    with pytest.raises(ValueError, match="begins with 'file,class,size', but must have the header image,label"):
        check_source(source := Source(str(tmp_path / "list.csv")), ConvertOptions((source,), "out"))


@pytest.mark.parametrize(
    "line", ['"1.jpg,cat\n1.jpg,cat', '"1.jpg,cat\n"1.jpg",cat', pytest.param("x" * 200_000 + ",cat", id="endless")]
)
def test_a_csv_with_a_quote_that_is_not_closed_is_refused_by_its_line(tmp_path, line):
    (tmp_path / "list.csv").write_text(f'image,label\n"two\nlines.jpg",cat\n{line}\n')
    with pytest.raises(ValueError, match=r"list\.csv', line 4: .*; close every quoted field"):
        listed(tmp_path / "list.csv")
    (tmp_path / "list.csv").write_text(f"{line}\n")
    source = Source(str(tmp_path / "list.csv"))
    with pytest.raises(ValueError, match=r"list\.csv', line 1: .*; close every quoted field"):
        check_source(source, ConvertOptions((source,), "out"))


def test_a_list_whose_own_split_is_another_than_the_input_s_is_refused(tmp_path):
    make(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "list.csv").write_text("image,label,split\n1.jpg,cat,train\n2.jpg,cat,\n")
    assert [row.split for row in listed(Source(f"{tmp_path}/list.csv", "train"))] == ["train"] * 2
    message = r"--input=test=.*list\.csv contradicts the split of '1\.jpg' in it, 'train'; leave out the split"
    with pytest.raises(ValueError, match=message):
        listed(Source(f"{tmp_path}/list.csv", "test"))


def test_a_label_list_of_another_length_than_the_folder_is_refused(tmp_path):
    make(tmp_path, "val/1.jpg", "val/2.jpg")
    (tmp_path / "synsets.txt").write_text("n02\n")
    with pytest.raises(ValueError, match="has 1 labels for the 2 files of"):
        listed(Source(str(tmp_path / "val"), label_list=str(tmp_path / "synsets.txt")))


def test_a_label_list_is_a_class_name_a_line_for_images_alone(tmp_path):
    make(tmp_path, "val/1.jpg", "val/2.jpg", "val/.DS_Store", "val/Thumbs.db")
    (tmp_path / "classes.txt").write_bytes(b"\xef\xbb\xbfgolden retriever\r\npoodle\r\n\r\n")
    rows = listed(Source(str(tmp_path / "val"), "validation", str(tmp_path / "classes.txt")))
    assert {row.key: (row.label, row.reason) for row in rows} == {
        "1.jpg": ("golden retriever", ""),
        "2.jpg": ("poodle", ""),
        ".DS_Store": ("", "system_file"),
        "Thumbs.db": ("", "system_file"),
    }
    (tmp_path / "classes.txt").write_bytes("chêne\nhêtre\n".encode("latin1"))
    with pytest.raises(ValueError, match=r"classes\.txt' is not UTF-8; save it as UTF-8"):
        listed(Source(str(tmp_path / "val"), label_list=str(tmp_path / "classes.txt")))


def test_a_label_list_for_a_list_is_refused():
    with pytest.raises(ValueError, match=r"in\.csv' names a label in each line, so --label_list=.*labels\.txt must be"):
        Source("in.csv", label_list="labels.txt")


def test_class_names_saved_by_an_editor_of_windows_are_the_names(tmp_path):
    (tmp_path / "labels.txt").write_bytes(b"\xef\xbb\xbfcat\r\ndog\r\n")
    assert conversion_flags.names(str(tmp_path / "labels.txt")) == ("cat", "dog")


def test_a_second_label_list_for_one_split_is_refused_rather_than_taken_for_both():
    with pytest.raises(ValueError, match="each split needs a --label_list of its own, as SPLIT=FILE; got"):
        conversion_flags.with_label_lists([Source("/in")], ["/a.txt", "/b.txt"])


def test_a_line_that_is_not_utf8_makes_up_no_names(tmp_path):
    lines = ["image,label", "1.jpg,fox", "2.jpg,b\xe4r", "3.jpg,b\xf6r", "gr\xfcn.jpg,fox"]
    (tmp_path / "list.csv").write_bytes("\n".join(lines).encode("latin1"))
    source = Source(str(tmp_path / "list.csv"))
    options = ConvertOptions((source,), str(tmp_path / "out"))
    rows = list(rows_of_list(source, options))
    assert [row.reason for row in rows] == ["", *["bad_line"] * 3]
    assert rows[1].detail == "line 3 is not UTF-8; save the list as UTF-8"
    (tmp_path / "list.csv").write_bytes("\r\n".join(lines).encode("utf-16"))  # with a byte order mark
    assert "bad_line" not in [row.reason for row in rows_of_list(source, options)]


def stored(dataset: Path) -> set[tuple[str, str, bytes]]:
    """Returns (file name, class, image) of every record, as TensorFlow reads them."""
    records = set()
    for data in tf.data.TFRecordDataset(sorted(map(str, dataset.glob("*.tfrecord")))).as_numpy_iterator():
        feature = tf.train.Example.FromString(data).features.feature
        name, label = feature["image/filename"], feature["image/class/text"]
        records.add((name.bytes_list.value[0].decode(), label.bytes_list.value[0].decode(), image_of(feature)))
    return records


def image_of(feature) -> bytes:
    return feature["image/encoded"].bytes_list.value[0]


ODD_NAMES = ["a, b.jpg", 'say "cheese".jpg', " two\nlines .jpg", "4;even.jpg", "image", "label.jpg", "0.1"]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_every_pair_that_another_reader_finds_in_a_list_is_stored(few_digits, tmp_path, kind):
    sources = [path.read_bytes() for path in sorted(few_digits.rglob("*.jpg"))]
    names = [*ODD_NAMES, *(f"{number}.jpg" for number in range(20))]
    for name, data in zip(names, sources, strict=False):
        (few_digits / name).write_bytes(data)
    labels = ["cat", "dog, the", '"big" cow', "7", "1.2.3", "none"]
    lines = [{"label": labels[index % 6], "image": name, "group": f"{index}"} for index, name in enumerate(names)]
    path = few_digits / f"list.{kind}"
    with open(path, "w", newline="") as file:
        if kind == "csv":
            writer = csv.DictWriter(file, ["label", "group", "image"])
            writer.writeheader()
            writer.writerows(lines)
        else:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    with open(path, newline="") as file:
        read = list(csv.DictReader(file)) if kind == "csv" else list(map(json.loads, file))
    expected = {(line["image"], line["label"], (few_digits / line["image"]).read_bytes()) for line in read}
    assert len(expected) == len(names)
    convert(ConvertOptions((Source(str(path)),), str(tmp_path / "out")))
    assert stored(tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file_name,label\n0.jpg,a\n1.jpg,b\n", "begins with 'file_name,label', but must have the header image,label"),
        ("filename,class\n0.jpg,a\n1.jpg,b\n", "begins with 'filename,class', but must have the header image,label"),
        ("Image,Label\n0.jpg,a\n1.jpg,b\n", "begins with 'Image,Label', but must have the header image,label"),
        ("image,label,label\n0.jpg,a,b\n1.jpg,b,a\n", "has the column 'label' 2 times; keep only one of them"),
        ("image,label,weight\n0.jpg,a,2\n1.jpg,b,3\n", "has the unknown column 'weight', which would not be stored"),
        (",image,label\n0,0.jpg,a\n1,1.jpg,b\n", "has the unknown column '', which would not be stored (pandas writes"),
        ("image,label\n0.jpg,3\n1.jpg,4;even\n", "line 3: the label '4;even' looks like several classes"),
        (
            "image,label\n0.jpg,3\n1.jpg,\"['a', 'b']\"\n",
            "looks like several classes, which --label_type=classes stores",
        ),
        (
            "image,label\n0.jpg,0.1\n1.jpg,0.2\n",
            "line 2: the label '0.1' is not a whole number; a label must be a class",
        ),
        ("0.jpg,3.0\n1.jpg,4.0\n", "line 1: the label '3.0' is not a whole number"),
        ("image,label\n0.jpg,1\n1.jpg,nan\n", "line 3: the label 'nan' is not a whole number"),
    ],
)
def test_a_csv_that_says_more_than_is_stored_is_refused(tmp_path, text, says):
    check_refused(tmp_path, "list.csv", text, says)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"image": "1.jpg", "label": true}', "line 2: the label is true; write it as text or a whole number"),
        (
            '{"image": "1.jpg", "label": null}',
            "line 2: the label is null; write it as text or a whole number, or remove",
        ),
        ('{"image": "1.jpg", "label": NaN}', "line 2: the label is NaN; write it as text or a whole number"),
        ('{"image": "1.jpg", "label": 0.5}', "line 2: the label is 0.5; write it as text or a whole number"),
        ('{"image": "1.jpg", "label": [4, "even"]}', 'line 2: the label is [4, "even"]; write it as text'),
        ('{"image": "1.jpg", "label": {"a": 1}}', "line 2: the label is"),
        ('{"image": "1.jpg", "label": "0.5"}', "line 2: the label '0.5' is not a whole number"),
        ('{"image": ["1.jpg"], "label": "b"}', 'line 2: the image is ["1.jpg"]; write it as text'),
        ('{"image": "1.jpg", "label": "b", "group": false}', "line 2: the group is false; write it as text"),
        ('{"image": "1.jpg", "label": "b", "box": [1, 2]}', "line 2: unknown field 'box', which would not be stored"),
        ('{"image": "1.jpg", "label": "b", "label": "a"}', "line 2: the field 'label' occurs more than once"),
    ],
)
def test_a_jsonl_that_says_more_than_is_stored_is_refused(tmp_path, line, says):
    check_refused(tmp_path, "list.jsonl", f'{{"image": "0.jpg", "label": "a"}}\n{line}\n', says)


def check_refused(folder: Path, name: str, text: str, says: str) -> None:
    """Lists a list that is refused in one line, which names it."""
    (folder / name).write_text(text)
    make(folder, "0.jpg", "1.jpg")
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        listed(folder / name)
    assert str(error.value).startswith(f"'{folder / name}'")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("list.csv", "image,label\n0.jpg,3\n1.jpg,0.5\n", "line 3: the label '0.5' is not a whole number"),
        ("list.jsonl", '{"image": "0.jpg", "label": null}\n', "line 1: the label is null; write it as text"),
    ],
)
def test_the_command_refuses_a_list_in_one_line_and_writes_nothing(few_digits, capsys, name, text, says):
    (few_digits / name).write_text(text)
    assert main(["convert", f"--input={few_digits / name}", f"--output={few_digits}-out"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: '{few_digits / name}', {says}")
    assert not Path(f"{few_digits}-out").exists()


@pytest.mark.parametrize("line", ["[1, 2]", "1", '"0.jpg"', "{", "[" * 100_000])
def test_a_jsonl_whose_first_line_is_no_object_is_converted_without_it(few_digits, tmp_path, capsys, line):
    images = sorted(few_digits.rglob("*.jpg"))
    lines = [json.dumps({"file": str(path), "label": path.parent.name}) for path in images]
    (tmp_path / "list.jsonl").write_text("\n".join([line, *lines]) + "\n")
    flags = [f"--input={tmp_path}/list.jsonl", "--image_column=file", f"--output={tmp_path}/out", "--max_rejected=10%"]
    assert main(["convert", *flags]) == 0
    assert f"rejected: 1 of {len(images) + 1} inputs (bad_line 1" in capsys.readouterr().out


def test_whole_numbers_and_missing_fields_of_a_jsonl_stay_what_they_were(tmp_path):
    make(tmp_path, "1.jpg", "2.jpg")
    lines = ['{"image": "1.jpg", "label": 7, "split": null, "group": 3}', '{"image": "2.jpg", "label": "7"}']
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    assert [(row.label, row.split, row.group) for row in listed(tmp_path / "list.jsonl")] == [
        ("7", "", "3"),
        ("7", "", ""),
    ]


def test_a_line_with_more_fields_than_columns_is_rejected_rather_than_cut(tmp_path):
    make(tmp_path, "a", "1.jpg", "2.jpg")
    (tmp_path / "list.csv").write_text("image,label\na, b.jpg,cat\n1.jpg,cat,\n2.jpg,dog\n")
    rows = listed(tmp_path / "list.csv")
    assert {(row.key, row.label, row.reason) for row in rows} == {
        ("line 2", "", "bad_line"),
        ("1.jpg", "cat", ""),
        ("2.jpg", "dog", ""),
    }
    assert "line 2 has 3 fields for the columns image,label" in min(rows, key=lambda row: row.number).detail


def test_classes_that_labels_names_may_look_like_anything(tmp_path):
    make(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "list.csv").write_text("image,label\n1.jpg,0.5\n2.jpg,4;even\n")
    assert [row.label for row in listed(tmp_path / "list.csv", labels=("0.5", "4;even"))] == ["0.5", "4;even"]


def test_a_part_of_a_file_that_is_not_there_is_missing_and_nothing_is_read(tmp_path):
    make(tmp_path, "1.bin")
    parts = ["0-5", "2-2", "0-99999999999999", "3-1", "0-6", f"0-{'9' * 5000}"]
    (tmp_path / "list.csv").write_text("".join(f"1.bin#bytes={part},cat\n" for part in parts))
    rows = sorted(listed(tmp_path / "list.csv"), key=lambda row: row.number)
    assert [row.num_bytes for row in rows] == [5, 0, 0, 0, 0, 0]
    assert [row.reason for row in rows] == ["", "", *["missing"] * 4]
    assert storage.read_bytes(rows[0].uri) == b"1.bin"
    assert rows[2].detail == "no such file, or it does not have these bytes"


@pytest.mark.parametrize(("separator", "begin", "end"), [(",", "", "\n"), ("\t", "\ufeff", "\r\n"), (";", "", "\r\n")])
def test_the_command_converts_a_csv_without_header(capsys, few_digits, tmp_path, separator, begin, end):
    images = sorted(file for file in few_digits.rglob("*") if file.is_file())
    lines = "".join(f"{image}{separator}{image.parent.name}{end}" for image in images)
    (tmp_path / "list.csv").write_text(begin + lines, newline="", encoding="utf-8")
    assert main(["convert", f"--input={tmp_path / 'list.csv'}", f"--output={tmp_path / 'out'}"]) == 0
    assert f"rejected: 0 of {len(images)} inputs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("image", "advice"), [("a\\1.jpg", "write / between folders"), ("'a/1.jpg'", "single quotes: remove them")]
)
def test_a_path_that_is_not_written_as_paths_are_here_is_told_apart(tmp_path, image, advice):
    tf.io.write_file(f"{tmp_path}/a/1.jpg", b"")
    (tmp_path / "in.csv").write_text(f"image,label\n{image},0\n")
    (row,) = find_all(listed(f"{tmp_path}/in.csv"))
    assert row.reason == "missing"
    assert advice in row.detail
