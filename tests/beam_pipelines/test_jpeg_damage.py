"""JPEGs with holes are rejected, and what changes no pixel is not: held against what Pillow shows of the same bytes."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from beam_pipelines.options import ImageOptions
from tpu_input.stored_images.check import Rejected, check_image

PHOTOGRAPHS = [Image.fromarray(image) for image in load_sample_images().images]


def jpeg(photograph: Image.Image = PHOTOGRAPHS[0], **options) -> bytes:
    buffer = io.BytesIO()
    photograph.save(buffer, "JPEG", **({"quality": 90} | options))
    return buffer.getvalue()


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int)


def reason(data: bytes, **options) -> tuple[str, str]:
    """Why a file is rejected; ("", why it is encoded again) if it is not."""
    try:
        return "", check_image(data, ImageOptions(**options), with_statistics=False).fixed
    except Rejected as rejected:
        return rejected.reason, rejected.detail


def changed_share(data: bytes, original: bytes) -> float:
    """The share of pixels that differ by more than 40; 1 if not even Pillow decodes it."""
    try:
        return float((np.abs(pixels(data) - pixels(original)).max(axis=-1) > 40).mean())
    except (OSError, SyntaxError):
        return 1.0


KINDS = {
    "baseline": lambda image: jpeg(image),
    "progressive": lambda image: jpeg(image, progressive=True),
    "restart markers": lambda image: jpeg(image, restart_marker_rows=4),
    "4:4:4": lambda image: jpeg(image, subsampling=0),
    "grey": lambda image: jpeg(image.convert("L")),
    "CMYK": lambda image: jpeg(image.convert("CMYK")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_hole_that_spoils_the_picture_is_corrupt(kind):
    """Of some 40 holes one happens to hold as many codes as what was there, and libjpeg says nothing."""
    random = np.random.default_rng(0)
    detections = []
    for photograph in PHOTOGRAPHS:
        original = KINDS[kind](photograph)
        assert reason(original)[0] == ""
        start = original.index(b"\xff\xda") + 20
        for number in range(8):
            length = int(random.integers(4000, 9000))
            offset = int(random.integers(start, len(original) - length - 2))
            hole = random.bytes(length) if number % 2 else bytes(length)
            damaged = original[:offset] + hole + original[offset + length :]
            if changed_share(damaged, original) > 0.02:
                detections.append(reason(damaged)[0] in ("corrupt", "truncated"))
    assert len(detections) >= 8
    assert detections.count(False) <= 1


def test_the_reason_says_what_libjpeg_says():
    original = jpeg()
    offset = len(original) // 2
    code, detail = reason(original[:offset] + bytes(8192) + original[offset + 8192 :])
    assert code == "corrupt"
    assert detail.startswith("JPEG: libjpeg warns: Corrupt JPEG data: ")
    assert detail.endswith(" extraneous bytes before marker 0xd9")


def test_an_end_marker_behind_a_cut_hides_nothing():
    original = jpeg(progressive=True)
    cut = original[: len(original) // 2] + b"\xff\xd9"
    assert pixels(cut).shape == pixels(original).shape  # Pillow decodes it without a word
    assert reason(cut)[0] == "corrupt"


@pytest.mark.parametrize("options", [{"resize_shorter": 100}, {"reencode": "all"}])
def test_a_hole_is_found_also_where_the_image_is_encoded_again(options):
    original = jpeg()
    damaged = original[:50_000] + bytes(8000) + original[58_000:]
    assert reason(damaged, **options)[0] == "corrupt"
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = jpeg(exif=exif)
    assert reason(turned[:50_000] + bytes(8000) + turned[58_000:])[0] == "corrupt"


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def inserted(data: bytes, offset: int, extra: bytes) -> bytes:
    return data[:offset] + extra + data[offset:]


def with_scan_parameters(data: bytes, parameters: bytes) -> bytes:
    offset = data.index(b"\xff\xda") + 5 + 2 * 3
    return data[:offset] + parameters + data[offset + 3 :]


ORIGINAL = jpeg()
END = len(ORIGINAL) - 2
HARMLESS = {
    "bytes behind the end": ORIGINAL + b"a camera's notes",
    "zeros behind the end": ORIGINAL + bytes(1000),
    "a comment": inserted(ORIGINAL, 2, segment(0xFE, b"comment")),
    "two bytes before the end": inserted(ORIGINAL, END, b"\x12\x34"),
    "filled up with zeros": inserted(ORIGINAL, END, bytes(600)),
    "filled up with ones": inserted(ORIGINAL, END, b"\xff" * 600),
    "an unknown JFIF": ORIGINAL.replace(b"JFIF\0\x01", b"JFIF\0\x09"),
    "an unknown code of Adobe's": inserted(ORIGINAL, 20, segment(0xEE, b"Adobe\0\x64\0\0\0\0\x07")),
    "a damaged color profile": inserted(ORIGINAL, 20, segment(0xE2, b"ICC_PROFILE\0\x01\x02" + bytes(50))),
    "bytes between segments": inserted(ORIGINAL, 20, bytes(range(1, 100))),
    "odd parameters of a scan": with_scan_parameters(ORIGINAL, b"\0\0\0"),
}


@pytest.mark.parametrize("data", HARMLESS.values(), ids=HARMLESS)
def test_what_changes_no_pixel_is_kept_byte_for_byte(data):
    np.testing.assert_array_equal(pixels(data), pixels(ORIGINAL))
    assert check_image(data, ImageOptions()).encoded is data


@pytest.mark.parametrize("data", HARMLESS.values(), ids=HARMLESS)
def test_what_is_harmless_does_not_hide_a_hole(data):
    offset = len(ORIGINAL) // 2
    damaged = data[:offset] + bytes(8192) + data[offset + 8192 :]
    assert changed_share(damaged, ORIGINAL) > 0.02
    assert reason(damaged)[0] == "corrupt"


def test_a_hole_of_zeros_up_to_the_end_is_no_filling():
    damaged = ORIGINAL[: END - 8192] + bytes(8192) + ORIGINAL[END:]
    assert changed_share(damaged, ORIGINAL) > 0.02
    assert reason(damaged)[0] == "corrupt"


def test_a_jpeg_that_only_lacks_its_end_is_mended_and_one_with_a_hole_is_not():
    more = bytes(1000)
    assert reason(ORIGINAL[:-2] + more) == ("", "JPEG without its end")
    assert reason(ORIGINAL[:50_000] + bytes(8000) + ORIGINAL[58_000:-2] + more)[0] == "corrupt"


@pytest.mark.parametrize("quality", [60, 90])
@pytest.mark.parametrize("gray", [False, True])
def test_a_baseline_jpeg_that_lacks_its_end_alone_is_mended_wherever_its_codes_end(quality, gray):
    """The reference is Pillow's decoding of the file with its end."""
    picture = Image.open(io.BytesIO(ORIGINAL)).convert("L" if gray else "RGB")
    for number in range(40):
        buffer = io.BytesIO()
        picture.crop((number, 2 * number, 3 * number + 60, 3 * number + 80)).save(buffer, "JPEG", quality=quality)
        data = buffer.getvalue()
        mended = check_image(data[:-2], ImageOptions(quality=100))
        assert mended.fixed == "JPEG without its end"
        assert np.abs(pixels(mended.encoded).astype(int) - pixels(data)).mean() < 3
        assert reason(data[:-40])[0] == "truncated"
        assert reason(data[:-6])[0] in ("truncated", "")  # in the last byte's filling


def test_odd_ratios_of_chroma_are_decoded_as_before():
    """Luma once, chroma twice a pixel: TurboJPEG has no name for it, Pillow decodes it."""
    table = b"\x00\x01" + bytes(15) + b"\x00"  # one code of one bit: nothing differs
    frame = struct.pack(">BHHB", 8, 16, 16, 3) + b"\x01\x11\x00\x02\x22\x00\x03\x22\x00"
    data = b"\xff\xd8" + segment(0xDB, b"\0" + b"\x08" * 64) + segment(0xC0, frame)
    data += segment(0xC4, table) + segment(0xC4, b"\x10" + table[1:])
    data += segment(0xDA, b"\x03\x01\x00\x02\x00\x03\x00\x00\x3f\x00") + bytes(2) + b"\x3f\xff\xd9"
    assert pixels(data).shape == (16, 16, 3)
    assert reason(data) == ("", "")
