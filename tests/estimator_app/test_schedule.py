"""The learning rate of every step: NumPy's writing of the published rules, and each recipe's own numbers."""

from __future__ import annotations

import dataclasses
from typing import get_args

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.model.schedule import RECIPES, Decay, Schedule
from support.app_fixtures import configured


def published(peak, warmup_steps, decay_steps, decay, steps):
    """Returns the rates of integer steps: a line up to the peak at warmup_steps, then the fall, in NumPy."""
    after = np.clip(steps, warmup_steps, decay_steps).astype(float)
    share = (decay_steps - after) / (decay_steps - warmup_steps)
    fall = {
        "cosine": np.cos(np.pi / 2 * (1 - share)) ** 2,  # Loshchilov & Hutter 2017, equation 5: the half-angle's square
        "polynomial": np.polyval([1, 0, 0], share),  # tf.train.polynomial_decay of power 2, which You et al. 2017 use
        "steps": 0.1 ** np.digitize(steps, np.round(decay_steps * np.array([30, 60, 80]) / 90)),  # Goyal et al. 2017
    }[decay]
    climbing = np.interp(steps, [0, warmup_steps], [peak / (warmup_steps + 1), peak])
    return np.where(steps < warmup_steps, climbing, peak) * fall


@pytest.mark.parametrize("decay", get_args(Decay))
@pytest.mark.parametrize(
    ("peak", "warmup_steps", "decay_steps"),
    [(1.6, 1563, 28150), (25.0, 1955, 35190), (0.1, 0, 600), (0.1, 1, 2), (0.1, 16, 17)],
)
def test_rates_are_those_of_the_published_rules(decay, peak, warmup_steps, decay_steps):
    steps = np.unique([*range(20), *np.linspace(0, 1.2 * decay_steps, 200).astype(int), warmup_steps, decay_steps])
    expected = published(peak, warmup_steps, decay_steps, decay, steps)
    schedule = Schedule(peak, warmup_steps, decay_steps, decay)
    np.testing.assert_allclose(schedule.learning_rate(steps.astype(float)), expected, atol=1e-9 * peak)
    rates = schedule.learning_rate(tf.constant(steps, tf.float32), xp=tf).numpy()
    np.testing.assert_allclose(rates, expected, atol=1e-5 * peak)


@pytest.mark.parametrize("decay", get_args(Decay))
@pytest.mark.parametrize("warmup_steps", [0, 1, 5, 16])
def test_the_peak_is_at_warmup_steps_and_every_step_learns_something(decay, warmup_steps):
    rates = Schedule(0.1, warmup_steps, 100, decay).learning_rate(np.arange(100.0))
    assert rates.argmax() == warmup_steps
    assert rates[warmup_steps] == 0.1
    assert rates.min() > 0


# Batch -> peak, and epochs of warm-up of 90: tensorflow/tpu, models/official/resnet/lars_util.py; Goyal et al. 2017.
@pytest.mark.parametrize(
    ("optimizer", "batch_size", "peak", "warmup_epochs", "decay"),
    [
        ("lars", 4096, 25.0, 5, "polynomial"),
        ("lars", 16384, 25.0, 5, "polynomial"),
        ("lars", 32768, 34.0, 12, "polynomial"),
        ("lars", 65536, 41.0, 16, "polynomial"),
        ("momentum", 8192, 3.2, 5, "cosine"),
        ("adamw", 1024, 0.001, 5, "cosine"),
    ],
)
def test_an_optimizer_begins_with_the_numbers_of_its_recipe(
    digits_dataset, optimizer, batch_size, peak, warmup_epochs, decay
):
    config = configured(
        digits_dataset, optimizer=optimizer, learning_rate=None, train_batch_size=batch_size, train_steps=9000
    )
    assert config.learning_rate == pytest.approx(peak)
    assert (config.warmup_steps, config.decay_steps, config.decay) == (100 * warmup_epochs, 9000, decay)
    assert config.weight_decay == {"lars": 1e-4, "momentum": 1e-4, "adamw": 0.05}[optimizer]


@pytest.mark.parametrize(
    ("optimizer", "batch_size", "peak", "warmup_epochs"),
    [
        ("lars", 1, 25.0, 5),
        ("lars", 16384, 25.0, 5),
        ("lars", 16385, 34.0, 12),
        ("lars", 32768, 34.0, 12),
        ("lars", 32769, 41.0, 16),
        ("momentum", 256, 0.1, 5),
        ("momentum", 8192, 3.2, 5),
        ("adamw", 512, 0.0005, 5),
        ("adamw", 1024, 0.001, 5),
    ],
)
def test_a_recipe_follows_the_batch_size(optimizer, batch_size, peak, warmup_epochs):
    recipe = RECIPES[optimizer]
    assert recipe.rate(batch_size) == pytest.approx(peak)
    assert 90 * recipe.warmup_share(batch_size) == pytest.approx(warmup_epochs)
    assert recipe.weight_decay == {"lars": 1e-4, "momentum": 1e-4, "adamw": 0.05}[optimizer]


def test_the_rate_falls_to_a_tenth_after_30_60_and_80_of_90_epochs():
    rates = Schedule(1.0, 0, 9000, "steps").learning_rate(np.arange(9100.0))
    np.testing.assert_allclose(rates, np.repeat([1, 0.1, 0.01, 0.001], [3000, 3000, 2000, 1100]))


@pytest.mark.parametrize(
    ("peak", "warmup_steps", "decay_steps", "message"),
    [
        (0.0, 1, 10, "learning_rate must be positive and finite, got 0.0"),
        (-1.0, 1, 10, "learning_rate must be positive and finite, got -1.0"),
        (float("nan"), 1, 10, "learning_rate must be positive and finite, got nan"),
        (float("inf"), 1, 10, "learning_rate must be positive and finite, got inf"),
        (0.1, 10, 10, r"warmup_steps must be in \[0, decay_steps=10\), got 10"),
        (0.1, 11, 10, r"warmup_steps must be in \[0, decay_steps=10\), got 11"),
        (0.1, -1, 10, r"warmup_steps must be in \[0, decay_steps=10\), got -1"),
        (0.1, 0, 0, "decay_steps must be at least 1, got 0"),
        (0.1, 0, -1, "decay_steps must be at least 1, got -1"),
    ],
)
def test_impossible_schedules_are_refused(peak, warmup_steps, decay_steps, message):
    with pytest.raises(ValueError, match=message):
        Schedule(peak, warmup_steps, decay_steps)


def test_a_schedule_may_be_one_step_long():
    assert Schedule(0.5, 0, 1).learning_rate(0.0) == 0.5


def test_the_schedule_of_a_run_and_a_recipe_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Schedule(0.1, 0, 10).peak = 0.2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPES["lars"].weight_decay = 0.0  # type: ignore[misc]
