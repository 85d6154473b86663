"""Images as squares: resize="pad" and "squash" beside Pillow and the published rule; training, evaluation, serving."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from benchmarks.corpus import photograph
from tpu_input import InputConfig, from_infeed
from tpu_input.config import ResizeMode
from tpu_input.pipeline.images import decode_for_evaluation, decode_for_training, random_window
from tpu_input.predict import decode_files

MEAN = (200.0, 30.4, 99.6)
COLOR = (200, 30, 100)  # rounded, as pixels are


def file_of(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.open(io.BytesIO(photograph(np.random.default_rng([0, 1]), (600, 451)))).convert("RGB")


def shapes(photo: Image.Image) -> list[Image.Image]:
    """The photograph lying, standing, square, and as strips of a few pixels."""
    return [
        photo,
        photo.transpose(Image.Transpose.ROTATE_90),
        photo.crop((0, 0, 300, 300)),
        photo.crop((0, 0, 500, 3)),
        photo.crop((0, 0, 2, 399)),
    ]


def pillow(image: Image.Image, size: int, resize: str) -> np.ndarray:
    """The same by Pillow, without antialiasing."""
    width, height = (max(1, round(side * size / max(image.size))) for side in image.size)
    sides = (size, size) if resize == "squash" else (width, height)
    scale = (image.width / sides[0], image.height / sides[1])
    # Affine transforms interpolate between four pixels, as tf.image.resize does, whose pixels go on at the border.
    edged = Image.fromarray(np.pad(np.asarray(image), ((1, 1), (1, 1), (0, 0)), mode="edge"))
    small = edged.transform(sides, Image.Transform.AFFINE, (scale[0], 0, 1, 0, scale[1], 1), Image.Resampling.BILINEAR)
    square = Image.new("RGB", (size, size), COLOR)
    square.paste(small, ((size - sides[0]) // 2, (size - sides[1]) // 2))
    return np.asarray(square).astype(float)


@pytest.mark.parametrize("resize", ["pad", "squash"])
@pytest.mark.parametrize("size", [40, 101])
def test_evaluation_is_what_pillow_makes_of_the_whole_image(photo, resize, size):
    config = InputConfig(size, resize=resize, mean=MEAN)
    for image in shapes(photo):
        actual = decode_for_evaluation(file_of(image), config).numpy().astype(float)
        difference = np.abs(actual - pillow(image, size, resize))
        assert difference.max() <= 2  # Pillow rounds after each axis
        assert difference.mean() < 0.6


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32"])
def test_what_is_padded_has_the_mean_color_which_is_zero_to_the_network(photo, dtype):
    config = InputConfig(40, dtype, resize="pad", mean=MEAN)
    image = decode_for_evaluation(file_of(photo), config)
    assert image.shape == (40, 40, 3)
    above = (40 - round(451 * 40 / 600)) // 2
    normalized = from_infeed(image[None], config).numpy()[0]
    assert np.abs(normalized[:above]).max() < 0.01 >= np.abs(normalized[above - 40 :][-above:]).max()
    assert np.abs(normalized[above]).max() > 0.1


@pytest.mark.parametrize("resize", ["pad", "squash"])
@pytest.mark.parametrize("sides", [(2400, 1800), (600, 2400), (2400, 30)])
def test_a_large_jpeg_is_decoded_smaller_and_stays_where_it_is(resize, sides):
    """Of grey that grows along an axis, positions move by at most half a pixel of the result."""
    for axis, length in enumerate(sides[::-1]):
        values = np.broadcast_to(
            np.linspace(0, 255, length)[:, None] if axis == 0 else np.linspace(0, 255, length), sides[::-1]
        )
        data = file_of(Image.fromarray(np.repeat(values.round().astype(np.uint8)[..., None], 3, 2)), "JPEG")
        config = InputConfig(100, "float32", resize=resize, mean=MEAN)
        scaled = decode_for_evaluation(data, config).numpy()
        unscaled = decode_for_evaluation(data, dataclasses.replace(config, scaled_decode=False)).numpy()
        is_image = (unscaled != np.array(MEAN, np.float32)).any(-1)
        assert ((scaled != np.array(MEAN, np.float32)).any(-1) == is_image).all()
        step = 255 / max(1, round(length * 100 / max(sides)) if resize == "pad" else 100)
        assert np.abs(scaled - unscaled)[is_image].max() < 0.5 * step + 3


def published(config: InputConfig, draws: np.ndarray) -> tuple[float, float, float, float]:
    """RandomResizedCrop's rule for an image that was stretched to a square, in shares of its sides: y, x, h, w."""
    logs = np.log(config.crop_aspect)
    for share, aspect, y, x in draws.T.astype(float):
        area = config.crop_area[0] + (config.crop_area[1] - config.crop_area[0]) * share
        aspect = np.exp(logs[0] + (logs[1] - logs[0]) * aspect)
        w, h = np.sqrt(area * aspect), np.sqrt(area / aspect)
        if w <= 1 and h <= 1:
            return y * (1 - h), x * (1 - w), h, w
    low, high = config.crop_aspect
    h, w = min(1, 1 / low), min(1, high)
    return (1 - h) / 2, (1 - w) / 2, h, w


