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
_PARTS = ("weights", "fixed", "optimizer", "ema")  # of a TrainState after its step, in their order


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
    """Returns the arrays of a state by their names in a checkpoint, such as optimizer/1/mean/head/kernel."""
    return {
        f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}": np.asarray(value)
        for prefix, part in zip(_PARTS, state[1:], strict=True)
        for path, value in jax.tree.leaves_with_path(part)
    }


def restore(run: JaxRun, path: str) -> TrainState:
    """Returns the state in a checkpoint, in NumPy arrays.

    Raises:
      ValueError: It is of another trainer, network, dataset or batch size, or damaged.
    """
    like = run.initial()
    shapes = {name: list(array.shape) for name, array in to_arrays(like).items()}
    reader = _reader(run.config, path, shapes)
    position = json.loads(str(reader.get_tensor("position")))
    if position != _position(run.config):
        raise ValueError(f"checkpoint {path!r} is of {position}, but this run is of {_position(run.config)}")
    arrays = [reader.get_tensor(name) for name in shapes]
    return TrainState(np.asarray(step_of(path), np.int32), *jax.tree.unflatten(jax.tree.structure(like[1:]), arrays))


def read_evaluated(config: TrainConfig, variables: Variables, path: str) -> tuple[dict[str, Array], int]:
    """Returns the variables of a checkpoint that are evaluated and exported, by name, and its step.

    They are the weights, or with --ema their averages.

    Raises:
      ValueError: It is of another trainer or network, or damaged.
    """
    model, keys, shapes = variables.model, {}, {}
    for part, names, model_variables in (
        ("weights", variables.weights, model.trainable_variables),
        ("fixed", variables.fixed, model.non_trainable_variables),
    ):
        for name, variable in zip(names, model_variables, strict=True):
            keys[name] = f"{'ema' if config.ema else part}/{name}"
            shapes[keys[name]] = list(variable.shape)
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
