"""--check=header: JPEGs that were checked before are stored without being decoded, and everybody says so."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.__main__ import main
from beam_pipelines.convert import convert
from beam_pipelines.options import ImageOptions
from beam_pipelines.verify import verify
from support.conversion import options
from tpu_input import read_manifest
from tpu_input.dataset_format.index import index_path, read_index
from tpu_input.stored_images.check import NOT_DECODED, Rejected, check_image

HEADER = ImageOptions(check="header")
COUNT = 1200  # in one split, of which the statistics then include a sample


def encoded(seed: int, kind: str = "JPEG", size: tuple[int, int] = (40, 30), **how: object) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **how)
    return buffer.getvalue()


def damaged(data: bytes) -> bytes:
    """Returns the JPEG with noise in the middle of its coded pixels, which only decoding finds."""
    middle = len(data) * 2 // 3
    return data[:middle] + bytes(range(1, 121)) + data[middle + 120 :]


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(0, exif=exif.tobytes())


@pytest.mark.parametrize("extra", [{}, {"exif": b"Exif\0\0" + Image.Exif().tobytes()}])
def test_a_jpeg_with_a_sound_header_is_kept_without_a_look_at_its_pixels(extra):
    data = damaged(encoded(0, **extra))
    with pytest.raises(Rejected, match="corrupt"):
        check_image(data, ImageOptions())
    image = check_image(data, HEADER, with_statistics=False)
    assert (image.encoded, image.width, image.height, image.channels) == (data, 40, 30, 3)
    assert (image.dhash, image.fixed, image.noted) == (None, "", (NOT_DECODED,))
    with pytest.raises(Rejected, match="corrupt"):  # one of the sample
        check_image(data, HEADER, with_statistics=True)


@pytest.mark.parametrize(
    "data",
    [
        encoded(0, "PNG"),
        rotated(),
        encoded(0)[:-2],  # without its end marker
        encoded(0) + b"\0",  # nor at its end
        encoded(0)[:-200],
        encoded(0)[:100],
        encoded(0, size=(4, 4)),  # too small
        b"",
        b"<html>",
    ],
)
@pytest.mark.parametrize("resize_shorter", [0, 16])
def test_any_other_image_is_checked_as_ever(data, resize_shorter):
    def outcome(image_options: ImageOptions) -> object:
        try:
            return check_image(data, image_options, with_statistics=False)
        except Rejected as rejected:
            return rejected.args

    usual = ImageOptions(min_side=8, resize_shorter=resize_shorter)
    assert outcome(dataclasses.replace(usual, check="header")) == outcome(usual)


def test_an_image_that_is_made_smaller_is_decoded():
    with pytest.raises(Rejected, match="corrupt"):
        check_image(damaged(encoded(0)), ImageOptions(check="header", resize_shorter=16), with_statistics=False)


def test_to_encode_all_and_to_decode_none_is_refused():
    with pytest.raises(ValueError, match="leave out one of them"):
        ImageOptions(check="header", reencode="all")


def test_a_dataset_says_what_was_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for number in range(COUNT):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number % 7, size=(12, 8)))
    output, reference = tmp_path / "dataset", tmp_path / "plain"
    flags = [f"--input=train={tmp_path}/images", "--shard_size=200KB", "--num_processes=2"]
    assert main(["convert", *flags, f"--output={output}", "--check=header"]) == 0
    manifest = read_manifest(str(output))
    unseen = manifest.num_noted[NOT_DECODED]
    assert 0 < unseen < COUNT - 500
    message = f"not decoded: {unseen:,} of {COUNT:,} images were stored after a check of their headers alone"
    assert message in capsys.readouterr().out
    rows = [
        row
        for shard in manifest.split("train").shards
        for row in read_index((output / index_path(shard.name)).read_bytes())
    ]
    assert sum(row.dhash is None for row in rows) == unseen

    # Records and statistics are those of a conversion that decodes; the fingerprint tells the two apart.
    assert main(["convert", *flags, f"--output={reference}"]) == 0
    other = read_manifest(str(reference))
    assert manifest.splits == other.splits
    assert manifest.options["images"]["check"] == "header"
    assert "check" not in other.options["images"]
    assert manifest.fingerprint != other.fingerprint

    capsys.readouterr()
    assert main(["verify", "--quick", str(output)]) == 0
    assert message in capsys.readouterr().out
    assert main(["report", str(output)]) == 0
    assert "Not decoded" in (output / "report.html").read_text()

    shard = output / manifest.split("train").shards[0].name
    shard.write_bytes(b"")
    assert main(["repair", str(output)]) == 0  # the option is read back from the manifest
    assert not verify(str(output)).problems


def test_verify_finds_the_damage_that_was_not_looked_for(tmp_path: Path):
    folder = tmp_path / "images"
    for label in "ab":
        (folder / label).mkdir(parents=True)
    for number in range(COUNT):
        data = encoded(number % 7)
        (folder / "ab"[number % 2] / f"{number}.jpg").write_bytes(damaged(data) if number % 2 else data)
    opts = options(folder, tmp_path / "dataset", images=HEADER, splits=(("train", 1.0),), shard_bytes=10_000_000)
    manifest = convert(opts).manifest
    num_stored = manifest.split("train").class_counts[1]
    assert 0 < num_stored < COUNT / 2  # those of the sample are rejected
    assert manifest.num_rejected == {"corrupt": COUNT // 2 - num_stored}
    assert len([line for line in verify(manifest.path).problems if "corrupt" in line]) == num_stored
