"""Folders and lists become rows, and every input is one."""

from __future__ import annotations

import gzip
import os
import tarfile

import pytest

from beam_pipelines import command_line, storage
from beam_pipelines.listing import check_source, list_rows
from beam_pipelines.lists import list_columns
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.rows import Row, check_names, find, label_by_folder, locate, size_row, split_folders, top_folder
from tpu_input.schema import Record, encode, frame


def listed(*sources, **changes) -> list[Row]:
    """What the first steps of the pipeline make of the sources."""
    sources = tuple(source if isinstance(source, Source) else Source(str(source)) for source in sources)
    options = ConvertOptions(sources, "/out", **changes)
    rows = [row for source in sources for row in list_rows(source, options)]
    splits = split_folders(set().union(*map(top_folder, rows)))
    return sorted(locate(check_names(label_by_folder(find(row), splits), options), options) for row in rows)


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
    assert rows[0].detail == "line 1 holds characters that UTF-8 cannot write"
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


def test_the_planned_size_of_a_record_is_the_written_one_to_a_few_bytes():
    options = ConvertOptions((Source("/in"),), "/out")
    row = size_row(Row("cat/1.jpg", "/in/cat/1.jpg", "cat", num_bytes=88_000), {".jpg/33": 0.5}, options)
    written = frame(encode(Record(row.key, b"x" * 44_000, 375, 500, 3, 1, "cat", "0" * 64)))
    assert abs(len(written) - row.record_bytes) < 16


def test_an_image_that_no_shard_can_hold_is_a_row_with_a_reason():
    options = ConvertOptions((Source("/in"),), "/out", shard_bytes=10_000)
    row = size_row(Row("cat/1.jpg", "/in/cat/1.jpg", "cat", num_bytes=10_000), {".jpg/27": 1.0}, options)
    assert (row.reason, row.record_bytes) == ("too_large", 0)


def make(folder, *paths) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())


