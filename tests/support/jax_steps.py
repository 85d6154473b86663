"""Steps in JAX for preflight; imported by the Python of the TPU's compiler, which has neither TensorFlow nor pytest."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ROOT = Path(__file__).parents[2]


def example(devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The step of examples/jax_train.py for ten classes, and 32 images per device."""
    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
    import jax_train
    from flax import nnx

    import tpu_input

    config = tpu_input.InputConfig(image_size=32, layout="HWCN")
    everywhere, divided = jax_train.make_shardings(devices, config.layout)
    options = argparse.Namespace(bfloat16=True, seed=0, learning_rate=0.1, train_steps=1000)
    dataset = argparse.Namespace(classes=("0",) * 10)
    definition, state = nnx.split(nnx.eval_shape(lambda: jax_train.create_train_state(options, dataset)))
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), state)
    size = 32 * len(devices)
    kinds = (((32, 32, 3, size), "uint8"), ((size,), "int32"), ((size,), "float32"))
    batch = tuple(jax.ShapeDtypeStruct(*kind, sharding=on) for kind, on in zip(kinds, divided, strict=True))
    return functools.partial(jax_train.train_step, definition, config), (state, batch)


def _product(devices: Sequence[Any], rows: int, spec: PartitionSpec) -> tuple[Any, tuple[Any, ...]]:
    sharding = NamedSharding(Mesh(devices, ("data",)), spec)
    return lambda x: jnp.sum(x @ x.T), (jax.ShapeDtypeStruct((rows, 256), "float32", sharding=sharding),)


def alone(devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Each device computes all of it."""
    return _product(devices, 1024, PartitionSpec())


def large(devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """An argument of 64 GiB on each device."""
    return _product(devices, 2**26, PartitionSpec())


def unplaced(devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    return jnp.sum, (jax.ShapeDtypeStruct((8,), "float32"),)


def failing(devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    step, (x,) = alone(devices)

    def fails(x: Any) -> Any:
        return jnp.reshape(step(x), (2, 3))

    return fails, (x,)
