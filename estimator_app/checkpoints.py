"""Checkpoints: when they are written besides each minute, and whether one fits what would load it.

Both loops name theirs model.ckpt-STEP. Estimator's hold variables by their names in its graph, those of tf.distribute
by their place among a trainer's objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
SessionRunHook: Any = v1.train.SessionRunHook


NAME = "model.ckpt"
OF_OBJECT = "/.ATTRIBUTES/VARIABLE_VALUE"  # what tf.train.Checkpoint puts behind a variable's place


def latest_step(model_dir: str) -> int:
    """Returns the global step of the last checkpoint; 0 when there is none."""
    path = tf.train.latest_checkpoint(model_dir)
    return step_of(path) if path else 0


def step_of(path: str) -> int:
    """Returns the global step of a checkpoint of either loop."""
    reader = tf.train.load_checkpoint(path)
    name = "global_step"
    return int(reader.get_tensor(name if reader.has_tensor(name) else name + OF_OBJECT))


def misfit(path: str, needed: Mapping[str, list[int]]) -> str:
    """Returns the first thing in which a checkpoint differs from the shapes `needed` by name, "" when nothing does."""
    found = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    for name in sorted(needed):
        if found.get(name) != needed[name]:
            return f"has {name} as {found[name]}, not {needed[name]}" if name in found else f"has no {name}"
    return ""


def check_fits(path: str, needed: Mapping[str, list[int]], network: str, num_classes: int) -> None:
    """Compares a checkpoint with the variables that will be loaded from it, by name.

    Raises:
      ValueError: It is of another network or another number of classes.
    """
    has = misfit(path, needed)
    if has:
        raise ValueError(
            f"checkpoint {path!r} {has}: it is not of network {network!r} for {num_classes} classes but of another "
            "network or of other classes; give another --model_dir"
        )


class SaveEvery(SessionRunHook):  # type: ignore[misc]
    """Saves a checkpoint at each multiple of `steps`, beside Estimator's hook, which goes by the minute and the end."""

    def __init__(self, model_dir: str, steps: int) -> None:
        self._path, self._steps = f"{model_dir}/{NAME}", steps

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._last = int(session.run(self._global_step))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = int(run_context.session.run(self._global_step))
        if step // self._steps > self._last // self._steps:
            (saver,) = v1.get_collection(v1.GraphKeys.SAVERS)  # Estimator's own, which also counts what to keep
            saver.save(run_context.session, self._path, step)
        self._last = step


class CheckFits(SessionRunHook):  # type: ignore[misc]
    """Compares a checkpoint with the graph that loads it, before TensorFlow fails at a difference in its own words.

    Raises:
      ValueError: From the session: the checkpoint is of another network or another number of classes.
    """

    def __init__(self, path: str | None, network: str, num_classes: int) -> None:
        self._path, self._network, self._num_classes = path, network, num_classes

    def begin(self) -> None:
        needed = {variable.op.name: variable.shape.as_list() for variable in v1.global_variables()}
        if self._path:
            check_fits(self._path, needed, self._network, self._num_classes)
