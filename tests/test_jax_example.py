"""examples/jax_train.py trains as estimator_app does, on any number of devices and processes; needs JAX."""

from __future__ import annotations

import argparse
import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from estimator_app.trainers.checks import make_weighted_model
from estimator_app.trainers.registry import find_trainer
from support import jax_example
from support.app_fixtures import configured, keras_warns, step_losses
from tpu_input import InputConfig, as_numpy, make_eval_input_fn, make_train_input_fn

pytestmark = [
    keras_warns,
    pytest.mark.skipif(importlib.util.find_spec("flax") is None, reason="needs JAX, which is beside the newest TensorFlow"),
]
STEPS = 20
FLAGS = (f"--train_steps={STEPS}", "--steps_per_eval=5")


@functools.cache
def example() -> Any:
    """Returns the example as a module."""
    spec = importlib.util.spec_from_file_location("jax_train", jax_example.ROOT / "examples" / "jax_train.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"bfloat16": False, "seed": 0, "learning_rate": 0.05, "train_steps": STEPS} | more)


def keras_config(manifest, **more):
    """The same run by estimator_app: its network, optimizer, schedule, seed and batches."""
    names = {"network": "cnn", "trainer": "tf_distribute", "train_steps": STEPS, "crop_area": (0.08, 1.0)}
    return configured(manifest, **names | {"optimizer": "momentum", "weight_decay": 1e-4} | more)


def write_keras_weights(manifest, model_dir: Path) -> None:
    """Writes the example's checkpoint of step 0, with the initial weights of estimator_app."""
    import orbax.checkpoint as ocp
    from flax import nnx

    model, optimizer = example().create_train_state(options(), len(manifest.classes))
    values = iter(np.asarray(weight) for weight in make_weighted_model(keras_config(manifest)).trainable_weights)
    for layer in model.layers:
        for name in {nnx.Conv: ["kernel"], nnx.BatchNorm: ["scale", "bias"], nnx.Linear: ["kernel", "bias"]}.get(
            type(layer), []
        ):
            weight, value = getattr(layer, name), next(values)
            assert weight[...].shape == value.shape
            weight[...] = value
    assert not list(values)
    position = {"dataset": manifest.fingerprint, "batch_size": 16, "seed": 0, "step": 0}
    kept = {"state": ocp.args.StandardSave(nnx.state((model, optimizer))), "position": ocp.args.JsonSave(position)}
    with ocp.CheckpointManager(model_dir) as checkpoints:
        checkpoints.save(0, args=ocp.args.Composite(**kept))


@pytest.fixture(scope="module")
def straight(digits_dataset, tmp_path_factory):
    """The model_dir of a run on 8 devices of one process that begins with Keras' weights, and what it printed."""
    model_dir = tmp_path_factory.mktemp("jax")
    write_keras_weights(digits_dataset, model_dir)
    return model_dir, jax_example.printed(digits_dataset.path, model_dir, *FLAGS)


def test_the_first_twenty_losses_are_those_of_estimator_app(straight, digits_dataset, tmp_path, monkeypatch):
    told = step_losses(monkeypatch)
    config = keras_config(digits_dataset)
    ...
