"""Folders and lists become rows, and every input is one."""

from __future__ import annotations

import os

import pytest

from beam_pipelines.options import ConvertOptions
from beam_pipelines.rows import Row, check_row, list_columns, list_rows, record_bytes
from tpu_input.schema import Record, encode, frame


def listed(source, **changes) -> list[Row]:
    options = ConvertOptions(str(source), "/out", **changes)
    return sorted(check_row(row, options) for row in list_rows(options))


def reasons(rows: list[Row]) -> dict[str, str]:
    return {row.key: row.reason for row in rows}


def test_the_first_folder_names_the_class_however_deep_the_image_lies(tmp_path):
    for path in ("cat/1.jpg", "cat/kittens/2.jpg", "dog/1.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"12345")
    rows = listed(tmp_path)
    assert [(row.key, row.label) for row in rows] == [
        ("cat/1.jpg", "cat"),
        ("cat/kittens/2.jpg", "cat"),
        ("dog/1.jpg", "dog"),
    ]
    assert rows[0].uri == f"{tmp_path}/cat/1.jpg"
    assert {row.num_bytes for row in rows} == {5}


def test_a_file_without_class_and_a_dead_link_are_rows_with_a_reason(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "loose.jpg").write_bytes(b"1")
    os.symlink("/nowhere/at/all.jpg", tmp_path / "cat" / "dead.jpg")
    assert reasons(listed(tmp_path)) == {"loose.jpg": "no_label", "cat/dead.jpg": "missing"}


def test_a_linked_class_folder_is_read_and_a_circle_of_links_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "1.jpg").write_bytes(b"1")
    (tmp_path / "in").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "in" / "cat")
    os.symlink(tmp_path / "in", tmp_path / "real" / "circle")
    assert [row.key for row in listed(tmp_path / "in")][:1] == ["cat/1.jpg"]


def test_a_csv_takes_columns_in_any_order_quotes_utf8_and_relative_paths(tmp_path):
    (tmp_path / "été, 1.jpg").write_bytes(b"123")
    (tmp_path / "list.csv").write_text('label,image,split,group\ncat,"été, 1.jpg",test,g1\n', encoding="utf-8-sig")
    assert listed(tmp_path / "list.csv") == [
        Row("été, 1.jpg", f"{tmp_path}/été, 1.jpg", "cat", "test", "g1", num_bytes=3)
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
    (tmp_path / "2.jpg").write_bytes(b"1" * 20_000)
    lines = ["image,label,split", "1.jpg,dog,", "1.jpg,,", "gone.jpg,cat,", ",cat,", "1.jpg,cat,a/b", "2.jpg,cat,", ""]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    rows = listed(tmp_path / "list.csv", labels=("cat", "cow"), shard_bytes=10_000)
    assert sorted(row.reason for row in rows) == [
        "bad_line",
        "bad_split",
        "missing",
        "no_label",
        "too_large",
        "unknown_label",
    ]


def test_a_csv_without_the_columns_needed_is_refused(tmp_path):
    (tmp_path / "list.csv").write_text("file,class,size\na,b,1\n")
    with pytest.raises(ValueError, match="begins with 'file,class,size', needs the header image,label"):
        list_columns(str(tmp_path / "list.csv"))


def test_the_planned_size_of_a_record_is_the_written_one_to_a_few_bytes():
    row = Row("cat/1.jpg", "/in/cat/1.jpg", "cat", num_bytes=88_000)
    written = frame(encode(Record(row.key, b"x" * 88_000, 375, 500, 3, 1, "cat", "0" * 64)))
    assert abs(len(written) - record_bytes(row)) < 16
