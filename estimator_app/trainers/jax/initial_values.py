"""Random initial values of a network, drawn by one compiled program for many shapes.

    initializers of Keras ──jax.random.uniform(), …──▶ values of a few lengths ──first ones, reshaped──▶ initial values

JAX compiles a program for each shape of an array that it draws, which takes longer than all else that a small network
needs before its first step. The threefry generator of JAX numbers the values of an array and computes each from the key
and its number alone, so that a longer array begins with the same values, bit for bit:
https://docs.jax.dev/en/latest/jax.random.html#advanced-rng-configuration (jax_threefry_partitionable).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Lengths that are drawn. The shortest takes a millisecond, the longest 0.1 s; few networks have larger layers.
_LENGTHS = (2**18, 2**20, 2**22)
_FUNCTIONS = ("normal", "truncated_normal", "uniform")  # which Keras' initializers use


@contextlib.contextmanager
def programs_of_few_shapes() -> Iterator[None]:
    """Lets functions of jax.random compile a program for each of a few lengths instead of for each shape.

    What they return is the same bit for bit, also for other threads.
    """
    if not jax.config.jax_threefry_partitionable or jax.config.jax_default_prng_impl != "threefry2x32":
        yield  # other generators' values depend on the whole shape
        return
    functions = {name: getattr(jax.random, name) for name in _FUNCTIONS}
    for name, function in functions.items():
        setattr(jax.random, name, _drawn_longer(function))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(jax.random, name, function)


def _drawn_longer(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of jax.random that draws an array of a length in _LENGTHS and takes its first values."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def draw(*args: Any, **options: Any) -> Any:
        arguments = signature.bind(*args, **options).arguments
        shape = arguments.get("shape")
        if not isinstance(shape, Sequence) or not _is_plain(arguments):
            return function(*args, **options)
        size = math.prod(shape)
        length = next((length for length in _LENGTHS if size <= length), None)
        if length is None:
            return function(*args, **options)
        values = np.asarray(function(**arguments | {"shape": (length,)}))
        return jnp.asarray(values[:size].reshape(tuple(shape)))

    return draw


def _is_plain(arguments: Mapping[str, Any]) -> bool:
    """Returns whether arguments are values, the key one of the default generator, and all limits are scalars."""
    if arguments.get("out_sharding") is not None or any(isinstance(one, jax.core.Tracer) for one in arguments.values()):
        return False
    has_scalars = not any(np.ndim(arguments.get(name, 0)) for name in ("minval", "maxval", "lower", "upper"))
    return has_scalars and not jax.dtypes.issubdtype(arguments["key"].dtype, jax.dtypes.prng_key)
