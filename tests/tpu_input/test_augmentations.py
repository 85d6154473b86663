"""Augmentations in NumPy are those of tpu_input/augment.py in TensorFlow, bit for bit, with the same draws."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tpu_input import augment
from tpu_input.config import AUGMENTATIONS
from tpu_input.pipeline.seeds import seed_for
from tpu_input.without_tensorflow import augmentations
from tpu_input.without_tensorflow.augmentations import ColorJitter, RandAugment, find_augmentation

SIZES = [(1, 1), (1, 7), (7, 1), (2, 9), (3, 3), (24, 24), (57, 40), (224, 224), (260, 300)]
MAGNITUDES = (0, 0.5, 5, 9, 10, 13.7, 17, 20, 23, 28, 30)
# What InputConfig.augment may be, for each of its names; a new one has to be added.
TEXTS = {
    "none": ["none"],
    "color_jitter": ["color_jitter", "color_jitter:1,0.2,1"],
    "rand_augment": ["rand_augment", "rand_augment:1,30", "rand_augment:3,17.5"],
    "auto": ["auto"],
}
AUGMENTED = [text for texts in TEXTS.values() for text in texts if text != "none"]
DTYPES: dict[str, Any] = {"uint8": np.uint8, "float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def pictures(height: int, width: int) -> list[np.ndarray]:
    """One of noise, one of a single color, a gradient, and one of few and dark levels."""
    random = np.random.default_rng([height, width])
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    smooth = np.stack([x, y, (x + y) / 2], -1).astype(np.uint8)
    noise = random.integers(0, 256, [height, width, 3], np.uint8)
    return [noise, np.full_like(noise, random.integers(0, 256)), smooth, noise // 64 + np.uint8(3)]


def test_every_name_is_among_these():
    assert TEXTS.keys() == AUGMENTATIONS.keys()
    assert find_augmentation("none") is None
    assert augment.find_augment("none") is None


@pytest.mark.parametrize("name", augmentations.operations(9, 40, 100))
def test_an_operation_is_tensorflow_s(name):
    cases = [*itertools.product(SIZES[:-2], MAGNITUDES), *itertools.product(SIZES[-2:], (9, 28))]
    for (height, width), magnitude in cases:
        constants = RandAugment(2, magnitude).constants(height, width)
        ours = augmentations.operations(magnitude, *constants)[name]
        theirs = augment.operations(magnitude, *constants)[name]
        place = np.random.default_rng(int(10 * magnitude)).random(2, np.float32)
        for pixels, sign in itertools.product(pictures(height, width), (-1.0, 1.0)):
            expected = theirs(tf.constant(pixels), tf.constant(sign), tf.constant(place)).numpy()
            before, actual = pixels.copy(), ours(pixels, sign, place)
            assert actual.dtype == np.uint8
            np.testing.assert_array_equal(actual, expected, f"{magnitude}, {pixels.shape}, {sign}")
            np.testing.assert_array_equal(pixels, before)


def test_gray_is_tensorflow_s_for_every_color():
    """All 16,777,216 of them: the sum of three float32 products is rounded down to a level."""
    levels = np.arange(256, dtype=np.uint8)
    for red in range(256):
        pixels = np.stack(np.broadcast_arrays(np.uint8(red), levels[:, None], levels), -1)
        actual = augmentations.operations(0, 0, 0)["color"](pixels, 1.0, np.zeros(2, np.float32))
        theirs = augment.operations(0, 0, 0)["color"](tf.constant(pixels), tf.constant(1.0), None)
        np.testing.assert_array_equal(actual, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", AUGMENTED)
def test_an_augmentation_is_tensorflow_s(text, dtype):
    ours, theirs = find_augmentation(text), augment.find_augment(text)
    assert ours is not None
    assert theirs is not None
    random = np.random.default_rng(AUGMENTED.index(text))
    for height, width in SIZES:
        seeds, images = random.integers(-(2**62), 2**62, [12, 2]), pictures(height, width)
        if dtype != "uint8":
            images.append((random.random([height, width, 3]) * 300 - 20).astype(np.float32))  # as users' may be
        for seed, draw, image in zip(seeds, ours.draw(seeds), itertools.cycle(images), strict=False):
            image = image.astype(DTYPES[dtype])
            actual, expected = ours.apply(image, draw), theirs(tf.constant(image), tf.constant(seed)).numpy()
            assert (actual.dtype, actual.shape) == (image.dtype, image.shape)
            np.testing.assert_array_equal(actual, expected, f"{image.shape}, {seed}")
            np.testing.assert_array_equal(ours(image, seed), actual)


def test_an_augmentation_in_a_graph_of_tf_data_is_the_same():
    image, seeds = pictures(33, 33)[0], np.random.default_rng(0).integers(-(2**62), 2**62, [40, 2])
    for text in TEXTS["color_jitter"] + TEXTS["rand_augment"]:
        ours, theirs = find_augmentation(text), augment.find_augment(text)
        assert ours is not None
        assert theirs is not None
        dataset = tf.data.Dataset.from_tensor_slices(seeds).map(lambda seed, f=theirs: f(tf.constant(image), seed))
        expected = dataset.batch(len(seeds)).get_single_element()
        np.testing.assert_array_equal([ours.apply(image, draw) for draw in ours.draw(seeds)], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 5), (40, 57), (300, 300)])
def test_color_jitter_in_any_order_of_its_sums_is_at_most_a_level_away(size, dtype):
    """Where a CPU adds up in another order, e.g. without fused multiply-adds: float64 stands for all of these."""
    jitter = ColorJitter(1, 1, 1)
    seeds = np.random.default_rng(0).integers(-(2**62), 2**62, [30, 2])
    for draw, image in zip(jitter.draw(seeds), itertools.cycle(pictures(*size)), strict=False):
        image = image.astype(DTYPES[dtype])
        pixels, (bright, contrasted, saturated) = image.astype(np.float64), 2 * draw.astype(np.float64)
        gray = pixels @ augmentations.GREY
        expected = bright * (contrasted * (saturated * pixels + (1 - saturated) * gray[..., None] - gray.mean()))
        expected = np.clip(expected + bright * gray.mean(), 0, 255)
        actual = jitter.apply(image, draw).astype(np.float64)
        if dtype == "uint8":
            assert abs(actual - np.rint(expected)).max() <= 1
            assert (actual != np.rint(expected)).mean() < 0.001
        else:
            assert abs(actual - expected).max() < (0.001 if dtype == "float32" else 0.501)  # half of 1, bfloat16's step


def test_many_seeds_draw_what_one_draws():
    seeds = np.random.default_rng(3).integers(-(2**62), 2**62, [9, 2])
    for text in AUGMENTED:
        augmentation = find_augmentation(text)
        assert augmentation is not None
        alone = [augmentation.draw(seed[None])[0] for seed in seeds]
        np.testing.assert_array_equal(augmentation.draw(seeds), alone)


def test_augmentations_can_be_pickled_and_compared():
    for text in AUGMENTED:
        augmentation = find_augmentation(text)
        assert pickle.loads(pickle.dumps(augmentation)) == augmentation
        assert find_augmentation(augment.find_augment(text)) == augmentation
    assert find_augmentation("rand_augment:2,9") == find_augmentation("rand_augment") != find_augmentation("auto")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rand_augment:2.5,9", "the number of layers must be an integer"),
        ("rand_augment:0,9", r"needs num_layers >= 1 and magnitude in \[0, 30\], got 0 and 9"),
        ("color_jitter:2", r"brightness, contrast and saturation must be in \[0, 1\]"),
        ("sharpen", "sharpen"),
    ],
)
def test_a_wrong_strength_is_the_same_error_in_both(text, message):
    for find in (find_augmentation, augment.find_augment):
        with pytest.raises(ValueError, match=message):
            find(text)


def test_a_user_s_function_is_none_of_them():
    def mine(image: Any, seed: Any) -> Any:
        return image

    assert find_augmentation(mine) is None
    assert find_augmentation(None) is None
    assert augment.find_augment(mine) is mine
    assert augment.find_augment(None) is None
    seed = seed_for(tf.constant([1, 2], tf.int64), "augment")
    augmentation, image = RandAugment(1, 9, cutout_const=3), pictures(8, 8)[0]
    wrapped = augment.find_augment(augmentation)
    assert wrapped is not None
    np.testing.assert_array_equal(wrapped(tf.constant(image), seed), augmentation(image, seed.numpy()))
