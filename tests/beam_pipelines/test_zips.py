"""A .zip is read in place as the folder it holds; what is hostile in one is rejected or refused."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import stat
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from beam_pipelines import storage
from support.folders import files
from support.inputs import listed, make
from support.pipelines_commands import refused, run

T = TypeVar("T")


def packed(path: Path, folder: Path, *, method: int = zipfile.ZIP_DEFLATED, top: str = "") -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"{top}{file.relative_to(folder)}")
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_reads_as_the_folder_it_holds(tmp_path, method):
    make(tmp_path / "in", "cat/1.jpg", "dog/deep/2.jpg", "dog/" + "x" * 90 + "/3.jpg", "dog/ünï.jpg")
    (tmp_path / "in/cat/long.jpg").write_bytes(b"again and " * 5000)
    rows, unpacked = listed(packed(tmp_path / "in.zip", tmp_path / "in", method=method)), listed(tmp_path / "in")
    assert [row._replace(uri="", version=0, number=0) for row in rows] == [row._replace(uri="") for row in unpacked]
    assert [storage.read_bytes(row.uri) for row in rows] == [storage.read_bytes(row.uri) for row in unpacked]
    assert [storage.file_bytes(row.uri) for row in rows] == [row.num_bytes for row in unpacked]


@pytest.mark.parametrize(
    ("system", "key"), [(0, "photos/cat/1.jpg"), (3, "photos\\cat\\1.jpg")], ids=["windows", "unix"]
)
def test_backslashes_of_windows_are_between_folders(tmp_path, system, key):
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for name in ("photos\\", "photos\\cat\\1.jpg", "photos\\..\\..\\2.jpg"):
            info = zipfile.ZipInfo(name)
            info.create_system = system
            archive.writestr(info, b"" if name.endswith("\\") else b"12345")
    reasons = {row.key: row.reason for row in listed(tmp_path / "in.zip")}
    assert key in reasons
    assert system or reasons == {"photos/cat/1.jpg": "", "../2.jpg": "bad_member"}, reasons


def test_a_zip_made_by_info_zip_becomes_the_same_dataset_as_its_folder(capsys, few_digits, tmp_path):
    """Kaggle's archives have a folder above the classes, and members that were deflated."""
    program = shutil.which("zip")
    folder = tmp_path / "flowers"
    shutil.copytree(few_digits, folder)
    if program:
        subprocess.run([program, "-q", "-r", "in.zip", "flowers"], cwd=tmp_path, check=True)
    else:
        packed(tmp_path / "in.zip", folder, top="flowers/")
    for name, source in (("a", tmp_path / "in.zip"), ("b", folder)):
        args = (f"--input={source}", f"--output={tmp_path}/{name}", "--shard_size=10KB")
        assert run(capsys, "convert", *args)[0] == 0
    shards = {path: digest for path, digest in files(tmp_path / "b").items() if path.endswith(".tfrecord")}
    digests = files(tmp_path / "a")
    assert {path: digests[path] for path in shards} == shards
    shard = next((tmp_path / "a").glob("train-*.tfrecord"))
    shard.write_bytes(b"")
    code, out, _ = run(capsys, "repair", tmp_path / "a")
    assert (code, "no problems found" in out) == (0, True)
    assert files(tmp_path / "a") == digests


def test_splits_in_a_zip(tmp_path):
    make(tmp_path / "in", "train/cat/1.jpg", "train/dog/2.jpg", "test/cat/3.jpg", "test/dog/4.jpg")
    rows = listed(packed(tmp_path / "in.zip", tmp_path / "in", top="chest_xray/"))
    assert {(row.split, row.label) for row in rows} == {
        (split, label) for split in ("train", "test") for label in ("cat", "dog")
    }


def test_what_macos_adds_is_no_input_and_no_class(tmp_path):
    make(tmp_path / "in", "f/cat/1.jpg", "f/cat/._1.jpg", "f/cat/.DS_Store", "__MACOSX/f/cat/._1.jpg", "__MACOSX/._f")
    rows = listed(packed(tmp_path / "in.zip", tmp_path / "in"))
    assert [(row.key, row.label) for row in rows if not row.reason] == [("cat/1.jpg", "cat")]
    assert {row.reason for row in rows if row.reason} == {"system_file"}
    assert len(rows) == 5


def with_member(path: Path, name: str, data: bytes = b"data", mode: int = 0o100644, **changes: int) -> Path:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    for field, value in changes.items():
        setattr(info, field, value)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(info, data)
    return path


