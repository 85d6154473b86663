"""The learning rate: known steps of ImageNet's run, and the same numbers as floats, arrays and tensors."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.schedule import RATE_PER_EXAMPLE, Schedule

# 90 epochs of 1,281,167 images in batches of 4,096, of which 5 warm up.
IMAGENET = Schedule.over(90 * 1_281_167 // 4096, RATE_PER_EXAMPLE * 4096)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 1.6 / 1563),  # the first step learns already
        (781, 0.8),
        (1562, 1.6),  # the last of warm-up
        (1563, 1.6),
        (1563 + (28150 - 1563) // 2, 0.8),  # half-way down
        (28149, 0.0),
        (28150, 0.0),
        (10**6, 0.0),  # past the end
    ],
)
def test_it_climbs_to_the_peak_and_falls_to_nothing(step, rate):
    assert (IMAGENET.train_steps, IMAGENET.warmup_steps) == (28150, 1563)
    assert IMAGENET.learning_rate(step) == pytest.approx(rate, abs=1e-3 if step == 781 else 1e-4)


@pytest.mark.parametrize("train_steps", [1, 2, 17, 18, 600])
def test_every_step_of_a_short_run_learns_something_and_none_more_than_the_peak(train_steps):
    rates = Schedule.over(train_steps, 0.1).learning_rate(np.arange(train_steps))
    assert rates.min() > 0
    assert rates.max() <= 0.1


def test_tensors_give_what_numbers_give():
    steps = np.arange(0, 28200, 50, dtype=np.float32)
    found = IMAGENET.learning_rate(tf.constant(steps), xp=tf).numpy()
    np.testing.assert_allclose(found, IMAGENET.learning_rate(steps.astype(float)), atol=1e-6)


@pytest.mark.parametrize(("peak", "warmup_steps"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (0.1, 10), (0.1, -1)])
def test_impossible_schedules_are_refused(peak, warmup_steps):
    with pytest.raises(ValueError, match="must be"):
        Schedule(peak, 10, warmup_steps)
