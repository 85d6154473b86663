"""What predict makes of a file is what a conversion would have stored, byte for byte."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.images.check import check_image
from beam_pipelines.options import ImageOptions
from estimator_app.predict import Prediction, normalize_image, predict
from estimator_app.saved_model.classifier import load_classifier
from support.app_fixtures import keras_warns
from support.oriented import ORIENTED, directory, jpeg

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
    assert normalize_image(photo) == check_image(photo, ImageOptions()).encoded
    assert (normalize_image(photo) == photo) == (orientation in (0, 1, 9))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_png_of_any_mode_is_stored_on_white_as_rgb_or_grey(mode):
    image = Image.fromarray(PIXELS) if mode == "RGBA" else PICTURE
    image = image.convert("I").point(lambda value: value * 256).convert(mode) if mode == "I;16" else image.convert(mode)
    png = encoded(image, "PNG", 6)
    assert normalize_image(png) == check_image(png, ImageOptions()).encoded


@pytest.mark.parametrize(
    ("kind", "mode"), [("JPEG", "L"), ("JPEG", "CMYK"), ("WEBP", "RGB"), ("GIF", "P"), ("BMP", "L")]
)
def test_other_formats_and_colours_are_stored_likewise(kind, mode):
    buffer = io.BytesIO()
    PICTURE.convert(mode).save(buffer, kind)
    assert normalize_image(buffer.getvalue()) == check_image(buffer.getvalue(), ImageOptions()).encoded


def test_what_is_no_single_image_is_told_apart():
    assert normalize_image(b"") == b""
    assert normalize_image(b"hello") == b"hello"
    buffer = io.BytesIO()
    PICTURE.save(buffer, "GIF", save_all=True, append_images=[PICTURE.rotate(90)])
    assert str(normalize_image(buffer.getvalue())) == "GIF with 2 frames; save one of them as a file"
    assert str(normalize_image(encoded(PICTURE, "PNG")[:-900])) == "the PNG file is damaged"
    assert str(normalize_image(encoded(PICTURE, "JPEG", 6)[:-900])) == "the JPEG file is damaged"


@pytest.mark.long
def test_a_sideways_photograph_is_classified_as_its_record_is(finished, digits, tmp_path):
    classifier = load_classifier(finished.export)
    sideways = Image.open(min((digits / "7").iterdir())).rotate(90, expand=True)
    (tmp_path / "sideways.jpg").write_bytes(encoded(sideways, "JPEG", 6))
    record = check_image((tmp_path / "sideways.jpg").read_bytes(), ImageOptions()).encoded
    (found,) = predict(classifier, [f"{tmp_path}/sideways.jpg"], 1, top=10)
    (expected,) = classifier([record])
    assert isinstance(found, Prediction)
    assert isinstance(expected, np.ndarray)
    assert [probability for _, _, probability in found.top] == sorted(map(float, expected), reverse=True)
    (unturned,) = classifier([(tmp_path / "sideways.jpg").read_bytes()])
    assert isinstance(unturned, np.ndarray)
    assert np.abs(unturned - expected).max() > 0.01


def test_odd_exif_and_unknown_ranges_are_taken_as_a_conversion_takes_them():
    odd = jpeg(directory(ORIENTED, (0x0100, 2, 4, b"abc\0")))
    assert normalize_image(odd) == check_image(odd, ImageOptions()).encoded != odd
    floats = io.BytesIO()
    PICTURE.convert("F").save(floats, "TIFF")
    assert str(normalize_image(floats.getvalue())).startswith(
        "TIFF of mode F, whose values of black and white are unknown"
    )