def test_members_that_are_no_plain_files_have_a_reason(tmp_path):
    make(tmp_path / "in", "cat/1.jpg", "dog/2.jpg")
    path = packed(tmp_path / "in.zip", tmp_path / "in")
    with_member(path, "../evil.jpg")
    with_member(path, "/etc/evil.jpg")
    with_member(path, "cat/link.jpg", b"1.jpg", stat.S_IFLNK | 0o777)
    with_member(path, "cat/bz2.jpg", compress_type=zipfile.ZIP_BZIP2)
    with_member(path, "cat/empty.jpg", b"")
    data = path.read_bytes()  # the flag "encrypted" of dog/2.jpg, in the directory
    offset = data.rindex(b"dog/2.jpg") - 46
    assert data[offset : offset + 4] == b"PK\1\2"
    path.write_bytes(data[: offset + 8] + b"\1\0" + data[offset + 10 :])
    results = {row.key: (row.reason, row.detail) for row in listed(path)}
    assert results["../evil.jpg"][0] == results["/etc/evil.jpg"][0] == "bad_member"
    assert results["cat/link.jpg"][0] == "missing"
    assert results["cat/bz2.jpg"] == (
        "bad_member",
        "it is compressed with bzip2; unpack the archive, or pack it with deflate",
    )
    assert results["dog/2.jpg"] == ("bad_member", "it is encrypted; unpack the archive with its password")
    assert results["cat/1.jpg"] == results["cat/empty.jpg"] == ("", "")


def test_of_members_with_one_name_the_last_counts(tmp_path):
    path = with_member(tmp_path / "in.zip", "cat/1.jpg", b"old")
    with pytest.warns(UserWarning, match="Duplicate name"):
        with_member(path, "cat/1.jpg", b"new")
    rows = sorted(listed(path), key=lambda row: row.number)
    assert [storage.read_bytes(row.uri) for row in rows] == [b"new", b"old"]


def test_no_more_is_inflated_than_the_directory_states(tmp_path, monkeypatch):
    """A megabyte that inflates to a gigabyte, of which the directory says that it has a thousand bytes."""
    path = tmp_path / "in.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/bomb.jpg", bytes(1 << 26))
    data = bytearray(path.read_bytes())
    offset = data.rindex(b"PK\1\2")
    data[offset + 24 : offset + 28] = struct.pack("<I", 1000)
    path.write_bytes(data)
    [row] = listed(path)
    assert row.num_bytes == 1000
    with pytest.raises(ValueError, match="do not become 1,000 bytes, as the archive states"):
        storage.read_bytes(row.uri)


@pytest.mark.parametrize("seed", range(60))
def test_damage_ends_in_one_line_or_in_reasons(digits, tmp_path, seed):
    """Whatever bytes change, all members are listed that the directory names, or the archive is refused."""
    path, random_ = tmp_path / "in.zip", random.Random(seed)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for label in "01":
            for image in sorted((digits / label).iterdir())[:3]:
                archive.write(image, f"{label}/{image.name}")
    original = path.read_bytes()
    data, directory = bytearray(original), original.index(b"PK\1\2")
    if seed % 4 == 0:
        data = data[: random_.randrange(len(data))]
    else:
        for _ in range(random_.randrange(1, 4)):
            data[random_.randrange(directory if seed % 2 else 0, len(data))] = random_.randrange(256)
    path.write_bytes(data)
    result = outcome(lambda: listed(path))
    assert isinstance(result, list) or "is not a complete .zip archive" in result
    for row in result if isinstance(result, list) else []:
        if not row.reason:
            read = outcome(lambda uri=row.uri: storage.read_bytes(uri))  # type: ignore[misc]
            assert isinstance(read, bytes) or "deflated bytes" in read


def outcome(function: Callable[[], T]) -> T | str:
    """Returns what a function returns, or the message of its ValueError."""
    try:
        return function()
    except ValueError as error:
        return str(error)


def test_a_truncated_zip_is_refused_with_one_line(capsys, few_digits, tmp_path):
    path = packed(tmp_path / "in.zip", few_digits)
    path.write_bytes(path.read_bytes()[:-30])
    message = refused(capsys, "convert", f"--input={path}", f"--output={tmp_path}/out")
    assert f"'{path}' is not a complete .zip archive: File is not a zip file; copy it again" in message
    path.write_bytes(b"PK\x03\x04")
    assert "is not a complete .zip archive" in refused(capsys, "convert", f"--input={path}", f"--output={tmp_path}/out")


