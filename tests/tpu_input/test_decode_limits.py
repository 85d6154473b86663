"""What one image may cost: measured in processes of their own, and in JPEGs made to be slow."""

from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.options import ImageOptions
from beam_pipelines.report.thumbnails import thumbnail
from tpu_input.dataset_format.decode_limits import MAX_PIXELS, PILLOW_MAX_PIXELS
from tpu_input.dataset_format.jpeg_markers import num_scans
from tpu_input.stored_images import check
from tpu_input.stored_images.check import Rejected, check_image, stored_image

LIMIT = 600_000_000  # bytes for one image, as --max_pixels promises
# The peak of this process alone: ru_maxrss would count that of pytest, from which it was forked.
CODE = """
import sys
from tpu_input.stored_images.check import Rejected, check_image
from beam_pipelines.options import ImageOptions
peak = lambda: 1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
data = open(sys.argv[1], "rb").read()
before = peak()
try:
    seen = check_image(data, ImageOptions(max_pixels=int(sys.argv[2]))).fixed
except Rejected as rejected:
    seen = f"{rejected.reason}: {rejected.detail}"
print(before, peak(), seen)
"""


def measured(data: bytes, folder: Path, max_pixels: int = MAX_PIXELS) -> tuple[int, int, str]:
    """Returns (bytes before, bytes at most, what became of it) of a process that checks one image."""
    (folder / "image").write_bytes(data)
    arguments = [sys.executable, "-W", "ignore", "-c", CODE, str(folder / "image"), str(max_pixels)]
    result = subprocess.run(arguments, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    before, peak, outcome = result.stdout.strip().split(" ", 2)
    return int(before), int(peak), outcome


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_with(kind: bytes, content: bytes, times: int = 1) -> bytes:
    """A small PNG with chunks of compressed content before its pixels."""
    data = encoded(Image.new("RGB", (8, 8)), "PNG")
    inflating = chunk(kind, b"name\0\0" + zlib.compress(content, 9))
    return data[:33] + inflating * times + data[33:]


def tiff_with_tile(side: int) -> bytes:
    """A TIFF of 8 x 8 gray pixels whose only tile has `side` x `side`, all 0 and compressed by deflate."""
    content = zlib.compress(bytes(side**2), 9)
    shorts = {258: 8, 259: 8, 262: 1, 277: 1}  # bits, compression, photometric interpretation, samples
    longs = {256: 8, 257: 8, 322: side, 323: side, 324: 8, 325: len(content)}  # sizes, place and bytes of the tile
    entries = [(tag, 3, value) for tag, value in shorts.items()] + [(tag, 4, value) for tag, value in longs.items()]
    directory = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in sorted(entries))
    header = b"II*\0" + struct.pack("<I", 8 + len(content))
    return header + content + struct.pack("<H", len(entries)) + directory + bytes(4)


def transparent_png(side: int) -> bytes:
    """An RGBA PNG of `side` x `side` pixels, all 0."""
    compress, rows = zlib.compressobj(6), []
    for _ in range(side):
        rows.append(compress.compress(bytes(1 + 4 * side)))
    pixels = b"".join([*rows, compress.flush()])
    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_a_small_file_of_many_pixels_is_refused_before_it_takes_memory(tmp_path):
    data = transparent_png(13_300)
    assert len(data) < 1_000_000
    before, peak, outcome = measured(data, tmp_path)
    assert outcome.startswith("too_large: 13300 x 13300 = 176,890,000 pixels, but at most 50,000,000 are decoded")
    assert "--max_pixels=50000000" in outcome
    assert peak < before + 20_000_000
    answer = stored_image(data)
    assert isinstance(answer, ValueError)
    assert str(answer).startswith("too large: 13300 x 13300 = 176,890,000 pixels")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: png_with(b"zTXt", bytes(200 << 20)), "corrupt: PNG: Decompressed data too large"),
        (lambda: png_with(b"zTXt", bytes((1 << 20) - 9), 200), "corrupt: PNG: Too much memory used in text chunks"),
        (lambda: png_with(b"iCCP", bytes(200 << 20)), "corrupt: PNG: Decompressed data too large"),
        (
            lambda: tiff_with_tile(15_000),
            "too_large: 15000 x 15000 = 225,000,000 pixels of a tile, but at most 50,000,0",
        ),
    ],
    ids=["text", "texts", "profile", "tile"],
)
def test_what_inflates_beside_the_pixels_is_refused_before_it_takes_memory(make, reason, tmp_path):
    data = make()
    assert len(data) < 1_000_000
    before, peak, outcome = measured(data, tmp_path)
    assert outcome.startswith(reason)
    assert peak < before + 40_000_000


def test_a_tile_may_be_larger_than_its_image(tmp_path):
    assert measured(tiff_with_tile(256), tmp_path)[2] == "format TIFF"


def test_the_largest_transparent_png_stays_within_the_limit(tmp_path):
    side = int(MAX_PIXELS**0.5)
    _, peak, outcome = measured(transparent_png(side), tmp_path)
    assert outcome == "format PNG"
    assert peak < LIMIT


