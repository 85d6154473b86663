"""Initial values under JAX: the same bit for bit as JAX draws them, with one compiled program for many shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from support.app_fixtures import OPTIONS, configured
from support.trainers import needs_jax

pytestmark = needs_jax
SHAPES = ((), (1,), (7,), (3, 3, 3, 32), (3, 3, 128, 256), (1001, 333), (2049, 2049))


def draws(key: Any) -> dict[str, Any]:
    import jax

    return {
        "normal": lambda shape: jax.random.normal(key, shape=shape, dtype="float32"),
        "uniform": lambda shape: jax.random.uniform(key, shape=shape, dtype="float32", minval=-0.3, maxval=0.3),
        "truncated_normal": lambda shape: jax.random.truncated_normal(key, -2.0, 2.0, shape, "float32"),
        "bfloat16": lambda shape: jax.random.normal(key, shape, "bfloat16"),
    }


@pytest.mark.parametrize("name", ["normal", "uniform", "truncated_normal", "bfloat16"])
def test_values_are_those_that_jax_draws_for_the_shape(name):
    import jax.numpy as jnp

    from estimator_app.trainers.jax.initial_values import programs_of_few_shapes

    draw = draws(jnp.array([5, 7], jnp.uint32))[name]
    for shape in SHAPES:
        expected = draw(shape)
        with programs_of_few_shapes():
            values = draw(shape)
        assert (values.shape, values.dtype) == (shape, expected.dtype)
        np.testing.assert_array_equal(np.asarray(values), np.asarray(expected), err_msg=f"{name} {shape}")


def test_other_keys_limits_and_traced_calls_are_as_without_it():
    import jax
    import jax.numpy as jnp

    from estimator_app.trainers.jax.initial_values import programs_of_few_shapes

    def values() -> list[Any]:
        raw = jnp.array([5, 7], jnp.uint32)
        limits = jnp.arange(3.0)
        return [
            jax.random.normal(jax.random.key(3), (4, 5)),
            jax.random.uniform(jax.random.key(3, impl="rbg"), (4, 5)),
            jax.random.uniform(raw, (2, 3), minval=-limits, maxval=limits + 1),
            jax.random.truncated_normal(raw, -limits - 1, limits),
            jax.jit(lambda key: jax.random.normal(key, (4, 5)))(raw),
            jax.random.normal(raw),
        ]

    expected, functions = values(), (jax.random.normal, jax.random.uniform, jax.random.truncated_normal)
    with programs_of_few_shapes():
        actual = values()
    for value, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(value), np.asarray(other))
    assert functions == (jax.random.normal, jax.random.uniform, jax.random.truncated_normal)


@pytest.mark.parametrize("network", ["cnn", "resnet18", "vit_s16"])
def test_a_network_begins_with_the_weights_that_keras_gives_it(digits_dataset, network):
    from estimator_app.trainers.checks import make_weighted_model
    from estimator_app.trainers.jax.state import make_variables

    config = configured(digits_dataset, **OPTIONS | {"network": network, "image_size": 32, "trainer": "jax"})
    expected = make_weighted_model(config).variables
    values = make_variables(config).model.variables
    assert len(expected) == len(values)
    for variable, other in zip(values, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(variable), np.asarray(other), err_msg=other.path)
    assert sum(math.prod(variable.shape) for variable in expected) > 10_000


def test_a_network_compiles_a_program_for_few_shapes(digits_dataset, monkeypatch):
    import jax

    from estimator_app.trainers.jax.state import make_variables

    shapes: set[Any] = set()
    draw = jax.random.truncated_normal

    def counted(key: Any, lower: float, upper: float, shape: Any, dtype: Any) -> Any:
        shapes.add(tuple(shape))
        return draw(key, lower, upper, shape, dtype)

    monkeypatch.setattr(jax.random, "truncated_normal", counted)
    make_variables(configured(digits_dataset, **OPTIONS | {"network": "resnet18", "trainer": "jax"}))
    assert 1 <= len(shapes) <= 3


def test_the_optimizer_begins_as_optax_makes_it(digits_dataset, tmp_path):
    import jax

    from estimator_app.trainers.jax.optimizer import make_optimizer
    from estimator_app.trainers.jax.state import make_run

    for optimizer in ("momentum", "lars", "adamw"):
        config = configured(digits_dataset, **OPTIONS | {"optimizer": optimizer, "trainer": "jax"})
        state = make_run(config, str(tmp_path)).initial()
        expected = make_optimizer(config).init(state.weights)
        assert jax.tree.structure(expected) == jax.tree.structure(state.optimizer)
        for value, other in zip(jax.tree.leaves(state.optimizer), jax.tree.leaves(expected), strict=True):
            assert value.dtype == other.dtype
            np.testing.assert_array_equal(value, np.asarray(other))