def test_damaged_bytes_of_a_member_reject_that_image(capsys, few_digits, tmp_path):
    path = packed(tmp_path / "in.zip", few_digits)
    with zipfile.ZipFile(path) as archive:
        info = archive.infolist()[5]
    data = bytearray(path.read_bytes())
    data[info.header_offset + 80 : info.header_offset + 90] = bytes(10)
    path.write_bytes(data)
    args = (f"--input={path}", f"--output={tmp_path}/out", "--shard_size=10KB", "--max_rejected=10%")
    assert run(capsys, "convert", *args)[0] == 0
    [line] = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == info.filename
    assert json.loads(line)["reason"] in ("unreadable", "corrupt")


def test_only_the_directory_and_headers_are_read_to_list_a_zip(tmp_path):
    """Bytes read by this process, of an archive of 40 MB (/proc/self/io)."""
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for number in range(20):
            archive.writestr(f"cat/{number}.jpg", os.urandom(2_000_000))

    def num_read() -> int:
        return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])

    before = num_read()
    rows = listed(tmp_path / "in.zip")
    assert len(rows) == 20
    assert num_read() - before < 2_000_000


@pytest.mark.cloud
def test_a_zip_in_a_bucket(capsys, cloud, few_digits, tmp_path):
    bucket = cloud.make_bucket()
    cloud.put(f"{bucket}/in.zip", packed(tmp_path / "in.zip", few_digits).read_bytes())
    for source, output in ((f"{bucket}/in.zip", f"{bucket}/out"), (few_digits, f"{tmp_path}/out")):
        assert run(capsys, "convert", f"--input={source}", f"--output={output}", "--shard_size=10KB")[0] == 0
    local = {path: digest for path, digest in files(tmp_path / "out").items() if path.endswith(".tfrecord")}
    objects = cloud.files(f"{bucket}/out")
    assert {path: objects[path] for path in local} == local


def test_a_zip_of_a_zip_is_no_image(tmp_path):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("cat/1.jpg", b"x")
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        archive.writestr("cat/inner.zip", inner.getvalue())
        archive.writestr("cat/1.jpg", b"x")
    assert [row.key for row in listed(tmp_path / "in.zip")] == ["cat/1.jpg", "cat/inner.zip"]


@pytest.mark.parametrize(
    "beside",
    [
        "flowers/.DS_Store",
        "__MACOSX/flowers/cat/._1.jpg",
        "Thumbs.db",
        "flowers/README.md",
        "LICENSE.txt",
        "flowers/cat/.1.jpg.swp",
        "flowers/cat/1.jpg~",
        "flowers/cat/1.jpg:Zone.Identifier",
        "flowers/cat/_vti_cnf/1.jpg",
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_what_is_no_image_does_not_hide_the_folder_above_the_classes(tmp_path, beside, is_first):
    names = ["flowers/cat/1.jpg", "flowers/dog/2.jpg"]
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for name in [beside, *names] if is_first else [*names, beside]:
            archive.writestr(name, name)
    rows = {row.key: (row.label, row.reason) for row in listed(tmp_path / "in.zip")}
    assert rows.pop(beside.removeprefix("flowers/"))[1] in ("system_file", "other_file")
    assert rows == {"cat/1.jpg": ("cat", ""), "dog/2.jpg": ("dog", "")}


def test_an_image_above_the_classes_keeps_the_folder(tmp_path):
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for name in ("flowers/1.jpg", "flowers/dog/2.jpg", "other/README.md"):
            archive.writestr(name, name)
    assert {row.key for row in listed(tmp_path / "in.zip")} == {"flowers/1.jpg", "flowers/dog/2.jpg", "other/README.md"}


@pytest.mark.parametrize(("encoded", "name"), [("été".encode(), "été"), ("été".encode("cp437"), "été")])
def test_names_in_utf8_are_read_without_the_flag_that_says_so(tmp_path, encoded, name):
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        archive.writestr("x" * len(encoded) + "/1.jpg", b"1")
        archive.writestr("dog/2.jpg", b"2")
    content = (tmp_path / "in.zip").read_bytes()
    (tmp_path / "in.zip").write_bytes(content.replace(b"x" * len(encoded) + b"/", encoded + b"/"))
    assert {row.label for row in listed(tmp_path / "in.zip")} == {name, "dog"}
