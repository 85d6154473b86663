"""Archives are read as the folders they hold, and as a whole or not at all."""

from __future__ import annotations

import gzip
import tarfile

import pytest
from inputs import listed, make, reasons, tar

from beam_pipelines import storage
from beam_pipelines.options import Source


def test_an_archive_may_have_any_name(tmp_path):
    make(tmp_path, "cat/1.jpg")
    tar(tmp_path / "new\nline#bytes=1-2.tar", tmp_path, "cat")
    assert [storage.read_bytes(row.uri) for row in listed(tmp_path / "new\nline#bytes=1-2.tar")] == [b"cat/1.jpg"]


def test_an_archive_of_the_training_set_alone_keeps_its_split(tmp_path):
    make(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg")
    tar(tmp_path / "in.tar", tmp_path, "train")
    assert {(row.split, row.label) for row in listed(tmp_path / "in.tar")} == {("train", "cat"), ("train", "dog")}
    named = listed(Source(f"{tmp_path}/in.tar", "train"))
    assert {(row.split, row.label) for row in named} == {("train", "cat"), ("train", "dog")}


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
