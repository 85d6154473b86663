"""Lists become rows, and every line is one."""

from __future__ import annotations

import os

import pytest
from inputs import listed, make, reasons

from beam_pipelines import command_line
from beam_pipelines.listing import check_source
from beam_pipelines.lists import list_columns, rows_of_list
from beam_pipelines.options import Source
from beam_pipelines.rows import (
    Row,
)


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
        '{"image": "http://x.org/1.jpg", "label": "cat"}',
        '{"image": "%s.jpg", "label": "cat"}' % ("x" * 300),
        '{"image": "1.jpg", "label": "cat", "split": "%s"}' % ("x" * 65),
        "[" * 100_000,
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    rows = sorted(listed(tmp_path / "list.jsonl"), key=lambda row: row.number)
    assert [row.reason for row in rows] == ["bad_line"] * 3 + ["missing"] * 3 + ["bad_split", "bad_line"]
    assert rows[0].detail == "line 1 is not UTF-8; save the list as such"
    assert rows[4].detail == "no such file, or nothing installed reads such URIs"


def test_the_split_of_a_line_that_is_rejected_anyway_is_no_path(tmp_path):
    make(tmp_path, "1.jpg")
    (tmp_path / "list.csv").write_text("image,label,split\n1.jpg,,../../escaped\n1.jpg,bird,/x\ngone.jpg,cat,../x\n")
    rows = listed(tmp_path / "list.csv", labels=("cat", "dog"))
    assert sorted((row.reason, row.split) for row in rows) == [("bad_split", ""), ("missing", ""), ("no_label", "")]


def test_a_csv_without_the_columns_needed_is_refused(tmp_path):
    (tmp_path / "list.csv").write_text("file,class,size\na,b,1\n")
    with pytest.raises(ValueError, match="begins with 'file,class,size', needs the header image,label"):
        list_columns(str(tmp_path / "list.csv"))


@pytest.mark.parametrize(
    "line", ['"1.jpg,cat\n1.jpg,cat', '"1.jpg,cat\n"1.jpg",cat', pytest.param("x" * 200_000 + ",cat", id="endless")]
)
def test_a_csv_with_a_quote_that_is_not_closed_is_refused_by_its_line(tmp_path, line):
    (tmp_path / "list.csv").write_text(f'image,label\n"two\nlines.jpg",cat\n{line}\n')
    with pytest.raises(ValueError, match=r"list\.csv', line 4: .*; close each quote"):
        listed(tmp_path / "list.csv")
    (tmp_path / "list.csv").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"list\.csv', line 1: .*; close each quote"):
        check_source(Source(str(tmp_path / "list.csv")))


def test_a_list_whose_own_split_is_another_than_the_input_s_is_refused(tmp_path):
    make(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "list.csv").write_text("image,label,split\n1.jpg,cat,train\n2.jpg,cat,\n")
    assert [row.split for row in listed(Source(f"{tmp_path}/list.csv", "train"))] == ["train"] * 2
    message = r"--input=test=.*list\.csv and the list's own split, 'train' of '1\.jpg', differ; leave out one of them"
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
    with pytest.raises(ValueError, match=r"classes\.txt' is not UTF-8, save it as such"):
        listed(Source(str(tmp_path / "val"), label_list=str(tmp_path / "classes.txt")))


def test_a_label_list_for_a_list_is_refused():
    with pytest.raises(ValueError, match=r"in\.csv' names a label in each line, so --label_list=labels\.txt must be"):
        Source("in.csv", label_list="labels.txt")


def test_class_names_saved_by_an_editor_of_windows_are_the_names(tmp_path):
    (tmp_path / "labels.txt").write_bytes(b"\xef\xbb\xbfcat\r\ndog\r\n")
    assert command_line.names(str(tmp_path / "labels.txt")) == ("cat", "dog")


def test_a_second_label_list_for_one_split_is_refused_rather_than_taken_for_both():
    with pytest.raises(ValueError, match="each split needs a --label_list of its own, as SPLIT=FILE; got"):
        command_line.with_label_lists([Source("/in")], ["/a.txt", "/b.txt"])


def test_a_line_that_is_not_utf8_makes_up_no_names(tmp_path):
    lines = ["image,label", "1.jpg,fox", "2.jpg,b\xe4r", "3.jpg,b\xf6r", "gr\xfcn.jpg,fox"]
    (tmp_path / "list.csv").write_bytes("\n".join(lines).encode("latin1"))
    rows = list(rows_of_list(str(tmp_path / "list.csv")))
    assert [row.reason for row in rows] == ["", *["bad_line"] * 3]
    assert rows[1].detail == "line 3 is not UTF-8; save the list as such"
    (tmp_path / "list.csv").write_bytes("\n".join(lines).encode("utf-16"))
    with pytest.raises(ValueError, match=r"list\.csv' is not UTF-8 from its first line on; save it as such"):
        list(rows_of_list(str(tmp_path / "list.csv")))
