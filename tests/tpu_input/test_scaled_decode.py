"""Large JPEGs are decoded at 1/2, 1/4 or 1/8: beside Pillow's pixels, in the right place, and never too small."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from benchmarks.corpus import photograph
from support.corrupting import changed, rewrite
from tpu_input import InputConfig, make_eval_input_fn, make_train_input_fn, read_manifest
from tpu_input.pipeline.images import (
    decode_for_evaluation,
    decode_for_training,
    for_images_of,
    random_window,
    scaled_window,
)
from tpu_input.pipeline.seeds import seed_for
from tpu_input.predict import decode_files


def file_of(pixels: np.ndarray, kind: str = "JPEG", **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}) | options)
    return buffer.getvalue()


def difference(images, others) -> float:
    """Mean absolute difference, in levels."""
    return float(np.abs(np.asarray(images, np.float32) - np.asarray(others, np.float32)).mean())


def ramp(height: int, width: int, axis: int) -> np.ndarray:
    """Grey that grows evenly from 0 to 255 along an axis."""
    values = np.linspace(0, 255, (height, width)[axis])
    grey = np.broadcast_to(values[:, None] if axis == 0 else values, (height, width))
    return np.repeat(grey.round().astype(np.uint8)[..., None], 3, axis=2)


@pytest.fixture(scope="module")
def photo() -> bytes:
    return photograph(np.random.default_rng([0, 1]), (2400, 1800))


def centre(image: Image.Image, share: float) -> tuple[int, int, int, int]:
    """The centred square as left, upper, right, lower."""
    side = round(share * min(image.size))
    left, upper = (image.width - side) // 2, (image.height - side) // 2
    return left, upper, left + side, upper + side


@pytest.mark.parametrize("size", [100, 160, 224, 299, 500])  # the crop is 3.2 to 15.8 times as large
def test_the_pixels_are_nearer_to_those_of_pillow_than_without(photo, size):
    image = Image.open(io.BytesIO(photo))
    expected = np.asarray(image.crop(centre(image, 0.875)).resize((size, size), Image.Resampling.BILINEAR), np.float32)
    config = InputConfig(size, "float32")
    scaled = decode_for_evaluation(photo, config)
    unscaled = decode_for_evaluation(photo, dataclasses.replace(config, scaled_decode=False))
    assert difference(scaled, expected) < 3.5
    assert difference(scaled, expected) < 0.8 * difference(unscaled, expected)
    assert abs((scaled - expected).numpy().mean((0, 1))).max() < 1  # colors stay; without, 1.3 levels


# Sides that the ratios divide and do not; a window at the border, as eval_crop is 1.
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize(("height", "width"), [(640, 800), (801, 1003), (999, 777), (1607, 403)])
@pytest.mark.parametrize(("size", "share"), [(24, 1.0), (50, 1.0), (64, 0.875), (100, 0.875), (190, 1.0)])
def test_an_image_stays_where_it_is(height, width, subsampling, size, share):
    side = round(share * min(height, width))
    for axis, length in enumerate((height, width)):
        data = file_of(ramp(height, width, axis), subsampling=subsampling)
        image = decode_for_evaluation(data, InputConfig(size, "float32", eval_crop=share)).numpy()
        positions = image[..., 0].mean(1 - axis) * (length - 1) / 255  # position in the file, in its pixels
        step = side / size
        expected = (length - side) // 2 + (np.arange(size) + 0.5) * step - 0.5
        shift = (
            positions - expected
        ) / step  # in pixels of the result; 0.5 by rounding, the rest by the file's grey levels
        assert abs(shift).max() < 0.5 + 2 * (length / 255) / step


@pytest.mark.parametrize("ratio", [2, 4, 8])
def test_a_window_that_the_ratio_divides_does_not_move_at_all(ratio):
    # A square of 32 * ratio pixels in the middle: its sides lie at 24 * ratio and 56 * ratio.
    for axis in (0, 1):
        image = decode_for_evaluation(
            file_of(ramp(80 * ratio, 80 * ratio, axis)), InputConfig(32, "float32", eval_crop=0.4)
        ).numpy()
        expected = (ratio * (24 + np.arange(32) + 0.5) - 0.5) * 255 / (80 * ratio - 1)
        assert abs(image[..., 0].mean(1 - axis) - expected).max() < 0.75  # levels; a pixel of the result is 3.2


@pytest.mark.parametrize("size", [64, 200, 500])
def test_training_decodes_what_libjpeg_decodes_at_the_scale_that_fits(photo, size):
    """Pillow's draft() sets libjpeg's scale too; it interpolates chroma and has the slow transform."""
    config = InputConfig(size, "float32", flip=False)
    ratios = set()
    for number in range(12):
        seed = tf.constant([0, number], tf.int64)
        y, x, height, width = random_window(tf.constant([1800, 2400, 3]), seed_for(seed, "window"), config).numpy()
        ratio = next(ratio for ratio in (8, 4, 2, 1) if min(height, width) >= ratio * size)
        ratios.add(ratio)
        image = Image.open(io.BytesIO(photo))
        image.draft("RGB", (2400 // ratio, 1800 // ratio))
        assert image.size == (2400 // ratio, 1800 // ratio)
        upper, left, lower, right = ((side + ratio // 2) // ratio for side in (y, x, y + height, x + width))
        expected = tf.image.resize(np.asarray(image)[upper:lower, left:right], (size, size))
        assert difference(decode_for_training(photo, seed, config), expected) < 2
    assert len(ratios) == {64: 1, 200: 3, 500: 2}[size]


def test_no_window_becomes_smaller_than_the_image_it_is_resized_to():
    random = np.random.default_rng(0)
    for _ in range(300):
        size = int(random.integers(1, 70))
        sides = random.integers(1, 600, 2)
        extent = np.ceil(random.uniform(0.2, 1, 2) * sides).astype(int)
        begin = np.floor(random.uniform(0, 1, 2) * (sides - extent + 1)).astype(int)
        window = np.concatenate([begin, extent]).astype(np.int32)
        ratio = next(ratio for ratio in (8, 4, 2, 1) if ratio == 1 or min(extent) >= ratio * size)
        y, x, height, width = scaled_window(tf.constant(window), ratio).numpy()
        assert min(height, width) >= min(size, *extent)
        assert y >= 0 <= x
        assert y + height <= -(-sides[0] // ratio)
        assert x + width <= -(-sides[1] // ratio)


@pytest.mark.parametrize("kind", ["grey", "CMYK", "progressive", "no subsampling"])
def test_every_kind_of_jpeg_is_scaled(photo, kind):
    image = Image.open(io.BytesIO(photo)).resize((800, 600), Image.Resampling.LANCZOS)
    pixels = {"grey": image.convert("L"), "CMYK": image.convert("CMYK")}.get(kind, image)
    buffer = io.BytesIO()
    pixels.save(
        buffer, "JPEG", quality=95, progressive=kind == "progressive", subsampling=0 if kind == "no subsampling" else 2
    )
    config = InputConfig(64, "float32")
    scaled = decode_for_evaluation(buffer.getvalue(), config)
    small = pixels.convert("RGB").crop(centre(image, 0.875)).resize((64, 64), Image.Resampling.BOX)
    unscaled = decode_for_evaluation(buffer.getvalue(), dataclasses.replace(config, scaled_decode=False))
    assert difference(scaled, small) < 0.85 * difference(unscaled, small)


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (120, 100), (63, 500)])
def test_images_with_no_window_twice_as_large_stay_the_same_to_the_bit(size):
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)
    config = InputConfig(64)
    before = dataclasses.replace(config, scaled_decode=False)
    data = file_of(pixels)
    for number in range(8):
        seed = tf.constant([0, number], tf.int64)
        np.testing.assert_array_equal(decode_for_training(data, seed, config), decode_for_training(data, seed, before))
    np.testing.assert_array_equal(decode_for_evaluation(data, config), decode_for_evaluation(data, before))


def test_pngs_and_pixels_stay_the_same_to_the_bit():
    pixels = np.random.default_rng(0).integers(0, 255, (300, 400, 3), np.uint8)
    config, seed = InputConfig(32), tf.constant([0, 1], tf.int64)
    before = dataclasses.replace(config, scaled_decode=False)
    for encoded in (tf.constant(file_of(pixels, "PNG")), tf.constant(pixels)):
        np.testing.assert_array_equal(
            decode_for_training(encoded, seed, config), decode_for_training(encoded, seed, before)
        )
        np.testing.assert_array_equal(decode_for_evaluation(encoded, config), decode_for_evaluation(encoded, before))


def test_crops_of_one_decode_share_its_scale(photo):
    alone, together = InputConfig(32, "float32"), InputConfig(32, "float32", echo=3)
    crops = decode_for_training(photo, tf.constant([0, 5], tf.int64), together)
    differences = []
    for number, crop in enumerate(crops):
        seed = tf.constant([0, 5 * 3 + number], tf.int64)
        differences.append(difference(crop, decode_for_training(photo, seed, alone)))
    assert min(differences) == 0  # the smallest window determines the scale
    assert max(differences) < 8


def test_serving_sees_what_evaluation_sees(photo):
    png = file_of(np.asarray(Image.open(io.BytesIO(photo)).reduce(8)), "PNG")
    for config in (InputConfig(64), InputConfig(64, scaled_decode=False)):
        served = decode_files(tf.constant([photo, png]), config)
        np.testing.assert_array_equal(served, [decode_for_evaluation(data, config) for data in (photo, png)])


@pytest.mark.parametrize(("make", "on_corrupt"), [(make_train_input_fn, "error"), (make_eval_input_fn, "skip")])
def test_a_large_record_among_small_ones_is_scaled_in_both_input_fns(dataset_copy, photo, make, on_corrupt):
    """Crops of random pixels are grey where they are scaled, which antialiases, and else as random as before."""
    noise = file_of(np.random.default_rng(0).integers(0, 255, (800, 800, 3), np.uint8), subsampling=0)
    rewrite(dataset_copy, changed(encoded=noise))
    total = read_manifest(dataset_copy).split("train").num_examples

    def deviation(**changes) -> float:
        config = InputConfig(16, crop_area=(0.9, 1.0), on_corrupt=on_corrupt, **changes)
        batches = make(read_manifest(dataset_copy), config, split="train")({"batch_size": 24}).take(total // 24)
        images = np.concatenate([features["image"] for features, _ in batches.as_numpy_iterator()])
        in_color = images[np.ptp(images.astype(int), axis=3).max((1, 2)) > 0]  # digits are grey
        assert len(in_color) == 1
        return float(in_color.std())

    assert deviation() < 20
    assert deviation(scaled_decode=False) > 40


def test_a_split_without_images_of_twice_the_size_is_decoded_without_looking_at_each_window(digits_dataset):
    split = digits_dataset.split("train")
    sides = (split.height[2], split.width[2])
    assert min(sides) == 32
    for image_size, scaled in ((17, False), (16, True), (8, True)):
        assert for_images_of(InputConfig(image_size), split).scaled_decode is scaled
    unknown = dataclasses.replace(split, height=(0, 0.0, 0), width=(0, 0.0, 0))
    assert for_images_of(InputConfig(500), unknown).scaled_decode
    assert not for_images_of(InputConfig(8, scaled_decode=False), split).scaled_decode
