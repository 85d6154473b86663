"""Archives are read as the folders they hold, and as a whole or not at all."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from beam_pipelines import storage
from beam_pipelines.__main__ import main
from beam_pipelines.convert import convert
from beam_pipelines.options import Source
from support.conversion import options
from support.folders import files
from support.inputs import listed, make, reasons, tar


def test_an_archive_may_have_any_name(tmp_path):
    make(tmp_path, "cat/1.jpg")
    tar(tmp_path / "new\nline#bytes=1-2.tar", tmp_path, "cat")
    assert [storage.read_bytes(row.uri) for row in listed(tmp_path / "new\nline#bytes=1-2.tar")] == [b"cat/1.jpg"]


def test_an_archive_of_the_training_set_alone_keeps_its_split(tmp_path):
    make(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg")
    tar(tmp_path / "in.tar", tmp_path, "train")
    assert {(row.split, row.label) for row in listed(tmp_path / "in.tar")} == {("train", "cat"), ("train", "dog")}
    rows = listed(Source(f"{tmp_path}/in.tar", "train"))
    assert {(row.split, row.label) for row in rows} == {("train", "cat"), ("train", "dog")}


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_an_archive_reads_as_the_folder_it_holds(tmp_path, format):
    make(tmp_path / "in", "cat/1.jpg", "dog/deep/2.jpg", "cat/" + "x" * 90 + "/3.jpg")
    tar(tmp_path / "in.tar", tmp_path / "in", "cat", "dog", format=format)
    rows, unpacked = listed(tmp_path / "in.tar"), listed(tmp_path / "in")
    assert [row._replace(uri="", version=0, number=0) for row in rows] == [row._replace(uri="") for row in unpacked]
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
    data = (tmp_path / "in.tar").read_bytes()
    (tmp_path / "in.tar").write_bytes(data[: 512 * 41 + 100])
    with pytest.raises(ValueError, match="is not a complete, uncompressed tar archive"):
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
    with pytest.raises(ValueError, match=r"is not a complete, uncompressed tar archive: byte \d+ is neither"):
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


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Returns a header as GNU tar writes it, which stores large and negative sizes to the base of 256."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    base_256 = (256**12 + size) % 256**12 | (0 if size < 0 else 0x80 << 88)
    block[124:136] = base_256.to_bytes(12, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


def extended(**fields: str) -> bytes:
    """Returns a member of POSIX's extended headers, of lines "LENGTH NAME=VALUE" (IEEE Std 1003.1, pax)."""
    lines = [f" {name.replace('__', '.')}={value}\n" for name, value in fields.items()]  # of 8 to 97 characters
    return member("pax", "".join(f"{len(line) + 2}{line}" for line in lines).encode(), tarfile.XHDTYPE)


GOOD, END = member("cat/1.jpg", b"1"), bytes(1024)


def nested(depth: int) -> bytes:
    data = GOOD + END
    for _ in range(depth):
        data = member("in.tar", data) + END
    return data


HOSTILE = {
    "a size of 2^60": (GOOD + header("cat/2.jpg", 2**60) + END, "'cat/2.jpg' claims to have 1152921504606846976 bytes"),
    "a size of 10^20": (GOOD + header("cat/2.jpg", 10**20) + END, "'cat/2.jpg' claims to have 1000000000000000000"),
    "a size below zero": (GOOD + header("cat/2.jpg", -1024) + END, "'cat/2.jpg' claims to have -1024 bytes"),
    "the first below zero": (header("cat/2.jpg", -512) + END, "'cat/2.jpg' claims to have -512 bytes"),
    "an extended size": (GOOD + extended(size="9" * 20) + GOOD + END, "'cat/1.jpg' claims to have 9999999999999999"),
    "an extended size below zero": (GOOD + extended(size="-2048") + GOOD + END, "claims to have -2048 bytes"),
    "extended headers of 2^50": (
        GOOD + header("pax", 2**50, tarfile.XHDTYPE) + END,
        "claims to have 11258999",
    ),
    "a name of 2^60": (
        GOOD + header("x", 2**60, tarfile.GNUTYPE_LONGNAME) + END,
        "claims to have 1152921504606",
    ),
    "a name below zero": (GOOD + header("x", -512, tarfile.GNUTYPE_LONGNAME) + END, "claims to have -512"),
    "names without end": (
        GOOD + member("x", b"y", tarfile.GNUTYPE_LONGNAME) * 900 + GOOD + END,
        r"the headers at byte \d+ cannot be read: maximum recursion depth",
    ),
    "a number without end": (
        GOOD + member("pax", b"1" * 900_000, tarfile.XHDTYPE) + GOOD + END,
        "the header at byte 1536 contains a number with too many digits",
    ),
    "a map without end": (
        GOOD + extended(GNU__sparse__major="1", GNU__sparse__minor="0") + member("s", b"9" * 15 + b"\n") + END,
        r"the headers at byte \d+ cannot be read: ",
    ),
    "archives 400 deep": (nested(400), "'in.tar' is nested inside 8 other archives; unpack some of them"),
}


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in_a_folder"])
@pytest.mark.parametrize("case", HOSTILE)
def test_an_archive_whose_headers_claim_what_cannot_be_is_refused_without_reading_it(tmp_path, case, inside):
    data, says = HOSTILE[case]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.tar").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(
        ValueError, match=rf"in/bad\.tar' is not a complete, uncompressed tar archive: .*{says}"
    ) as error:
        listed(tmp_path / "in" if inside else tmp_path / "in" / "bad.tar")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(error.value)
    assert peak < 50_000_000


