"""What a summary says of the images: how many were encoded again and why, and how many say where they were taken."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.__main__ import main
from beam_pipelines.options import ImageOptions
from support.profiles import GREEN_IN_P3, PROFILES
from tpu_input.dataset_format.records import MANIFEST_NAME, Manifest, read_frames
from tpu_input.stored_images.check import GPS_POSITION, check_image


def directory(*entries: tuple[int, int, int, bytes]) -> bytes:
    """A directory of TIFF 6.0, little endian: entries (tag, type, count, value or its place)."""
    return struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHI4s", *entry) for entry in entries) + bytes(4)


def gps_exif(with_position: bool = True) -> bytes:
    """EXIF 2.3: a pointer to a GPS directory, with latitude and longitude 52° 31' 12\" N, 13° 24' 18\" E, or a date."""
    first = 8
    gps = first + len(directory((0x8825, 4, 1, bytes(4))))
    numbers = gps + len(directory(*[(1, 2, 2, b"N\0\0\0")] * 4))
    place = [
        (1, 2, 2, b"N\0\0\0"),
        (2, 5, 3, struct.pack("<I", numbers)),
        (3, 2, 2, b"E\0\0\0"),
        (4, 5, 3, struct.pack("<I", numbers + 24)),
    ]
    date = [(0x1D, 2, 11, struct.pack("<I", numbers))]
    data = struct.pack("<12I", 52, 1, 31, 1, 12, 1, 13, 1, 24, 1, 18, 1) if with_position else b"2026:11:22\0"
    header = b"II*\0" + struct.pack("<I", first)
    pointed = header + directory((0x8825, 4, 1, struct.pack("<I", gps)))
    return b"Exif\0\0" + pointed + directory(*(place if with_position else date)) + data


XMP = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta><rdf:Description exif:GPSLatitude='52,31.2N'/></x:xmpmeta>"


def jpeg(seed: int, kind: str = "JPEG", **options) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (24, 32, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def with_xmp(data: bytes) -> bytes:
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(XMP) + 2) + XMP + data[2:]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (jpeg(0, exif=gps_exif()), (GPS_POSITION,)),
        (with_xmp(jpeg(0)), (GPS_POSITION,)),
        (jpeg(0, exif=gps_exif(with_position=False)), ()),
        (jpeg(0), ()),
        (jpeg(0, exif=gps_exif()[:40]), ()),
        (jpeg(0, "PNG", exif=gps_exif()[6:]), ()),  # its pixels alone are stored
    ],
    ids=["EXIF", "XMP", "a date", "none", "cut EXIF", "PNG"],
)
def test_a_position_is_found_where_it_is_stored(data, expected):
    image = check_image(data, ImageOptions())
    assert image.noted == expected
    assert check_image(data, ImageOptions(reencode="all")).noted == ()


@pytest.fixture
def counted(tmp_path) -> Path:
    """Twelve images: 4 PNG, 2 in Display P3, 3 with a position, 3 that need nothing."""
    images = [jpeg(n, "PNG") for n in range(4)]
    for number in (4, 5):
        buffer = io.BytesIO()
        Image.new("RGB", (32, 24 + number), GREEN_IN_P3).save(buffer, "JPEG", icc_profile=PROFILES["Display P3"])
        images.append(buffer.getvalue())
    images += [jpeg(n, exif=gps_exif()) for n in range(6, 9)] + [jpeg(n) for n in range(9, 12)]
    for number, data in enumerate(images):
        path = tmp_path / "in" / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


def converted(folder: Path, *more: str) -> int:
    command = ["convert", f"--input={folder / 'in'}", f"--output={folder / 'out'}", "--splits=train=50%,validation=50%"]
    return main([*command, *more])


def test_the_summary_and_the_report_say_what_was_encoded_again_and_who_has_a_position(counted, capsys):
    lines = [
        "re-encoded: 6 of 12 images (4 format PNG, 2 color profile)",
        "GPS position: 3 of 12 images have one in their stored bytes; --reencode=all stores only the pixels",
    ]
    for _ in ("made", "found complete"):
        assert converted(counted) == 0
        output = capsys.readouterr().out.splitlines()
        assert [line for line in output if line.startswith(("re-encoded", "GPS"))] == lines
    stored = b"".join(path.read_bytes() for path in (counted / "out").glob("*.tfrecord"))
    assert stored.count(b"Exif\0\0") == 3
    assert main(["report", str(counted / "out")]) == 0
    page = (counted / "out" / "report.html").read_text()
    assert "GPS position: 3 images have one in their stored bytes" in page
    assert "color profile" in page


def test_nothing_is_said_where_there_is_nothing(counted, capsys):
    for path in (counted / "in").glob("*/*"):
        path.write_bytes(jpeg(int(path.stem)))
    assert converted(counted) == 0
    assert not {"re-encoded", "GPS"} & {line.split(":")[0].split()[0] for line in capsys.readouterr().out.splitlines()}


def test_profiles_can_be_left_alone_which_is_counted_and_verified(counted, capsys):
    assert converted(counted, "--color_profiles=ignore") == 0
    output = capsys.readouterr().out
    assert "re-encoded: 4 of 12 images (4 format PNG)" in output
    assert "ignored color profile: 2 of 12 images have colors other than sRGB" in output
    stored = [
        frame
        for path in (counted / "out").glob("*.tfrecord")
        for _, frame in read_frames(io.BytesIO(path.read_bytes()))
    ]
    assert sum(PROFILES["Display P3"] in frame for frame in stored) == 2
    assert main(["verify", str(counted / "out")]) == 0


def test_a_limit_on_pixels_is_a_flag(counted, capsys):
    assert converted(counted, "--max_pixels=800") == 2  # those in Display P3 are larger
    assert "too_large 2" in capsys.readouterr().err


def test_a_dataset_from_before_this_was_counted_is_read(counted):
    assert converted(counted) == 0
    fields = json.loads((counted / "out" / MANIFEST_NAME).read_text())
    del fields["num_noted"]
    for name in ("max_pixels", "color_profiles"):
        del fields["options"]["images"][name]
    assert Manifest.from_json(json.dumps(fields), "path").num_noted == {}
