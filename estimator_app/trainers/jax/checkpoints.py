"""Checkpoints of a run under JAX: MODEL_DIR/model.ckpt-STEP.npz, and the file `checkpoint`, which names the last one.

TrainState ──save()──▶ "global_step", "position", "weights/…", "fixed/…", "optimizer/…", "ema/…"
           ◀──restore()──

Each device has a copy of the state, so process 0 can write all of it as one file, which NumPy reads anywhere, and which
becomes visible in one moment, in a bucket too. Orbax writes a folder of many files, as a state needs whose parts
lie on different devices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from estimator_app.config import TrainConfig
from estimator_app.model_dir.array_files import SUFFIX, ArrayReader, write_arrays
from estimator_app.model_dir.checkpoints import NAME, check_fits, name_last, prune_checkpoints, step_of
from estimator_app.runtime import files
from estimator_app.trainers.jax.state import JaxRun
from estimator_app.trainers.jax.step import TrainState, Variables

Array = npt.NDArray[Any]
_PARTS = {"weights": "weights", "fixed": "fixed", "optimizer": "optimizer", "averages": "ema"}


def save(run: JaxRun, state: TrainState, step: int) -> None:
    """Writes the checkpoint of a step, and removes all but the newest MAX_TO_KEEP.

    With --eval=watch, train.py removes them, as a checkpoint must stay until it is evaluated.

    Raises:
      OSError: It cannot be written.
    """
    path = f"{run.model_dir}/{NAME}-{step}"
    position = np.array(json.dumps(_position(run.config)))
    write_arrays(
        path, {"global_step": np.array(step, np.int64), "position": position, **to_arrays(jax.device_get(state))}
    )
    name_last(run.model_dir, path)
    if run.config.eval != "watch":
        prune_checkpoints(run.model_dir, step, 1)


def _position(config: TrainConfig) -> dict[str, Any]:
    """Returns what decides, with the step, which examples come next."""
    return {
        "trainer": "jax",
        "dataset": config.fingerprint,
        "seed": config.input.seed,
        "train_batch_size": config.train_batch_size,
    }


def to_arrays(state: TrainState) -> dict[str, Array]:
    """Returns the arrays of a state by the names that they have in a checkpoint, without the step."""
    return {
        f"{prefix}/{name}": np.asarray(value)
        for part, prefix in _PARTS.items()
        for name, value in _leaves_by_path(getattr(state, part)).items()
    }


def _leaves_by_path(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by their path in it, such as 1/mean/head/kernel."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): value for path, value in leaves}


def restore(run: JaxRun, path: str) -> TrainState:
    """Returns the state in a checkpoint, in NumPy arrays.

    Raises:
      ValueError: It is of another trainer, network, dataset or batch size, or damaged.
    """
    like = run.initial()
    needed = {
        f"{prefix}/{name}": list(value.shape)
        for part, prefix in _PARTS.items()
        for name, value in _leaves_by_path(getattr(like, part)).items()
    }
    reader = _reader(run.config, path, needed)
    position = json.loads(str(reader.get_tensor("position")))
    if position != _position(run.config):
        raise ValueError(f"checkpoint {path!r} is of {position}, but this run is of {_position(run.config)}")
    parts = {}
    for part, prefix in _PARTS.items():
        tree = getattr(like, part)
        arrays = [reader.get_tensor(f"{prefix}/{name}") for name in _leaves_by_path(tree)]
        parts[part] = jax.tree.unflatten(jax.tree.structure(tree), arrays)
    return TrainState(step=np.asarray(step_of(path), np.int32), **parts)


def read_evaluated(config: TrainConfig, variables: Variables, path: str) -> tuple[dict[str, Array], int]:
    """Returns the variables of a checkpoint that are evaluated and exported, by name, and its step.

    They are the weights, or with --ema their averages.

    Raises:
      ValueError: It is of another trainer or network, or damaged.
    """
    prefix = dict.fromkeys(variables.weights, "weights") | dict.fromkeys(variables.fixed, "fixed")
    keys = {name: f"{'ema' if config.ema else part}/{name}" for name, part in prefix.items()}
    shapes = {
        keys[name]: list(variable.shape)
        for names, model_variables in (
            (variables.weights, variables.model.trainable_variables),
            (variables.fixed, variables.model.non_trainable_variables),
        )
        for name, variable in zip(names, model_variables, strict=True)
    }
    reader = _reader(config, path, shapes)
    return {name: reader.get_tensor(key) for name, key in keys.items()}, step_of(path)


def _reader(config: TrainConfig, path: str, needed: Mapping[str, list[int]]) -> ArrayReader:
    """Returns the reader of a checkpoint that has arrays of the names and shapes that are needed.

    Raises:
      ValueError: It has not; or it is of another trainer.
    """
    if not files.exists(f"{path}{SUFFIX}"):
        raise ValueError(
            f"checkpoint {path!r} is not one of --trainer=jax; start from its weights with --init_from, in another "
            "--model_dir"
        )
    check_fits(path, needed, config.network, len(config.classes))
    return ArrayReader(path)