def test_folders_called_train_val_and_test_above_the_classes_are_splits(tmp_path):
    make(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg", "test/dog/4.jpg")
    assert {row.key: (row.split, row.label) for row in listed(tmp_path)} == {
        "train/cat/1.jpg": ("train", "cat"),
        "train/dog/2.jpg": ("train", "dog"),
        "val/cat/3.jpg": ("validation", "cat"),
        "test/dog/4.jpg": ("test", "dog"),
    }


def test_split_folders_may_be_written_in_capitals(tmp_path):
    make(tmp_path, "Training/cat/1.jpg", "Testing/dog/2.jpg")
    assert {(row.split, row.label) for row in listed(tmp_path)} == {("train", "cat"), ("test", "dog")}


def test_another_folder_beside_train_and_val_is_refused_rather_than_made_a_class(tmp_path):
    make(tmp_path, "train/cat/1.jpg", "Val/dog/2.jpg", "annotations/labels.txt")
    message = "beside the splits 'Val', 'train' lies 'annotations'; move that elsewhere, or name each split's folder: "
    with pytest.raises(ValueError, match=message):
        listed(tmp_path)
    assert len(listed(Source(f"{tmp_path}/train", "train"), Source(f"{tmp_path}/Val", "validation"))) == 2


def test_an_archive_of_the_training_set_alone_keeps_its_split(tmp_path):
    make(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg")
    tar(tmp_path / "in.tar", tmp_path, "train")
    assert {(row.split, row.label) for row in listed(tmp_path / "in.tar")} == {("train", "cat"), ("train", "dog")}
    named = listed(Source(f"{tmp_path}/in.tar", "train"))
    assert {(row.split, row.label) for row in named} == {("train", "cat"), ("train", "dog")}


def test_a_list_whose_own_split_is_another_than_the_input_s_is_refused(tmp_path):
    make(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "list.csv").write_text("image,label,split\n1.jpg,cat,train\n2.jpg,cat,\n")
    assert [row.split for row in listed(Source(f"{tmp_path}/list.csv", "train"))] == ["train"] * 2
    message = r"--input=test=.*list\.csv and the list's own split, 'train' of '1\.jpg', differ; leave out one of them"
    with pytest.raises(ValueError, match=message):
        listed(Source(f"{tmp_path}/list.csv", "test"))


def test_a_class_called_test_among_other_classes_is_a_class(tmp_path):
    make(tmp_path, "test/1.jpg", "quiz/2.jpg")
    assert {(row.split, row.label) for row in listed(tmp_path)} == {("", "test"), ("", "quiz")}


def tar(path, folder, *names, format=tarfile.PAX_FORMAT) -> None:
    with tarfile.open(path, "w", format=format) as archive:
        for name in names:
            archive.add(folder / name, name)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_an_archive_reads_as_the_folder_it_holds(tmp_path, format):
    make(tmp_path / "in", "cat/1.jpg", "dog/deep/2.jpg", "cat/" + "x" * 90 + "/3.jpg")
    tar(tmp_path / "in.tar", tmp_path / "in", "cat", "dog", format=format)
    rows, unpacked = listed(tmp_path / "in.tar"), listed(tmp_path / "in")
    assert [row._replace(uri="", number=0) for row in rows] == [row._replace(uri="") for row in unpacked]
    assert [storage.read_bytes(row.uri) for row in rows] == [storage.read_bytes(row.uri) for row in unpacked]


def test_the_folder_around_all_classes_of_an_archive_is_no_class(tmp_path):
    make(tmp_path, "flowers/daisy/1.jpg", "flowers/rose/2.jpg")
    tar(tmp_path / "flowers.tar", tmp_path, "flowers")
    assert {row.key: row.label for row in listed(tmp_path / "flowers.tar")} == {
        "daisy/1.jpg": "daisy",
        "rose/2.jpg": "rose",
    }


def test_imagenet_as_downloaded_is_read_in_place(tmp_path):
    make(tmp_path, "n01/n01_1.JPEG", "n02/n02_7.JPEG", "val/ILSVRC2012_val_1.JPEG", "val/ILSVRC2012_val_2.JPEG")
    tar(tmp_path / "n01.tar", tmp_path / "n01", "n01_1.JPEG")
    tar(tmp_path / "n02.tar", tmp_path / "n02", "n02_7.JPEG")
    tar(tmp_path / "train.tar", tmp_path, "n01.tar", "n02.tar")
    tar(tmp_path / "val.tar", tmp_path / "val", "ILSVRC2012_val_2.JPEG", "ILSVRC2012_val_1.JPEG")
    (tmp_path / "synsets.txt").write_text("n02\nn01\n")
    rows = listed(
        Source(str(tmp_path / "train.tar"), "train"),
        Source(str(tmp_path / "val.tar"), "validation", str(tmp_path / "synsets.txt")),
    )
    assert {row.key: (row.split, row.label) for row in rows} == {
        "train/n01/n01_1.JPEG": ("train", "n01"),
        "train/n02/n02_7.JPEG": ("train", "n02"),
        "validation/ILSVRC2012_val_1.JPEG": ("validation", "n02"),
        "validation/ILSVRC2012_val_2.JPEG": ("validation", "n01"),
    }
    assert [storage.read_bytes(row.uri).decode() for row in rows] == [
        "n01/n01_1.JPEG",
        "n02/n02_7.JPEG",
        "val/ILSVRC2012_val_1.JPEG",
        "val/ILSVRC2012_val_2.JPEG",
    ]


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


def test_a_cut_off_archive_is_refused_rather_than_read_in_part(tmp_path):
    make(tmp_path, *(f"cat/{number}.jpg" for number in range(50)))
    tar(tmp_path / "in.tar", tmp_path, "cat")
    whole = (tmp_path / "in.tar").read_bytes()
    (tmp_path / "in.tar").write_bytes(whole[: 512 * 41 + 100])
    with pytest.raises(ValueError, match="is no whole, uncompressed tar archive"):
        listed(tmp_path / "in.tar")


def joined(data: bytes) -> bytes:
    return data + data


def cut_at_a_member(data: bytes) -> bytes:
    return data[: 512 * 41]


def cut_in_a_header(data: bytes) -> bytes:
    return data[: 512 * 41 + 100]


def without_a_header(data: bytes) -> bytes:
    return data[: 512 * 41] + bytes(512) + data[512 * 42 :]


def with_a_damaged_header(data: bytes) -> bytes:
    return data[: 512 * 41] + b"?" + data[512 * 41 + 1 :]


DAMAGE = [joined, cut_at_a_member, cut_in_a_header, without_a_header, with_a_damaged_header]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("inside", [False, True])
def test_an_archive_that_goes_on_where_tarfile_would_end_is_refused(tmp_path, damage, inside):
    make(tmp_path, *(f"cat/{number}.jpg" for number in range(50)))
    tar(tmp_path / "cat.tar", tmp_path, "cat", format=tarfile.USTAR_FORMAT)  # a block, then two a file
    (tmp_path / "cat.tar").write_bytes(damage((tmp_path / "cat.tar").read_bytes()))
    tar(tmp_path / "in.tar", tmp_path, "cat.tar")
    with pytest.raises(ValueError, match=r"is no whole, uncompressed tar archive: at byte \d+ is neither"):
        listed(tmp_path / ("in.tar" if inside else "cat.tar"))


def test_an_archive_that_was_appended_to_or_is_empty_is_whole(tmp_path):
    make(tmp_path, "cat/1.jpg", "cat/2.jpg")
    tar(tmp_path / "in.tar", tmp_path, "cat/1.jpg")
    with tarfile.open(tmp_path / "in.tar", "a") as archive:
        archive.add(tmp_path / "cat/2.jpg", "cat/2.jpg")
    tar(tmp_path / "empty.tar", tmp_path)
    assert reasons(listed(tmp_path / "in.tar")) == {"cat/1.jpg": "", "cat/2.jpg": ""}
    assert listed(tmp_path / "empty.tar") == []


def test_the_last_of_two_members_of_one_name_is_the_one_that_counts_as_tar_itself_has_it(tmp_path):
    make(tmp_path, "cat/1.jpg", "cat/2.jpg")
    tar(tmp_path / "in.tar", tmp_path, "cat/1.jpg", "cat/2.jpg")
    (tmp_path / "cat/1.jpg").write_bytes(b"anew")
    with tarfile.open(tmp_path / "in.tar", "a") as archive:
        archive.add(tmp_path / "cat/1.jpg", "cat/1.jpg")
    twice = [row for row in listed(tmp_path / "in.tar") if row.key == "cat/1.jpg"]
    assert storage.read_bytes(min(twice, key=lambda row: row.number).uri) == b"anew"


def test_a_compressed_archive_is_refused(tmp_path):
    (tmp_path / "in.tar").write_bytes(gzip.compress(b"0" * 10240))
    with pytest.raises(ValueError, match="is no whole, uncompressed tar archive"):
        listed(tmp_path / "in.tar")


def test_a_source_that_is_missing_is_refused_in_the_driver(tmp_path):
    with pytest.raises(ValueError, match="does not exist; it is a folder of class folders"):
        check_source(Source(str(tmp_path / "nothing")))
    with pytest.raises(ValueError, match=r"labels\.txt' does not exist"):
        check_source(Source(str(tmp_path), label_list=str(tmp_path / "labels.txt")))
