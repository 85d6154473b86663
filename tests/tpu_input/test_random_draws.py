"""No random choice of training depends on another, and each has its published distribution.

What was drawn is read off the pixels that come out, of 41,000 examples with two crops each. A new augmentation has to
be listed in DRAWS: a test fails until it is.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tpu_input import InputConfig, augment
from tpu_input.augment import operations
from tpu_input.pipeline.images import decode_for_training

EXAMPLES = 41_000  # 0.03 in a quarter of 82,000 crops is 4.3 standard deviations from no correlation
SIDE = 256
# Red is x and green is y, so that the corners of a crop tell where it was.
RAMP = np.stack([*np.meshgrid(np.arange(SIDE), np.arange(SIDE)), np.zeros([SIDE, SIDE])], -1).astype(np.uint8)
# No three factors in [0.6, 1.4] take these two pixels out of [0, 255].
COLOURS = np.array([[[40.0, 50, 60], [70, 75, 65]]], np.float32)
BOX = 32  # height and width of the images that are mixed
PLACES = np.stack([np.ones([BOX, BOX]), *np.mgrid[:BOX, :BOX]], -1).astype(np.float32)  # 1, y, x

# What each function of tpu_input.augment draws.
DRAWS = {
    "color_jitter": ["brightness", "contrast", "saturation"],
    "rand_augment": [f"{draw} {layer}" for layer in (1, 2) for draw in ("operation", "sign", "y", "x")],
    "mixup": ["mixup share"],
    "cutmix": ["cutmix area", "cutmix y", "cutmix x"],
}
CROP = ["area", "aspect", "x", "y", "flip", "user's draw"]
QUANTITIES = [*CROP, *itertools.chain(*DRAWS.values())]


def test_every_augmentation_is_listed():
    functions = inspect.getmembers(augment, inspect.isfunction)
    names = {name for name, function in functions if function.__module__ == augment.__name__ and name[0] != "_"}
    # find_augment finds them by name, operations are what two of them apply, and test_operations.py counts what
    # auto_augment draws.
    assert names - {"find_augment", "operations", "auto_augment"} == set(DRAWS)


def marked(pixels: tf.Tensor, choice: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    """An operation that only leaves its number and its sign, in other digits than the last layer's, and its place."""
    pixels = tf.cast(pixels, tf.float32)
    return tf.concat([100 * pixels[..., :1] + choice, pixels[..., 3:], place[None, None]], -1)


