"""What predict makes of a file is what a conversion would have stored, byte for byte."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from beam_pipelines.options import ImageOptions
from estimator_app.predict import Prediction, predict
from estimator_app.saved_model.classifier import load_classifier
from estimator_app.saved_model.find import read_origin
from support.app_fixtures import keras_warns
from support.oriented import ORIENTED, directory, jpeg
from tpu_input.stored_images.check import check_image, stored_image

pytestmark = keras_warns
PIXELS = np.random.default_rng(0).integers(0, 256, [40, 60, 4], np.uint8)
PICTURE = Image.fromarray(PIXELS).convert("RGB").resize((60, 40), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, orientation: int = 1, **options) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, kind, exif=exif, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", range(10))
def test_a_photograph_is_turned_as_its_exif_says_and_an_upright_one_is_left_alone(orientation):
    photo = encoded(PICTURE, "JPEG", orientation)
    assert stored_image(photo) == check_image(photo, ImageOptions()).encoded
    assert (stored_image(photo) == photo) == (orientation in (0, 1, 9))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_png_of_any_mode_is_stored_on_white_as_rgb_or_grey(mode):
    image = Image.fromarray(PIXELS) if mode == "RGBA" else PICTURE
    image = image.convert("I").point(lambda value: value * 256).convert(mode) if mode == "I;16" else image.convert(mode)
    png = encoded(image, "PNG", 6)
    assert stored_image(png) == check_image(png, ImageOptions()).encoded


@pytest.mark.parametrize(
    ("kind", "mode"), [("JPEG", "L"), ("JPEG", "CMYK"), ("WEBP", "RGB"), ("GIF", "P"), ("BMP", "L")]
)
def test_other_formats_and_colours_are_stored_likewise(kind, mode):
    buffer = io.BytesIO()
    PICTURE.convert(mode).save(buffer, kind)
    assert stored_image(buffer.getvalue()) == check_image(buffer.getvalue(), ImageOptions()).encoded


def test_what_is_no_single_image_is_told_apart():
    assert str(stored_image(b"")) == "empty: 0 bytes"
    assert str(stored_image(b"hello")) == "not an image: begins with b'hello'"
    buffer = io.BytesIO()
    PICTURE.save(buffer, "GIF", save_all=True, append_images=[PICTURE.rotate(90)])
    assert str(stored_image(buffer.getvalue())) == "animated: GIF with 2 frames"
    assert str(stored_image(encoded(PICTURE, "PNG")[:-900])).startswith("truncated: ")
    assert str(stored_image(encoded(PICTURE, "JPEG", 6)[:-900])).startswith("truncated: ")


@pytest.mark.long
def test_a_sideways_photograph_is_classified_as_its_record_is(finished, digits, tmp_path):
    classifier = load_classifier(finished.export)
    sideways = Image.open(min((digits / "7").iterdir())).rotate(90, expand=True)
    (tmp_path / "sideways.jpg").write_bytes(encoded(sideways, "JPEG", 6))
    record = check_image((tmp_path / "sideways.jpg").read_bytes(), ImageOptions()).encoded
    (prediction,) = predict(classifier, [f"{tmp_path}/sideways.jpg"], 1, top=10)
    (expected,) = classifier([record])
    assert isinstance(prediction, Prediction)
    assert isinstance(expected, np.ndarray)
    assert [probability for _, _, probability in prediction.top] == sorted(map(float, expected), reverse=True)
    (unturned,) = classifier([(tmp_path / "sideways.jpg").read_bytes()])
    assert isinstance(unturned, np.ndarray)
    assert np.abs(unturned - expected).max() > 0.01


def test_odd_exif_and_unknown_ranges_are_taken_as_a_conversion_takes_them():
    odd = jpeg(directory(ORIENTED, (0x0100, 2, 4, b"abc\0")))
    assert stored_image(odd) == check_image(odd, ImageOptions()).encoded != odd
    floats = io.BytesIO()
    PICTURE.convert("F").save(floats, "TIFF")
    assert str(stored_image(floats.getvalue())) == "unknown range: TIFF with mode F"


NOISE = np.random.default_rng(1).integers(0, 256, [90, 120, 3], np.uint8)
CHANGED: dict[str, Any] = {
    "reencode": "all",
    "resize_shorter": 48,
    "quality": 30,
    "color_profiles": "ignore",
    "check": "header",
    "lossless": True,
    "metadata": "strip",
}


@pytest.mark.parametrize("option", [field.name for field in dataclasses.fields(ImageOptions)])
def test_every_image_option_of_a_conversion_is_that_of_a_prediction_or_rejects(option):
    """A new option has to be added to CHANGED, unless it only rejects images."""
    if option in ("min_side", "max_pixels"):
        pytest.skip("it only rejects images")
    options = ImageOptions(**{option: CHANGED[option]})
    profile = with_swapped_primaries()
    image = Image.fromarray(NOISE)
    files = [encoded(image, kind, turn, icc_profile=profile) for kind in ("JPEG", "PNG") for turn in (1, 6)]
    files.append(encoded(image, "JPEG"))  # is stored as it is
    stored = [stored_image(file, options) for file in files]
    assert stored == [check_image(file, options).encoded for file in files]
    assert (stored == [stored_image(file) for file in files]) == (option == "check")


def with_swapped_primaries() -> bytes:
    """Returns a color profile in which red and blue have changed places."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return profile.replace(b"rXYZ", b"____").replace(b"bXYZ", b"rXYZ").replace(b"____", b"bXYZ")


def test_an_export_carries_the_image_options_of_its_dataset(finished, digits_dataset):
    assert read_origin(finished.export)[0].images == ImageOptions(**digits_dataset.options["images"])


def test_predict_uses_the_options_in_the_export(finished, digits, tmp_path):
    """The file is made smaller before it is classified, as its record would have been."""
    export = shutil.copytree(finished.export, tmp_path / "1")
    config = json.loads((export / "assets.extra/config.json").read_text())
    config["images"] = dataclasses.asdict(ImageOptions(resize_shorter=4))
    (export / "assets.extra/config.json").write_text(json.dumps(config))
    path = min((digits / "7").iterdir())
    (prediction,) = predict(str(export), [str(path)], top=10)
    small = stored_image(path.read_bytes(), ImageOptions(resize_shorter=4))
    assert isinstance(small, bytes)
    (expected,) = load_classifier(str(export))([small])
    assert isinstance(prediction, Prediction)
    assert isinstance(expected, np.ndarray)
    assert [p for _, _, p in prediction.top] == pytest.approx(sorted(map(float, expected), reverse=True))


def test_the_guides_client_sends_what_is_stored(finished, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").symlink_to(digits)
    section = (Path(__file__).parents[2] / "docs/train.md").read_text().partition("## Export, predict, serve")[2]
    names: dict[str, Any] = {"export": finished.export}
    exec(section.partition("```python\n")[2].partition("```")[0], names)
    assert names["image_bytes"] == (digits / "0/0072.jpg").read_bytes()
