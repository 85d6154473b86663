"""What inflates is limited before it takes memory or disk: every kind of compression that conversion reads."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import weakref
import zipfile
import zlib
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from beam_pipelines.sources import unpacking, zips
from beam_pipelines.sources.read_ahead import checked
from beam_pipelines.sources.records import parquet_files
from beam_pipelines.sources.rows import Row
from support.pipelines_commands import refused, run
from tpu_input.stored_images.check import Rejected

_BYTES = 4 << 20  # of what inflates, beside limits of 1 MiB


def _tar(images: list[Path]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for path in images:
            archive.add(path, f"{path.parent.name}/{path.name}")
        member = tarfile.TarInfo("0/bomb.jpg")
        member.size = _BYTES
        archive.addfile(member, io.BytesIO(bytes(_BYTES)))
    return file.getvalue()


def _parquet(images: list[Path]) -> bytes:
    value = images[0].read_bytes() + bytes(64 << 10)
    count = _BYTES // len(value) + 1
    image = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([value], pa.binary()))
    file = io.BytesIO()
    table = pa.table({"image": image, "label": ["a", "b"] * (count // 2) + ["a"] * (count % 2)})
    pq.write_table(table, file, compression="zstd", use_dictionary=["image"], store_schema=False)
    return file.getvalue()


# By the first bytes that unpacking reads, so that a kind that is added without a hostile file fails.
PACKED = {
    b"\x1f\x8b": lambda images: ("x.tar.gz", gzip.compress(_tar(images))),
    b"BZh": lambda images: ("x.tar.bz2", bz2.compress(_tar(images))),
    b"\xfd7zXZ": lambda images: ("x.tar.xz", lzma.compress(_tar(images))),
    b"\x28\xb5\x2f\xfd": lambda images: ("x.tar.zst", zstandard.compress(_tar(images))),
    b"PAR1": lambda images: ("x.parquet", _parquet(images)),
}


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    for module, name in ((unpacking, "_ALWAYS_ALLOWED"), (zips, "_MEMBER_BYTES"), (parquet_files, "_CHUNK_BYTES")):
        monkeypatch.setattr(module, name, 1 << 20)


@pytest.fixture
def images(digits):
    return [path for name in "01" for path in sorted((digits / name).glob("*.jpg"))[:4]]


def test_every_compression_is_among_these():
    assert set(PACKED) == {*unpacking._KINDS, b"PAR1"}


@pytest.mark.parametrize("magic", PACKED)
def test_a_file_that_inflates_is_refused_and_nothing_is_left(capsys, images, tmp_path, monkeypatch, magic):
    name, data = PACKED[magic](images)
    assert data.startswith(magic)
    (tmp_path / name).write_bytes(data)
    flags = [f"--input={tmp_path}/{name}", f"--output={tmp_path}/out", "--max_rejected=100%", "--splits=train=100%"]
    flags += ["--record=image=image,label=label"] if magic == b"PAR1" else []
    monkeypatch.setattr(unpacking, "_MOST_TIMES", 2)  # 8 digits hardly take more than zeros
    message = refused(capsys, "convert", *flags)
    assert f"{name}' decompresses to more than 2 times its size, as no images do; decompress it first" in message
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.stat().st_size > 1 << 20]


@pytest.mark.parametrize("magic", PACKED)
def test_files_that_inflate_only_together_are_refused(capsys, images, tmp_path, monkeypatch, magic):
    name, data = PACKED[magic](images)
    flags = ["--record=image=image,label=label"] if magic == b"PAR1" else []
    for number in range(3):
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(data)
        flags += [f"--input={split}={path}" for split in ("train", "validation", "test")[number : number + 1]]
    monkeypatch.setattr(unpacking, "_ALWAYS_ALLOWED", int(2.5 * _BYTES))
    monkeypatch.setattr(unpacking, "_MOST_TIMES", 2)
    monkeypatch.setattr(parquet_files, "_CHUNK_BYTES", _BYTES)
    message = refused(capsys, "convert", *flags, f"--output={tmp_path}/out", "--max_rejected=100%")
    assert f"2-{name}' decompresses to more than 2 times its size" in message


def _null_images() -> pa.Table:
    count = 1 << 16
    return pa.table({"image": pa.nulls(count, pa.binary()), "label": pa.array([1] * count, pa.int8())})


def _long_lists() -> pa.Table:
    count = 1 << 16
    labels = pa.ListArray.from_arrays([0, count, 2 * count], pa.array([1] * 2 * count, pa.int8()))
    return pa.table({"image": [b"a", b"b"], "label": labels})


@pytest.mark.parametrize("rows", [_null_images, _long_lists])
def test_rows_and_values_without_bytes_count_by_the_memory_that_they_take(capsys, tmp_path, rows):
    pq.write_table(rows(), tmp_path / "x.parquet", compression="zstd")
    flags = (f"--input={tmp_path}/x.parquet", "--record=image=image,label=label", "--label_type=classes")
    message = refused(capsys, "convert", *flags, f"--output={tmp_path}/out", "--max_rejected=100%")
    assert "x.parquet' decompresses to more than 100 times its size" in message


def test_rows_with_a_large_value_are_in_memory_one_by_one(tmp_path, monkeypatch):
    value = bytes(1 << 16)
    table = pa.table({"image": pa.array([value] * 64).dictionary_encode(), "label": ["a"] * 64})
    pq.write_table(table, tmp_path / "x.parquet", store_schema=False)
    monkeypatch.setattr(parquet_files, "_BATCH_BYTES", 3 << 16)
    path = f"{tmp_path}/x.parquet"
    with open(path, "rb") as file:
        assert parquet_files._rows_a_batch(path, file, ["image", "label"]) == 2
        assert parquet_files._rows_a_batch(path, file, ["label"]) == 64


def test_what_is_kept_of_a_rejected_image_is_not_its_bytes():
    """An exception has the frames that raised it, with their variables."""

    class Image(bytearray):  # bytes have no weak references
        pass

    def check(_: Row, data: bytes) -> None:
        try:
            raise OSError("damaged")
        except OSError as error:
            raise Rejected("corrupt", "") from error

    image = Image(b"x")
    alive = weakref.ref(image)
    rejected = checked(Row("key"), cast(bytes, image), check)
    del image
    assert isinstance(rejected, Rejected)
    assert alive() is None


def test_members_of_a_zip_that_inflate_are_rejected_and_the_others_are_stored(capsys, images, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in images:
            archive.write(path, f"{path.parent.name}/{path.name}")
        archive.writestr("0/bomb.jpg", bytes(_BYTES))
    flags = (f"--input={tmp_path}/x.zip", "--max_rejected=50%", "--splits=train=100%")
    code, out, err = run(capsys, "convert", *flags, f"--output={tmp_path}/out")
    assert code == 0, err
    assert "rejected: 1 of 9 inputs (bad_member 1)" in out
    assert "it decompresses to more than 100 times its size" in (tmp_path / "out/rejected.jsonl").read_text()


@pytest.mark.parametrize("inside", [False, True])
def test_members_of_a_zip_that_overlap_are_refused(capsys, images, tmp_path, inside):
    """Several entries of the directory for one member, and one whose bytes lie within those of another."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path in images:
            archive.write(path, f"{path.parent.name}/{path.name}")
        if inside:
            packed = zlib.compressobj(9, zlib.DEFLATED, -15)
            data = packed.compress(bytes(1000)) + packed.flush()
            fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, zlib.crc32(bytes(1000)), len(data), 1000, 5, 0)
            archive.writestr("0/all.jpg", b"PK\3\4" + fields + b"x.jpg" + data)
    content = file.getvalue()
    end_offset = content.rfind(b"PK\5\6")
    count, _, start = struct.unpack("<HII", content[end_offset + 10 : end_offset + 20])
    directory = content[start:end_offset]
    entry = bytearray(directory[directory.rfind(b"PK\1\2") :])
    if inside:
        hidden = content.index(b"PK\3\4", content.index(b"0/all.jpg"))
        entry[42:46] = struct.pack("<I", hidden)
    directory += bytes(entry).replace(b"0/all.jpg", b"0/two.jpg")
    end = struct.pack("<HHHHIIH", 0, 0, count + 1, count + 1, len(directory), start, 0)
    (tmp_path / "x.zip").write_bytes(content[:start] + directory + b"PK\5\6" + end)
    message = refused(capsys, "convert", f"--input={tmp_path}/x.zip", f"--output={tmp_path}/out", "--max_rejected=50%")
    assert "is not a complete .zip archive: its members" in message
    assert "overlap" in message
