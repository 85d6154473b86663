"""Seeds of random numbers: one for each quantity that is drawn, so that all of them are independent.

Stateless random ops return the same numbers for the same seed: two ops that share a seed draw the same values.
"""

from __future__ import annotations

import tensorflow as tf

from tpu_input.without_tensorflow.random_numbers import purpose_number


def seed_for(seed: tf.Tensor, purpose: str) -> tf.Tensor:
    """Returns a seed for one purpose, [2] int64; different for each name, and for each seed.

    Derived as JAX does it (jax.random.fold_in), by a hash of the name, so that no list of numbers has to be maintained.

    Args:
      seed: [2] integers, e.g. of an example.
      purpose: Name of the quantity that is drawn from the seed, e.g. "flip".
    """
    return tf.random.experimental.stateless_fold_in(
        tf.cast(seed, tf.int64), tf.constant(purpose_number(purpose), tf.int64)
    )