@pytest.mark.parametrize("resize", ["pad", "squash"])
@pytest.mark.parametrize("shape", [(3750, 5000), (9000, 1000)])
@pytest.mark.parametrize(("areas", "aspects"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.9, 1.0), (0.25, 0.5))])
def test_training_draws_the_part_that_the_published_rule_gives_of_the_squashed_image(
    shape, resize, areas, aspects, monkeypatch
):
    config = InputConfig(8, resize=resize, crop_area=areas, crop_aspect=aspects)
    for draws in np.random.default_rng(0).random([40, 4, 10], np.float32):
        monkeypatch.setattr(tf.random, "stateless_uniform", lambda *_, values=draws: tf.constant(values))
        actual = random_window(tf.constant([*shape, 3]), tf.constant([0, 0], tf.int64), config).numpy()
        expected = np.array(published(config, draws)) * np.tile(shape, 2)
        assert np.abs(actual - expected).max() <= 2  # pixels, of up to 9,000


@pytest.mark.parametrize("resize", ["pad", "squash"])
def test_training_on_whole_images_sees_what_evaluation_sees(photo, resize):
    config = InputConfig(40, resize=resize, mean=MEAN, crop_area=(1.0, 1.0), crop_aspect=(1.0, 1.0), flip=False)
    for image in shapes(photo):
        for data in (file_of(image), file_of(image, "JPEG")):
            actual = decode_for_training(data, tf.constant([0, 1], tf.int64), config)
            np.testing.assert_array_equal(actual, decode_for_evaluation(data, config))


def test_training_pads_a_part_as_evaluation_pads_the_whole(photo):
    config = InputConfig(40, "float32", resize="pad", mean=MEAN, crop_area=(0.3, 0.9), echo=2)
    for number in range(5):
        for crop in decode_for_training(file_of(photo, "JPEG"), tf.constant([0, number], tf.int64), config):
            is_bar = (crop.numpy() == np.array(MEAN, np.float32)).all(-1)
            rows, columns = is_bar.all(1), is_bar.all(0)
            assert min((~rows).sum(), (~columns).sum()) < 40 == max((~rows).sum(), (~columns).sum())
            assert abs(int(rows[:20].sum()) - int(rows[20:].sum())) <= 1
            assert abs(int(columns[:20].sum()) - int(columns[20:].sum())) <= 1


@pytest.mark.parametrize("resize", ["crop", "pad", "squash"])
def test_serving_sees_what_evaluation_sees(photo, resize):
    config = InputConfig(40, resize=resize, mean=MEAN)
    files = [file_of(image, kind) for image in shapes(photo)[:2] for kind in ("JPEG", "PNG")]
    np.testing.assert_array_equal(
        decode_files(tf.constant(files), config), [decode_for_evaluation(data, config) for data in files]
    )


def test_each_way_shows_another_part_of_a_long_image(photo):
    """Of an image that is red, white and blue from left to right, "crop" shows only the white middle."""
    flag = Image.new("RGB", (300, 100), (255, 255, 255))
    flag.paste((255, 0, 0), (0, 0, 90, 100))
    flag.paste((0, 0, 255), (210, 0, 300, 100))
    images = {
        resize: decode_for_evaluation(file_of(flag), InputConfig(30, resize=resize, mean=MEAN)).numpy()
        for resize in ("crop", "pad", "squash")
    }
    assert (images["crop"] == 255).all()
    for resize, height in (("pad", 10), ("squash", 30)):
        image = images[resize]
        assert (image == (255, 0, 0)).all(-1).sum() == pytest.approx(9 * height, abs=height)
        assert (image == (0, 0, 255)).all(-1).sum() == pytest.approx(9 * height, abs=height)
    assert (images["pad"] == COLOR).all(-1).sum() == 600


def test_the_longer_side_decides_how_much_smaller_a_padded_image_is_decoded():
    """Random pixels are grey where they are scaled, which antialiases, and else as random as before."""
    noise = np.random.default_rng(0).integers(0, 255, (30, 2400, 3), np.uint8)
    data = file_of(Image.fromarray(noise), "JPEG")

    def deviation(resize: ResizeMode, scaled_decode: bool) -> float:
        config = InputConfig(100, "float32", resize=resize, mean=MEAN, scaled_decode=scaled_decode)
        image = decode_for_evaluation(data, config).numpy()
        return float(image[(image != np.array(MEAN, np.float32)).any(-1)].std())

    assert deviation("pad", True) < 0.5 * deviation("pad", False)
    assert deviation("squash", True) == deviation("squash", False)
