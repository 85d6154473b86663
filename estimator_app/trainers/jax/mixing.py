"""Mixing of the images and labels of a training batch by mixup or CutMix: the draws of model/mixing.py, without it.

seed, step ──draw_mixing()──▶ share, box of the step, on the host ──mixed()──▶ mixed batch, on the devices
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from estimator_app.config import TrainConfig
from tpu_input.without_tensorflow.augmentations import beta_quantiles
from tpu_input.without_tensorflow.random_numbers import integers, seed_for, uniform

Mixing = Mapping[str, npt.NDArray[Any]]


def draw_mixing(config: TrainConfig, step: int) -> Mixing:
    """Returns the arguments of mixed() for a step; {} without --mixup and --cutmix.

    Returns:
      "share", float32: share of each example's own image and label; the rest is from the batch in reverse order; and
      "box", [4] float32: first row, end row, first column and end column, in pixels, of the box that is taken from the
      other image; empty for mixup.
    """
    if not (config.mixup or config.cutmix):
        return {}
    seeds = np.array([[config.input.seed, step]], np.int64)
    is_mixup = bool(config.mixup)
    if config.mixup and config.cutmix:
        is_mixup = bool(uniform(seed_for(seeds, "mixup or cutmix"), 1)[0, 0] < 0.5)
    if is_mixup:
        return {"share": np.asarray(_beta(config.mixup, seed_for(seeds, "mixup"))), "box": np.zeros(4, np.float32)}
    size = np.float32(config.input.image_size)
    side = np.sqrt(np.float32(1) - _beta(config.cutmix, seed_for(seeds, "cutmix size")))
    center = uniform(seed_for(seeds, "cutmix centre"), 2)[0] * size
    half = side * (size / np.float32(2))
    low, high = np.round(center - half), np.round(center + half)
    box = np.array([low[0], high[0], low[1], high[1]], np.float32)
    height, width = (min(high[axis], size) - max(low[axis], np.float32(0)) for axis in (0, 1))
    return {"share": np.asarray(np.float32(1) - np.float32(height * width) / (size * size)), "box": box}


def mixed(images: Any, labels: Any, weight: Any, mixing: Mapping[str, Any], num_classes: int) -> tuple[Any, Any, Any]:
    """Returns the images, labels and weights of a batch, each mixed with the batch in reverse order.

    mixup: Zhang et al. 2017, "mixup: Beyond Empirical Risk Minimization". CutMix: Yun et al. 2019, "CutMix:
    Regularization Strategy to Train Strong Classifiers with Localizable Features". An example of weight 0 contributes
    to no label.

    Args:
      images: [N, H, W, 3] float32.
      labels: [N] int32; with several labels per image, [N, K] float32.
      weight: [N] float32.
      mixing: From draw_mixing(); {} returns the batch as it is.
      num_classes: K.
    """
    if not mixing:
        return images, labels, weight
    share, (first_row, end_row, first_column, end_column) = mixing["share"], mixing["box"]
    has_box = end_row > first_row
    rows, columns = (jnp.arange(size, dtype=jnp.float32) for size in images.shape[1:3])
    in_rows, in_columns = (rows >= first_row) & (rows < end_row), (columns >= first_column) & (columns < end_column)
    inside = in_rows[:, None] & in_columns[None, :]
    other = jnp.where(has_box, inside.astype(images.dtype), 1 - share)[None, :, :, None]
    targets = jax.nn.one_hot(labels, num_classes) if labels.ndim == 1 else labels
    first, second = share * weight, (1 - share) * weight[::-1]
    total = first + second
    own_share = jnp.where(total > 0, first / jnp.where(total > 0, total, 1), share)[:, None]
    return (1 - other) * images + other * images[::-1], own_share * targets + (1 - own_share) * targets[::-1], total


def _beta(alpha: float, seeds: npt.NDArray[np.int64]) -> np.float32:
    """Returns a number drawn from Beta(alpha, alpha) with the first of `seeds`, as tpu_input.augment does."""
    quantiles = beta_quantiles(alpha)
    return np.float32(quantiles[integers(seeds, len(quantiles))[0]])
