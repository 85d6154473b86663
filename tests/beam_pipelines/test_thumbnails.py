"""Pictures of whatever can be decoded, at least in part, and of nothing that would take too long to read."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from beam_pipelines.conversion.receipts import Rejection
from beam_pipelines.convert import convert
from beam_pipelines.images.near_duplicates import grey_sample
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.report import thumbnails
from beam_pipelines.report.rejections import _spread, read_rejected
from beam_pipelines.report.thumbnails import thumbnail
from support.nasty import encoded


def test_of_many_rejected_a_few_are_shown_from_all_over_the_alphabet():
    lines = [Rejection(f"{number:05d}", "", "empty", "") for number in range(10_000)]
    examples = _spread(iter(lines), {"empty": 10_000})["empty"]
    assert [line.key for line in examples] == ["00000", "01666", "03333", "05000", "06666", "08333"]
    assert [line.key for line in _spread(lines[:3], {"empty": 3})["empty"]] == ["00000", "00001", "00002"]
    assert _spread([Rejection("a", "", "other", "")], {"empty": 1}) == {"empty": []}


@pytest.mark.parametrize(
    ("image", "size"),
    [
        (encoded(Image.new("RGB", (4000, 1000))), (96, 24)),
        (encoded(Image.new("RGB", (20, 10))), (20, 10)),
        (encoded(Image.new("CMYK", (100, 100))), (96, 96)),
        (encoded(Image.new("P", (100, 50)), "GIF"), (96, 48)),
        (encoded(Image.new("RGBA", (100, 50)), "WEBP"), (96, 48)),
        (encoded(Image.new("I;16", (100, 50)), "TIFF"), (96, 48)),
        (encoded(Image.effect_noise((300, 150), 50), "PNG")[:20_000], (96, 48)),
        (encoded(Image.new("1", (30_000, 1)), "PNG"), (96, 1)),
    ],
    ids=["large", "small", "cmyk", "gif", "webp", "16 bits", "truncated png", "a line"],
)
def test_whatever_pillow_can_decode_becomes_a_thumbnail(image, size):
    picture = thumbnail(image)
    assert picture
    assert (picture.width, picture.height) == size


def turned(image: Image.Image) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    return encoded(image.transpose(Image.Transpose.ROTATE_90), exif=exif, quality=95)


@pytest.mark.parametrize("size", [(500, 375), (1300, 900), (160, 120)])
def test_grey_values_are_those_of_the_whole_upright_picture(size):
    picture = Image.fromarray(load_sample_images().images[0]).resize(size)
    expected = np.asarray(picture.convert("L").resize((32, 32), Image.Resampling.BOX), float)
    for data in (encoded(picture, quality=95), encoded(picture, quality=95, progressive=True), turned(picture)):
        sample = grey_sample(data)
        assert sample is not None
        assert np.corrcoef(sample, expected.ravel())[0, 1] > 0.999
    cut = grey_sample(encoded(picture, quality=95)[:-1000])
    assert cut is not None
    assert np.corrcoef(cut[:512], expected.ravel()[:512])[0, 1] > 0.99


@pytest.mark.parametrize(
    "data",
    [b"", b"<html>", encoded(Image.new("RGB", (40, 30)), "PNG")[:30], encoded(Image.new("1", (9000, 9000)), "PNG")],
)
def test_what_cannot_be_decoded_or_is_too_much_becomes_none(data):
    assert thumbnail(data) is None
    assert grey_sample(data) is None


def test_huge_and_special_sources_are_not_read(tmp_path, monkeypatch):
    (tmp_path / "large.jpg").write_bytes(encoded(Image.new("RGB", (200, 200))))
    assert thumbnails.source_thumbnail(str(tmp_path / "large.jpg"))
    monkeypatch.setattr(thumbnails, "_MAX_BYTES", 100)
    assert thumbnails.source_thumbnail(str(tmp_path / "large.jpg")) is None
    assert thumbnails.source_thumbnail("/dev/zero") is None
    assert thumbnails.source_thumbnail("") is None


def test_rejected_members_of_an_archive_are_shown(few_digits, tmp_path):
    content = next((few_digits / "0").iterdir()).read_bytes()
    (few_digits / "0" / "half.jpg").write_bytes(content[: len(content) * 2 // 3])
    (few_digits / "0" / "empty.jpg").write_bytes(b"")
    with tarfile.open(tmp_path / "digits.tar", "w") as archive:
        archive.add(few_digits, ".")
    options = ConvertOptions((Source(str(tmp_path / "digits.tar")),), str(tmp_path / "out"), max_rejected=1.0)
    manifest, *_ = convert(options)
    assert manifest.num_rejected == {"empty": 1, "truncated": 1}
    examples = {reason.code: reason.examples for reason in read_rejected(manifest, [str(tmp_path / "digits.tar")])}
    ((line, picture),) = examples["truncated"]
    assert picture
    assert (line.key, picture.width, picture.height) == ("0/half.jpg", 32, 32)
    ((line, picture),) = examples["empty"]
    assert (line.key, picture) == ("0/empty.jpg", None)


def test_what_other_programs_would_draw_has_no_picture(monkeypatch):
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    assert thumbnail(encoded(Image.new("L", (40, 30)), "EPS")) is None