def everything(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A user's augmentation: of one seed its own draw, and all that tpu_input.augment has; 20 numbers for DRAWS."""
    with pytest.MonkeyPatch.context() as patch:
        marks = [
            lambda pixels, sign, place, number=number: marked(pixels, (1 + number) * sign, place)
            for number in range(len(operations(9, 40, 100)))
        ]
        patch.setattr(augment, "operations", lambda *_: dict(enumerate(marks)))
        layers = augment.rand_augment(2, 9)(tf.zeros([1, 1, 5]), seed)[0, 0]
    pair, labels = tf.stack([tf.zeros([BOX, BOX, 3]), tf.constant(PLACES)]), tf.eye(2)
    share = augment.mixup(pair[:, :1, :1], labels, seed)[1][0, 0]
    box = tf.reduce_sum(augment.cutmix(pair, labels, seed)[0][0], [0, 1])  # its pixels, the sums of their y and x
    jittered = tf.reshape(augment.color_jitter(0.4, 0.4, 0.4)(tf.constant(COLOURS), seed), [-1])
    corners = [image[0, 0, 0], image[0, -1, 0], image[0, 0, 1], image[-1, 0, 1]]
    values = tf.stack([*corners, tf.random.stateless_uniform([], seed), share])
    return tf.reshape(tf.concat([values, box, jittered, layers, tf.zeros([8 * 8 * 3 - 20])], 0), [8, 8, 3])


@pytest.fixture(scope="module")
def draws() -> dict[str, np.ndarray]:
    """Quantity -> [examples, 2 crops of each], without the few examples of which a box has no pixels and no middle."""
    config = InputConfig(8, "float32", crop_area=(0.1, 0.5), augment=everything, echo=2)

    def crops(number: tf.Tensor) -> tf.Tensor:
        both = decode_for_training(tf.constant(RAMP), tf.stack([np.int64(7), number]), config)
        return tf.stack([tf.reshape(crop, [-1])[:20] for crop in both])

    values = tf.data.Dataset.range(EXAMPLES).map(crops, tf.data.AUTOTUNE).batch(EXAMPLES).get_single_element().numpy()
    values = values[(values[..., 6] > 0).all(1)]
    left, right, top, bottom, user, share, *box = np.moveaxis(values[..., :9], -1, 0)
    layers, *places = np.moveaxis(values[..., 15:], -1, 0)
    # The first and the last of 8 pixels are 7/8 of the crop apart, and half a pixel within it.
    width, height = 8 / 7 * abs(right - left), 8 / 7 * (bottom - top)
    free_x, free_y = (
        (np.minimum(left, right) + 0.5 - width / 16, SIDE - width),
        (top + 0.5 - height / 16, SIDE - height),
    )
    first = np.round(layers / 100)
    second = layers - 100 * first
    colours = values[..., 9:15].reshape(-1, 2, 2, 3)
    grey, grey_before = (rgb @ np.array([0.299, 0.587, 0.114]) for rgb in (colours, COLOURS[0]))
    bright = grey.mean(-1) / grey_before.mean()
    contrasted = (grey[..., 1] - grey[..., 0]) / (grey_before[1] - grey_before[0]) / bright
    saturated = (colours[..., 0, 0] - colours[..., 0, 2]) / (COLOURS[0, 0, 0] - COLOURS[0, 0, 2]) / bright / contrasted
    columns = [
        *(width * height / SIDE**2, np.log(width / height), free_x[0] / free_x[1], free_y[0] / free_y[1]),
        *(1.0 * (left > right), user),
        *(bright, contrasted, saturated),
        *(abs(first) - 1, np.sign(first), *places[:2], abs(second) - 1, np.sign(second), *places[2:]),
        *(share, box[0] / BOX**2, box[1] / box[0], box[2] / box[0]),
    ]
    return dict(zip(QUANTITIES, columns, strict=True))


def correlations(values: np.ndarray) -> np.ndarray:
    """Of [quantities, n]: [quantities, 5, quantities], of all, and in each quarter of the first."""
    quarters: list[list[Any]] = [np.array_split(order, 4) for order in np.argsort(values, axis=1, kind="stable")]
    with np.errstate(invalid="ignore"):  # a quarter in which one does not vary
        coefficients = [
            [np.corrcoef(values[:, part])[number] for part in (slice(None), *parts)]
            for number, parts in enumerate(quarters)
        ]
    return np.nan_to_num(coefficients)


@pytest.mark.long
def test_no_draw_of_a_crop_depends_on_another(draws):
    coefficients = correlations(np.stack([draws[quantity].ravel() for quantity in QUANTITIES]))
    # A box is cut off at the border, so that its area depends on where it is.
    boxes = [QUANTITIES.index(quantity) for quantity in DRAWS["cutmix"]]
    coefficients[np.ix_(boxes, range(5), boxes)] -= correlations(np.stack(list(cutmix_of_the_authors().values())))
    dependent = {
        (one, other): coefficients[i, :, j].round(3).tolist()
        for (i, one), (j, other) in itertools.permutations(enumerate(QUANTITIES), 2)
        if abs(coefficients[i, :, j]).max() > 0.03
    }
    assert not dependent


@pytest.mark.parametrize("quantity", CROP)
@pytest.mark.long
def test_no_crop_depends_on_the_other_of_its_image_nor_on_the_next_image_s(draws, quantity):
    for other in CROP:
        first, second = draws[quantity].T[0], draws[other].T[1]
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
        assert abs(np.corrcoef(second[:-1], first[1:])[0, 1]) < 0.03


def cutmix_of_the_authors() -> dict[str, np.ndarray]:
    """Of 1,000,000 boxes of Yun et al. 2019, section 3.1, cut off at the border as in their code's rand_bbox()."""
    random = np.random.default_rng(0)
    half = BOX / 2 * np.sqrt(1 - random.beta(1, 1, 1_000_000))
    middle = random.uniform(0, BOX, (2, len(half)))
    low, high = np.clip(np.round(middle - half), 0, BOX), np.clip(np.round(middle + half), 0, BOX)
    area = np.prod(high - low, axis=0) / BOX**2
    y, x = (low + high - 1) / 2
    return {"cutmix area": area[area > 0], "cutmix y": y[area > 0], "cutmix x": x[area > 0]}


@pytest.mark.parametrize("quantity", DRAWS["cutmix"])
@pytest.mark.long
def test_cutmix_draws_the_boxes_of_its_authors(draws, quantity):
    ours, theirs = draws[quantity].ravel(), cutmix_of_the_authors()[quantity]
    assert stats.ks_2samp(ours, theirs).statistic < 0.01


@pytest.mark.parametrize(
    ("quantity", "published"),
    [
        *((draw, stats.uniform()) for draw in ("user's draw", "y 1", "x 1", "y 2", "x 2")),
        *((factor, stats.uniform(0.6, 0.8)) for factor in DRAWS["color_jitter"]),
        ("mixup share", stats.beta(0.2, 0.2)),
    ],
)
@pytest.mark.long
def test_a_factor_is_drawn_from_its_published_distribution(draws, quantity, published):
    expected = published.rvs(1_000_000, random_state=0).astype(np.float32)  # shares round to 1
    assert stats.ks_2samp(draws[quantity].ravel(), expected).statistic < 0.01


@pytest.mark.parametrize(
    ("quantity", "values"),
    [
        ("flip", [0, 1]),
        ("sign 1", [-1, 1]),
        ("sign 2", [-1, 1]),
        ("operation 1", range(17)),
        ("operation 2", range(17)),
    ],
)
@pytest.mark.long
def test_each_choice_is_as_likely_as_another(draws, quantity, values):
    outcomes, counts = np.unique(draws[quantity], return_counts=True)
    assert outcomes.tolist() == list(values)
    assert stats.chisquare(counts).pvalue > 0.001