def test_the_command_refuses_a_hostile_archive_in_one_line(tmp_path, capsys):
    (tmp_path / "bad.tar").write_bytes(HOSTILE["archives 400 deep"][0])
    assert main(["convert", f"--input={tmp_path}/bad.tar", f"--output={tmp_path}/out"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(
        f"error: '{tmp_path}/bad.tar' is not a complete, uncompressed tar archive: 'in.tar' is nested inside 8"
    )


def test_archives_may_lie_in_each_other_to_a_depth(tmp_path):
    (tmp_path / "in.tar").write_bytes(nested(7))
    assert [(row.label, storage.read_bytes(row.uri)) for row in listed(tmp_path / "in.tar")] == [("in", b"1")]


@pytest.fixture
def gnu_tar() -> str:
    """GNU tar, the outside reference of what a member is."""
    program = shutil.which("tar")
    if not program or b"GNU tar" not in subprocess.run([program, "--version"], capture_output=True).stdout:
        pytest.skip("needs GNU tar")
    return program


def test_members_whose_names_lead_out_of_the_archive_are_rejected(tmp_path, gnu_tar):
    make(tmp_path, "in/cat/1.jpg", "x/2.jpg", "y/3.jpg")
    command = [gnu_tar, "-C", str(tmp_path / "in"), "-P", "-cf", str(tmp_path / "in.tar")]
    subprocess.run([*command, "cat", "../x", str(tmp_path / "y"), "cat/../../x/2.jpg"], check=True)
    rows = listed(tmp_path / "in.tar")
    assert {(row.key, row.label, row.reason) for row in rows} == {
        ("cat/1.jpg", "cat", ""),
        ("../x/2.jpg", "", "bad_member"),
        (f"{tmp_path}/y/3.jpg", "", "bad_member"),
    }
    assert "points outside the archive" in rows[0].detail


@pytest.mark.parametrize("paths", [["../x"], ["/x"]])
def test_a_folder_around_all_members_that_leads_out_makes_no_good_names(tmp_path, paths):
    with tarfile.open(tmp_path / "in.tar", "w") as archive:
        for path in paths:
            for name in ("cat/1.jpg", "dog/2.jpg"):
                info = tarfile.TarInfo(f"{path}/{name}")
                archive.addfile(info, io.BytesIO())
    assert {row.reason for row in listed(tmp_path / "in.tar")} == {"bad_member"}


def test_hard_links_are_files_and_sparse_ones_are_rejected_as_gnu_tar_packs_them(tmp_path, gnu_tar):
    make(tmp_path, *(f"in/cat/{number}.jpg" for number in range(3)), "in/dog/9.jpg")
    for number in range(3):
        os.link(tmp_path / "in" / "cat" / f"{number}.jpg", tmp_path / "in" / "dog" / f"{number}.jpg")
        os.link(tmp_path / "in" / "cat" / f"{number}.jpg", tmp_path / "in" / "dog" / f"again {number}.jpg")
    with open(tmp_path / "in" / "dog" / "hole.jpg", "wb") as file:
        file.seek(1 << 20)
        file.write(b"x")
    subprocess.run(
        [gnu_tar, "-C", str(tmp_path / "in"), "-S", "-cf", str(tmp_path / "in.tar"), "cat", "dog"], check=True
    )
    tar(tmp_path / "outer.tar", tmp_path, "in.tar")
    (tmp_path / "unpacked").mkdir()
    subprocess.run([gnu_tar, "-C", str(tmp_path / "unpacked"), "-xf", str(tmp_path / "in.tar")], check=True)
    unpacked = {str(path.relative_to(tmp_path / "unpacked")): path for path in (tmp_path / "unpacked").rglob("*.jpg")}
    for name, prefix in (("in.tar", ""), ("outer.tar", "in/")):
        rows = {row.key.removeprefix(prefix): row for row in listed(tmp_path / name)}
        assert rows.keys() == unpacked.keys()
        assert rows.pop("dog/hole.jpg").reason == "bad_member"
        assert {row.reason for row in rows.values()} == {""}
        contents = {key: storage.read_bytes(row.uri) for key, row in rows.items()}
        assert contents == {key: unpacked[key].read_bytes() for key in rows}


Packed = tuple[str, str, bytes | str]  # type, name, bytes or what a link names


def packed(path: Path, *members: Packed) -> Path:
    """Packs members in an order in which no tar program packs them."""
    with tarfile.open(path, "w") as archive:
        for kind, name, content in members:
            info = tarfile.TarInfo(name)
            info.type = {"file": tarfile.REGTYPE, "hard": tarfile.LNKTYPE, "soft": tarfile.SYMTYPE}[kind]
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                archive.addfile(info)
    return path


CHAIN: list[Packed] = [
    ("file", "cat/1.jpg", b"one"),
    ("hard", "cat/2.jpg", "./cat/1.jpg"),
    ("hard", "./cat/3.jpg", "cat/2.jpg"),
    ("hard", "dog/4.jpg", "cat/3.jpg"),
    ("hard", "dog/5.jpg", "cat//1.jpg"),
]
PACKED_AGAIN: list[Packed] = [
    ("file", "cat/1.jpg", b"one"),
    ("hard", "dog/2.jpg", "cat/1.jpg"),
    ("file", "cat/1.jpg", b"one, but longer"),
    ("hard", "dog/3.jpg", "cat/1.jpg"),
    ("hard", "dog/4.jpg", "dog/2.jpg"),
]


@pytest.mark.parametrize("members", [CHAIN, PACKED_AGAIN], ids=["chain", "packed_again"])
def test_hard_links_to_hard_links_have_the_bytes_that_gnu_tar_unpacks(tmp_path, gnu_tar, members):
    packed(tmp_path / "in.tar", *members)
    (tmp_path / "unpacked").mkdir()
    subprocess.run([gnu_tar, "-C", str(tmp_path / "unpacked"), "-xf", str(tmp_path / "in.tar")], check=True)
    unpacked = {str(path.relative_to(tmp_path / "unpacked")): path for path in (tmp_path / "unpacked").rglob("*.jpg")}
    rows = listed(tmp_path / "in.tar")
    contents = {row.key: storage.read_bytes(row.uri) for row in sorted(rows, key=lambda row: row.number, reverse=True)}
    assert {row.reason for row in rows} == {""}
    assert contents == {key: path.read_bytes() for key, path in unpacked.items()}


BROKEN_LINKS: dict[str, tuple[list[Packed], str]] = {
    "not in the archive": ([("file", "cat/1.jpg", b"1"), ("hard", "cat/2.jpg", "gone.jpg")], "gone.jpg"),
    "behind the link": ([("hard", "cat/2.jpg", "cat/1.jpg"), ("file", "cat/1.jpg", b"1")], "cat/1.jpg"),
    "the link itself": ([("file", "cat/1.jpg", b"1"), ("hard", "cat/2.jpg", "cat/2.jpg")], "cat/2.jpg"),
    "a folder": ([("file", "cat/1.jpg", b"1"), ("hard", "cat/2.jpg", "cat")], "cat"),
    "outside": ([("file", "cat/1.jpg", b"1"), ("hard", "cat/2.jpg", "/etc/passwd")], "/etc/passwd"),
    "a symbolic link": (
        [("file", "cat/1.jpg", b"1"), ("soft", "soft.jpg", "cat/1.jpg"), ("hard", "cat/2.jpg", "soft.jpg")],
        "soft.jpg",
    ),
    "a file that a symbolic link has replaced": (
        [
            ("file", "cat/1.jpg", b"1"),
            ("file", "x.jpg", b"2"),
            ("soft", "x.jpg", "cat/1.jpg"),
            ("hard", "cat/2.jpg", "x.jpg"),
        ],
        "x.jpg",
    ),
    "not UTF-8": ([("file", "cat/1.jpg", b"1"), ("hard", "cat/2.jpg", "caf\udce9.jpg")], "caf\\xe9.jpg"),
}


@pytest.mark.parametrize("case", BROKEN_LINKS)
def test_a_hard_link_to_no_file_before_it_is_missing(tmp_path, case):
    members, target = BROKEN_LINKS[case]
    rows = {row.key: row for row in listed(packed(tmp_path / "in.tar", *members))}
    assert rows["cat/1.jpg"].reason == ""
    link = rows["cat/2.jpg"]
    assert (link.reason, link.num_bytes) == ("missing", 0)
    assert link.detail == f"it is a hard link to {target!r}, which is not a file before it in the archive"


def test_a_hard_link_whose_target_gnu_tar_has_removed_is_missing_until_it_is_added_again(tmp_path, gnu_tar):
    make(tmp_path, "cat/1.jpg", "dog/3.jpg")
    os.link(tmp_path / "cat" / "1.jpg", tmp_path / "dog" / "2.jpg")
    archive = str(tmp_path / "in.tar")
    subprocess.run([gnu_tar, "-C", str(tmp_path), "-cf", archive, "cat", "dog"], check=True)
    assert reasons(listed(archive)) == {"cat/1.jpg": "", "dog/2.jpg": "", "dog/3.jpg": ""}
    subprocess.run([gnu_tar, "--delete", "-f", archive, "cat/1.jpg"], check=True)
    assert reasons(listed(archive)) == {"dog/2.jpg": "missing", "dog/3.jpg": ""}
    subprocess.run([gnu_tar, "-C", str(tmp_path), "-rf", archive, "cat"], check=True)
    assert reasons(listed(archive)) == {"cat/1.jpg": "", "dog/2.jpg": "missing", "dog/3.jpg": ""}
    subprocess.run([gnu_tar, "-C", str(tmp_path), "-rf", archive, "cat", "dog"], check=True)
    last = {row.key: row for row in sorted(listed(archive), key=lambda row: row.number, reverse=True)}
    assert {key: storage.read_bytes(row.uri) for key, row in last.items()} == {
        "cat/1.jpg": b"cat/1.jpg",
        "dog/2.jpg": b"cat/1.jpg",
        "dog/3.jpg": b"dog/3.jpg",
    }


def test_an_archive_of_hard_links_converts_to_the_same_bytes_as_the_folder(few_digits, tmp_path, gnu_tar):
    for label, other in (("0", "3"), ("1", "4")):
        (few_digits / other).mkdir()
        for path in (few_digits / label).iterdir():
            os.link(path, few_digits / other / path.name)
            os.link(path, few_digits / other / f"again-{path.name}")
    subprocess.run([gnu_tar, "-C", str(few_digits), "-cf", str(tmp_path / "in.tar"), "."], check=True)
    convert(options(few_digits, tmp_path / "of_folder"))
    manifest, *_ = convert(options(tmp_path / "in.tar", tmp_path / "of_tar"))
    assert (manifest.num_inputs, manifest.num_rejected) == (84, {})
    shards = {name: digest for name, digest in files(tmp_path / "of_folder").items() if name.endswith(".tfrecord")}
    assert shards.items() <= files(tmp_path / "of_tar").items()


def bytes_read() -> int:
    """Returns the bytes that this process has read so far, from files and other sources."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in_an_archive"])
@pytest.mark.parametrize("name", ["cat/1.jpg", "cat/" + "x" * 200 + ".jpg"], ids=["short_name", "long_name"])
@pytest.mark.parametrize("num_bytes", [1500, 100_000])
def test_an_archive_is_listed_by_its_headers_alone(tmp_path, inside, name, num_bytes):
    with tarfile.open(tmp_path / "in.tar", "w") as archive:
        for number in range(50):
            info = tarfile.TarInfo(f"{number % 2}/{name}")
            info.size = num_bytes
            archive.addfile(info, io.BytesIO(os.urandom(num_bytes)))
        blocks = archive.offset - 50 * -(-num_bytes // 512) * 512  # headers
    rest = (tmp_path / "in.tar").stat().st_size - archive.offset  # zeros at the end
    if inside:
        tar(tmp_path / "outer.tar", tmp_path, "in.tar")
    path = tmp_path / ("outer.tar" if inside else "in.tar")
    before = bytes_read()
    assert len(listed(path)) == 50
    measuring = -bytes_read() + bytes_read()
    # An inner archive has 10,240 bytes of another around it, and its members are kept in a file until they are counted.
    assert bytes_read() - before - 2 * measuring <= blocks + rest + 40_000
