"""Training's crops are those of torchvision's RandomResizedCrop: a NumPy writing of its rule is held beside them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tpu_input import InputConfig
from tpu_input.pipeline.images import random_window


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
    found, wanted = quantities(windows, shape), quantities(expected, shape)
    for name in found:
        # By chance 0.022 is exceeded once in a thousand times.
        assert stats.ks_2samp(found[name], wanted[name]).statistic < 0.025, name
    # Area and aspect depend on one another, as large crops fit only with the image's aspect.
    for name, other in (("area", "aspect"), ("area", "x"), ("aspect", "y"), ("x", "y")):
        ours_, theirs = (stats.spearmanr(of[name], of[other]).statistic for of in (found, wanted))
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
