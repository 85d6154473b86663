"""Mixing of the images and labels of a training batch on the device, by mixup or CutMix.

images [N, H, W, 3], label [N] ──mix()──▶ mixed images, shares of the classes [N, K], mixed weight [N]
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from tpu_input.augment import cutmix, mixup
from tpu_input.pipeline.seeds import seed_for


def mix(
    images: tf.Tensor,
    labels: tf.Tensor,
    weight: tf.Tensor,
    num_classes: int,
    seed: Sequence[tf.Tensor | int],
    mixup_alpha: float,
    cutmix_alpha: float,
) -> tuple[tf.Tensor, ...]:
    """Returns the images, labels and weights of a replica's part of a batch, mixed with each other.

    With both alphas, each step applies mixup or CutMix, with equal probability.

    Args:
      images: [N, H, W, 3] float32.
      labels: [N] int32; with several labels per image, [N, K] float32.
      weight: [N] float32.
      num_classes: K.
      seed: The run's seed and the global step, which alone determine the choice and the shares.
      mixup_alpha: Alpha of mixup; 0 for none.
      cutmix_alpha: Alpha of CutMix; 0 for none.
    """
    shares = tf.one_hot(labels, num_classes) if labels.shape.rank == 1 else labels
    step_seed = tf.stack([tf.cast(number, tf.int64) for number in seed])

    by_mixup = functools.partial(mixup, images, shares, step_seed, mixup_alpha, weight)
    by_cutmix = functools.partial(cutmix, images, shares, step_seed, cutmix_alpha, weight)
    if mixup_alpha and cutmix_alpha:
        uses_mixup = tf.random.stateless_uniform([], seed_for(step_seed, "mixup or cutmix")) < 0.5
        return tf.cond(uses_mixup, by_mixup, by_cutmix)  # type: ignore[no-any-return]
    return by_mixup() if mixup_alpha else by_cutmix()
