"""Crops: training's are those of torchvision's RandomResizedCrop, of which a NumPy writing of its rule is held beside
them, and evaluation's are its CenterCrop of a share; and the pixels inside them are those of the image.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tpu_input import InputConfig
from tpu_input.dataset_format.records import RecordSpec
from tpu_input.pipeline.images import centre_window, decode_for_evaluation, decode_for_training, random_window


def published_for(height: int, width: int, areas, aspects, draws: np.ndarray) -> tuple[int, int, int, int]:
    """The same rule as published(), for given draws in [0, 1): [share, log aspect, y, x] of each try."""
    log_aspects = np.log(aspects)
    for share, aspect, y, x in draws.T[:10].astype(float):
        area = height * width * (areas[0] + (areas[1] - areas[0]) * share)
        aspect = np.exp(log_aspects[0] + (log_aspects[1] - log_aspects[0]) * aspect)
        w, h = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if w <= width and h <= height:
            h, w = max(h, 1), max(w, 1)  # torchvision draws again, but would forever at a crop of less than a pixel
            return int(y * (height - h + 1)), int(x * (width - w + 1)), h, w
    return published(height, width, (2.0, 2.0), aspects, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("shape", "areas", "aspects"),
    [
        ((375, 500), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((28, 28), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((100, 320), (0.5, 1.0), (3 / 4, 4 / 3)),  # most draws do not fit
        ((320, 100), (0.3, 1.0), (0.5, 3.0)),
        ((9, 5), (0.01, 0.6), (0.5, 3.0)),
        ((40, 61), (1.0, 1.0), (1.0, 1.0)),  # none fits
        ((61, 40), (1.0, 1.0), (1.0, 1.0)),
    ],
)
def test_known_draws_give_the_crop_of_the_published_rule(shape: tuple[int, int], areas, aspects, monkeypatch):
    all_draws = np.random.default_rng(0).random([100, 4, 12], np.float32)
    all_draws[:, :, 9] = np.random.default_rng(1).random([100, 4]) / 4  # the last of ten tries fits where others do not
    all_draws[:, :, 10] = 0  # and no eleventh is made
    expected = [published_for(*shape, areas, aspects, draws) for draws in all_draws]
    config, actual = InputConfig(8, crop_area=areas, crop_aspect=aspects), []
    for draws in all_draws:
        monkeypatch.setattr(
            tf.random, "stateless_uniform", lambda size, _, values=draws: tf.constant(values[:, : size[1]])
        )
        actual.append(tuple(random_window(tf.constant([*shape, 3]), tf.constant([0, 0], tf.int64), config).numpy()))
    assert actual == expected


@pytest.mark.parametrize(
    ("shape", "share", "window"),
    [
        ((375, 500), 1.0, (0, 62, 375, 375)),
        ((500, 375), 0.875, (86, 23, 328, 328)),
        ((9, 8), 0.5, (2, 2, 4, 4)),
        ((8, 9), 0.6, (1, 2, 5, 5)),  # 4.8 pixels
        ((1, 1), 0.3, (0, 0, 1, 1)),
        ((2, 1), 0.1, (0, 0, 1, 1)),
    ],
)
def test_evaluation_s_crop_is_the_centred_square(shape: tuple[int, int], share: float, window):
    assert tuple(centre_window(tf.constant([*shape, 3]), share).numpy()) == window


PIXELS = np.random.default_rng(0).integers(0, 256, [64, 64, 3], np.uint8)
JPEG = tf.io.encode_jpeg(PIXELS, quality=95, chroma_downsampling=True)
PNG = tf.io.encode_png(PIXELS)


def decoded(encoded: tf.Tensor) -> np.ndarray:
    """The pixels of JPEGs are those of the fast decoder that docs/input.md names."""
    if encoded is JPEG:
        return tf.io.decode_jpeg(encoded, 3, fancy_upscaling=False, dct_method="INTEGER_FAST").numpy()
    return PIXELS


def places(image: np.ndarray, crop: np.ndarray) -> list[tuple[int, int]]:
    """Returns every (y, x) at which the image has just these pixels."""
    views = np.lib.stride_tricks.sliding_window_view(image, crop.shape)[:, :, 0]
    return [(int(y), int(x)) for y, x in np.argwhere((views == crop).all((2, 3, 4)))]


@pytest.mark.parametrize("encoded", [JPEG, PNG], ids=["JPEG", "PNG"])
@pytest.mark.parametrize("magic_checked", [False, True])
@pytest.mark.parametrize("echo", [1, 2, 5])
def test_a_crop_has_the_pixels_of_its_place(encoded, magic_checked, echo):
    record = RecordSpec(encoding="png") if magic_checked and encoded is PNG else RecordSpec()
    quarter = InputConfig(32, crop_area=(0.25, 0.25), crop_aspect=(1.0, 1.0), flip=False, echo=echo, dtype="uint8")
    crops = decode_for_training(encoded, tf.constant([3, 4], tf.int64), quarter, record, magic_checked)
    matches = [places(decoded(encoded), crop.numpy()) for crop in (crops if echo > 1 else [crops])]
    assert [len(places_of_one) for places_of_one in matches] == [1] * echo
    assert len({places_of_one[0] for places_of_one in matches}) == echo


@pytest.mark.parametrize("encoded", [JPEG, PNG], ids=["JPEG", "PNG"])
def test_evaluation_s_crop_has_the_pixels_of_the_centre(encoded):
    half = InputConfig(32, eval_crop=0.5, dtype="uint8")
    np.testing.assert_array_equal(decode_for_evaluation(encoded, half), decoded(encoded)[16:48, 16:48])


def published(height: int, width: int, areas, aspects, random: np.random.Generator) -> tuple[int, int, int, int]:
    """torchvision.transforms.RandomResizedCrop.get_params, by its documentation: y, x, height, width."""
    for _ in range(10):
        area = height * width * random.uniform(*areas)
        aspect = np.exp(random.uniform(*np.log(aspects)))
        w, h = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.integers(0, height - h + 1), random.integers(0, width - w + 1), h, w
    w, h = min(width, round(height * aspects[1])), min(height, round(width / aspects[0]))
    return (height - h) // 2, (width - w) // 2, h, w


def ours(shape: tuple[int, int], number: int, **changes) -> np.ndarray:
    config = InputConfig(8, **changes)
    # A whole dataset in a few threads; the shape is a tensor, as it is in training.
    dataset = tf.data.Dataset.range(number).map(
        lambda i: random_window(tf.constant([*shape, 3]) + 0 * tf.cast(i, tf.int32), tf.stack([np.int64(3), i]), config)
    )
    return dataset.batch(number).get_single_element().numpy()


def quantities(windows: np.ndarray, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    y, x, height, width = windows.T
    return {
        "area": height * width / np.prod(shape),
        "aspect": width / height,
        "y": (y + 0.5) / (shape[0] - height + 1),
        "x": (x + 0.5) / (shape[1] - width + 1),
    }


@pytest.mark.parametrize(
    ("shape", "areas", "aspects"),
    [
        ((375, 500), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((256, 256), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((28, 28), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((500, 333), (0.5, 1.0), (3 / 4, 4 / 3)),
        ((640, 480), (0.25, 0.5), (0.5, 3.0)),
        ((100, 320), (0.08, 1.0), (3 / 4, 4 / 3)),  # a third of the first tries fit
    ],
)
def test_crops_have_the_published_distribution(shape: tuple[int, int], areas, aspects):
    number, random = 8000, np.random.default_rng(0)
    windows = ours(shape, number, crop_area=areas, crop_aspect=aspects)
    expected = np.array([published(*shape, areas, aspects, random) for _ in range(4 * number)])
    assert (windows[:, :2] >= 0).all()
    assert (windows[:, 2:] >= 1).all()
    assert (windows[:, :2] + windows[:, 2:] <= shape).all()
    actual, reference = quantities(windows, shape), quantities(expected, shape)
    for name in actual:
        # By chance 0.022 is exceeded once in a thousand times.
        assert stats.ks_2samp(actual[name], reference[name]).statistic < 0.025, name
    # Area and aspect depend on one another, as large crops fit only with the image's aspect.
    for name, other in (("area", "aspect"), ("area", "x"), ("aspect", "y"), ("x", "y")):
        ours_, theirs = (stats.spearmanr(sample[name], sample[other]).statistic for sample in (actual, reference))
        assert abs(ours_ - theirs) < 0.04, (name, other)


@pytest.mark.parametrize("shape", [(20, 400), (401, 21), (1, 1), (1, 9), (30, 40), (33, 33)])
@pytest.mark.parametrize("aspects", [(3 / 4, 4 / 3), (1.0, 1.0), (2.0, 3.0)])
def test_what_cannot_fit_is_the_largest_centred_part_with_an_allowed_aspect(shape: tuple[int, int], aspects):
    windows = ours(shape, 20, crop_area=(1.0, 1.0), crop_aspect=aspects)
    if aspects[0] <= shape[1] / shape[0] <= aspects[1]:
        expected = (0, 0, *shape)  # fits, or the whole image is the largest part
    else:
        expected = published(*shape, (2.0, 2.0), aspects, np.random.default_rng(0))
    assert (abs(windows - np.maximum(expected, [0, 0, 1, 1])) <= 1).all()


def test_a_crop_of_less_than_a_pixel_is_a_pixel():
    assert (ours((4, 4), 20, crop_area=(0.001, 0.001))[:, 2:] == 1).all()
