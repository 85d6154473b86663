"""RandAugment's operations are those of tf-models-official, which is run beside them, and so are its results.

So is AutoAugment's policy.
"""

from __future__ import annotations

import collections
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import skimage.data
import tensorflow as tf
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from tpu_input import InputConfig, augment
from tpu_input.augment import operations
from tpu_input.without_tensorflow.augmentations import auto_augment_policy

MAGNITUDES = (0, 5, 9, 10, 17, 23, 28, 30)
NAMES = {  # ours -> the reference's
    "autocontrast": "AutoContrast",
    "equalize": "Equalize",
    "invert": "Invert",
    "rotate": "Rotate",
    "posterize": "Posterize",
    "solarize": "Solarize",
    "color": "Color",
    "contrast": "Contrast",
    "brightness": "Brightness",
    "sharpness": "Sharpness",
    "shear_x": "ShearX",
    "shear_y": "ShearY",
    "translate_x": "TranslateX",
    "translate_y": "TranslateY",
    "cutout": "Cutout",
    "solarize_add": "SolarizeAdd",
}
EITHER_WAY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


@pytest.fixture(scope="module")
def reference():
    """The one file of tf-models-official that is needed: its packages' own imports would need forty others."""
    package = importlib.util.find_spec("official")
    assert package, "python -m pip install --no-deps --requirement constraints/references.txt, as make test does"
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "vision" / "ops" / "augment.py"
    spec = importlib.util.spec_from_file_location("reference_augment", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def photographs(side: int) -> list[np.ndarray]:
    pictures = [*load_sample_images().images, skimage.data.astronaut(), skimage.data.coffee()]
    return [np.asarray(ImageOps.fit(Image.fromarray(image), (side, side))) for image in pictures]


def test_there_are_the_reference_s_sixteen_and_the_identity(reference):
    assert set(operations(9, 40, 100)) == {"identity", *NAMES}
    assert set(NAMES.values()) == set(reference.RandAugment().available_ops)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("name", NAMES)
def test_an_operation_is_the_reference_s(reference, monkeypatch, name, magnitude):
    pixels = tf.constant(photographs(224)[2])
    for sign in (-1.0, 1.0):
        monkeypatch.setattr(reference, "_randomly_negate_tensor", lambda level, sign=sign: sign * level)
        monkeypatch.setattr(reference.tf.random, "uniform", lambda *_, maxval, **__: maxval // 3)  # cutout's place
        function, _, arguments = reference._parse_policy_info(
            NAMES[name], 0.5, float(magnitude), [128] * 3, 40.0, 100.0
        )
        theirs = function(pixels, None, *arguments)[0].numpy().astype(int)
        ours = operations(magnitude, 40, 100)[name](pixels, tf.constant(sign), tf.constant([1 / 3, 1 / 3])).numpy()
        assert ours.dtype == np.uint8
        difference = np.abs(ours - theirs)
        if name == "sharpness":
            # The reference's sums of thirteenths round down to a level less, which the factor multiplies.
            assert difference.max() <= 1 + abs(1.8 * magnitude / 10 + 0.1 - 1)
        elif name in EITHER_WAY:
            assert np.mean(difference.max(axis=-1) > 0) < 0.001  # halfway between two pixels either is the nearest
        else:
            assert difference.max() <= 1
            assert np.mean(difference > 0) < 0.01


def destroyed(images: list[np.ndarray]) -> np.ndarray:
    """Shares of nearly black images and of nearly flat ones."""
    return np.array([np.mean([image.mean() < 16 for image in images]), np.mean([image.std() < 8 for image in images])])


@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion:DeprecationWarning")  # of shifts below 0
@pytest.mark.parametrize("magnitude", [9, 28])
@pytest.mark.long
def test_no_more_images_are_black_or_flat_than_the_reference_s(reference, magnitude):
    side, number = 64, 1200
    images = tf.constant(np.stack(photographs(side)))
    # 40 and 100 pixels at 224, as our default takes them at 64.
    theirs = reference.RandAugment(2, magnitude, cutout_const=40 * side / 224, translate_const=100 * side / 224)
    tf.random.set_seed(0)
    published = tf.function(lambda i: theirs.distort(images[i % 4]))
    ours = tf.function(lambda i: augment.rand_augment(2, magnitude)(images[i % 4], tf.stack([np.int64(0), i])))
    actual, expected = (
        destroyed([make(tf.constant(i, tf.int64)).numpy() for i in range(number)]) for make in (ours, published)
    )
    # A share of 2 % has a standard deviation of 0.4 %.
    assert (actual <= expected + 0.012).all(), (actual, expected)


@pytest.mark.parametrize("make", [lambda: augment.rand_augment(2, 30), augment.auto_augment])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_range_shape_and_dtype_stay(dtype, make):
    image = tf.cast(photographs(32)[0], dtype)
    for number in range(20):
        changed = make()(image, tf.constant([0, number], tf.int64))
        assert changed.dtype == image.dtype
        assert changed.shape == image.shape


def outcomes(policy: list[list[tuple[str, float, int]]], pixels: np.ndarray) -> dict[bytes, float]:
    """Returns what AutoAugment can make of an image, with the probability of each."""
    names, translate = {theirs: ours for ours, theirs in NAMES.items()}, 250 * len(pixels) / 224
    probabilities: dict[bytes, float] = collections.defaultdict(float)
    for sub_policy in policy:
        images = {pixels.tobytes(): 1 / len(policy)}
        for name, probability, magnitude in sub_policy:
            operation, before = operations(magnitude, 0, translate)[names[name]], images
            images = collections.defaultdict(float)
            for content, share in before.items():
                image = tf.constant(np.frombuffer(content, np.uint8).reshape(pixels.shape))
                images[content] += share * (1 - probability)
                for sign in (-1.0, 1.0):
                    result = operation(image, tf.constant(sign), tf.zeros([2])).numpy().tobytes()
                    images[result] += share * probability / 2
        for content, share in images.items():
            probabilities[content] += share
    return {content: share for content, share in probabilities.items() if share}


def test_auto_augment_s_table_is_the_reference_s(reference):
    names = {theirs: ours for ours, theirs in NAMES.items()}
    policy = [
        tuple((names[name], probability, magnitude) for name, probability, magnitude in line)
        for line in reference.AutoAugment.policy_v0()
    ]
    assert auto_augment_policy() == tuple(policy)


@pytest.mark.long
def test_auto_augment_applies_the_reference_s_policy_as_often(reference):
    pixels, number = photographs(24)[2], 1000
    expected = outcomes(reference.AutoAugment.policy_v0(), pixels)
    assert len(expected) > 60
    make = tf.function(lambda i: augment.auto_augment()(tf.constant(pixels), tf.stack([np.int64(0), i])))
    counts = collections.Counter(make(tf.constant(i, tf.int64)).numpy().tobytes() for i in range(number))
    assert counts.keys() <= expected.keys()
    frequent = [content for content, share in expected.items() if share * number >= 5]
    observed = [*(counts[content] for content in frequent), number - sum(counts[content] for content in frequent)]
    shares = [expected[content] for content in frequent]
    assert scipy.stats.chisquare(observed, number * np.array([*shares, 1 - sum(shares)])).pvalue > 0.001


def test_an_augmentation_of_a_recipe_can_be_taken_away():
    config = InputConfig(image_size=8, augment="none")
    assert config == InputConfig(image_size=8)
    assert augment.find_augment("none") is None
    with pytest.raises(ValueError, match="augment auto takes no numbers, got 'auto:9'"):
        InputConfig(image_size=8, augment="auto:9")


def test_equalizing_is_pillow_s_too_and_leaves_one_colour_alone():
    pixels = photographs(64)[1]
    one = tf.fill([8, 8, 3], tf.constant(77, tf.uint8))
    equalize = operations(9, 40, 100)["equalize"]
    expected = np.asarray(ImageOps.equalize(Image.fromarray(pixels)))
    np.testing.assert_array_equal(equalize(tf.constant(pixels), 1.0, None), expected)
    np.testing.assert_array_equal(equalize(one, 1.0, None), one)


def test_cutout_does_not_cover_a_small_image_unless_it_is_told_to():
    image = tf.constant(photographs(32)[0])

    def flat(**constants) -> float:
        changed = tf.function(lambda i: augment.rand_augment(2, 9, **constants)(image, tf.stack([np.int64(0), i])))
        return destroyed([changed(tf.constant(i, tf.int64)).numpy() for i in range(400)])[1]

    assert flat() < 0.01
    assert flat(cutout_const=40) > 0.03  # 72 × 72 pixels, in one of nine images


@pytest.mark.parametrize(("num_layers", "magnitude"), [(0, 9), (2, -1), (2, 31)])
def test_what_is_out_of_range_is_refused(num_layers, magnitude):
    with pytest.raises(ValueError, match=rf"needs num_layers >= 1 and magnitude in \[0, 30\], got {num_layers} and"):
        augment.rand_augment(num_layers, magnitude)