SIDE = 3000
PICTURE = Image.fromarray(np.add.outer(np.arange(SIDE), np.arange(SIDE)).astype(np.uint8)).convert("RGB")
TRANSPARENT = PICTURE.copy()
TRANSPARENT.putalpha(PICTURE.getchannel(0))
EXIF = Image.Exif()
EXIF[0x0112] = 6
KINDS = {
    "turned RGBA PNG": (lambda: encoded(PICTURE.convert("RGBA"), "PNG", exif=EXIF, compress_level=1), 1),
    "PNG of 16 bits": (lambda: encoded(Image.fromarray(np.asarray(PICTURE)[:, :, 0] * np.uint16(257)), "PNG"), 1),
    "turned progressive JPEG": (lambda: encoded(PICTURE, "JPEG", progressive=True, subsampling=0, exif=EXIF), 1),
    "progressive CMYK JPEG": (lambda: encoded(PICTURE.convert("CMYK"), "JPEG", progressive=True), 2),
    "WebP": (lambda: encoded(PICTURE, "WEBP", method=0), 2),
    "AVIF": (lambda: encoded(TRANSPARENT, "AVIF", speed=10, subsampling="4:4:4"), 2),
    "JPEG 2000": (lambda: encoded(TRANSPARENT, "JPEG2000", quality_mode="rates", quality_layers=[80]), 3),
    "HEIC": (lambda: encoded(TRANSPARENT, "HEIF", chroma=444), 2),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind in ("HEIC", "JPEG 2000"))) for kind in KINDS]
)
def test_memory_by_pixel_keeps_the_largest_of_any_kind_within_the_limit(kind, tmp_path):
    make, counts = KINDS[kind]
    data = make()
    before, peak, _ = measured(data, tmp_path)
    assert before + (peak - before) / SIDE**2 * MAX_PIXELS / counts < LIMIT


@pytest.mark.parametrize(
    ("kind", "share"), [("PNG", 1), ("JPEG", 1), ("WEBP", 2), ("AVIF", 2), ("HEIF", 2), ("JPEG2000", 3)]
)
def test_max_pixels_is_a_limit_and_can_be_raised(kind, share):
    data = encoded(Image.new("RGB", (100, 50)), kind)
    check_image(data, ImageOptions(max_pixels=share * 5000))
    with pytest.raises(Rejected) as caught:
        check_image(data, ImageOptions(max_pixels=share * 5000 - 1))
    assert caught.value.reason == "too_large"
    assert f"--max_pixels={share * 5000 - 1}" in caught.value.detail


@pytest.mark.parametrize("number", [0, -1, PILLOW_MAX_PIXELS + 1])
def test_a_limit_above_pillow_s_own_is_refused(number):
    with pytest.raises(ValueError, match=f"max_pixels must be 1 to 178956970.*got {number}"):
        ImageOptions(max_pixels=number)


@pytest.mark.parametrize(
    ("mode", "progressive", "scans"), [("RGB", True, 10), ("L", True, 6), ("RGB", False, 1), ("L", False, 1)]
)
def test_scans_are_counted_as_libjpeg_makes_them(mode, progressive, scans):
    """jpeg_simple_progression(), libjpeg.txt: 10 for YCbCr, 6 for greyscale."""
    data = encoded(Image.new(mode, (64, 64)), "JPEG", progressive=progressive)
    preview = data[:2] + b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data + data[2:]
    assert num_scans(data) == num_scans(preview) == num_scans(data + data) == scans


def slow_jpeg(scans: int, side: int) -> bytes:
    """A progressive JPEG that says that it has so many pixels, whose last scan comes again and again."""
    data = encoded(Image.new("L", (16, 16)), "JPEG", progressive=True)
    frame, last = data.index(b"\xff\xc2"), data.rindex(b"\xff\xda")
    data = data[: frame + 5] + struct.pack(">HH", side, side) + data[frame + 9 :]
    return data[:last] + data[last:-2] * (scans - 5) + b"\xff\xd9"


def test_a_jpeg_of_hundreds_of_scans_is_refused_with_the_numbers():
    data = slow_jpeg(510, 7000)
    with pytest.raises(Rejected) as caught:
        check_image(data, ImageOptions())
    assert caught.value.reason == "too_slow"
    assert "510 scans of 7000 x 7000 pixels = 24,990,000,000 pixels" in caught.value.detail
    assert "at most 2,000,000,000" in caught.value.detail
    assert "--max_pixels=50000000" in caught.value.detail
    assert "510 scans" in str(stored_image(data))
    assert thumbnail(data) is None


def test_a_usual_progressive_jpeg_is_as_large_as_any():
    assert not Rejected.__subclasses__()
    data = encoded(PICTURE, "JPEG", progressive=True)
    check_image(data, ImageOptions(max_pixels=SIDE**2), with_statistics=False)


def is_locked() -> bool:
    """Whether util-linux's flock finds the lock of large images taken."""
    name = next(Path(tempfile.gettempdir()).glob("jpeg2tpu-*/lock"))
    return subprocess.run(["flock", "--nonblock", str(name), "true"]).returncode == 1


@pytest.mark.parametrize("large", [False, True])
def test_large_images_are_decoded_one_at_a_time(large, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    locks, decode = [], check._decode

    def looked(*arguments):
        with contextlib.suppress(StopIteration):
            locks.append(is_locked())
        return decode(*arguments)

    monkeypatch.setattr(check, "_decode", looked)
    monkeypatch.setattr(check, "_LARGE_BYTES", 10_000 if large else 10_000_000)
    check_image(encoded(Image.new("RGB", (100, 100)), "PNG"), ImageOptions())
    assert locks == ([True] if large else [])
    assert not large or not is_locked()


def test_without_a_place_for_the_lock_images_are_decoded_all_the_same(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    monkeypatch.setattr(check, "_LARGE_BYTES", 0)
    assert check_image(encoded(Image.new("RGB", (10, 10)), "PNG"), ImageOptions()).fixed == "format PNG"
