"""Checkpoints: which is the last, whether one is whole, when they are written, and whether one fits what would load it.

    MODEL_DIR/checkpoint                            names the last one: latest_checkpoint()
    MODEL_DIR/model.ckpt-STEP.index, .data-…        one checkpoint: damage(), newest_whole()

Both loops name theirs model.ckpt-STEP. Estimator's hold variables by their names in its graph, those of tf.distribute
by their place among a trainer's objects. A model_dir may come from a stranger: TensorFlow would load, and in time
remove, whatever the file `checkpoint` names, so that all of it is checked before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from estimator_app.runtime import files

v1 = tf.compat.v1
SessionRunHook: Any = v1.train.SessionRunHook


NAME = "model.ckpt"
STATE_NAME = "checkpoint"
OF_OBJECT = "/.ATTRIBUTES/VARIABLE_VALUE"  # what tf.train.Checkpoint puts behind a variable's place
_FILE = re.compile(re.escape(NAME) + r"-([0-9]{1,18})\.(index|meta|data-[0-9]{5}-of-[0-9]{5})")
# Lines of a CheckpointState (tensorflow/python/training/checkpoint_state.proto) as TensorFlow prints it.
_NAMES = re.compile(r'(model_checkpoint_path|all_model_checkpoint_paths): "([^"\\]*)"')
_TIMES = re.compile(r"(all_model_checkpoint_timestamps|last_preserved_timestamp): [-+.0-9e]+")
# What TensorFlow raises when it reads a damaged checkpoint: Python's own errors come out of its C++ code.
_UNREADABLE = (tf.errors.OpError, IndexError, KeyError, ValueError, RuntimeError, MemoryError, OverflowError)


class DamagedCheckpoint(ValueError):
    """A checkpoint, or the file that names the last one, cannot be read; another checkpoint may be whole."""


def latest_checkpoint(model_dir: str) -> str | None:
    """Returns the path of the last checkpoint, without the endings of its files; None when there is none yet.

    Raises:
      DamagedCheckpoint: The file `checkpoint` cannot be read, or the index that it names is missing.
      ValueError: It names something else than a checkpoint of this folder, or there are checkpoints without it.
    """
    named = _named(model_dir)
    if named is None:
        trained = [step for step in steps(model_dir) if step]  # one of step 0 alone is what a kill at the start leaves
        if trained:
            listed = ", ".join(map(str, steps(model_dir)))
            raise ValueError(
                f"{model_dir!r} holds checkpoints of steps {listed}, but no file {STATE_NAME!r}, which says which "
                f"of them is the last; to go on from step {trained[-1]}, write this line into "
                f'{model_dir}/{STATE_NAME}: model_checkpoint_path: "{NAME}-{trained[-1]}"; to begin anew, give another '
                "--model_dir"
            )
        return None
    path = f"{model_dir}/{named}"
    if not tf.io.gfile.exists(f"{path}.index"):
        raise DamagedCheckpoint(f"{path + '.index'!r}, which the last checkpoint needs, is missing")
    return path


def latest_step(model_dir: str) -> int:
    """Returns the global step of the last checkpoint; 0 when there is none.

    Raises:
      ValueError: See latest_checkpoint(), or the checkpoint is damaged.
    """
    path = latest_checkpoint(model_dir)
    return step_of(path) if path else 0


def has_checkpoint(model_dir: str) -> bool:
    """Returns whether a run has begun in a folder, be its checkpoints whole or not."""
    return tf.io.gfile.exists(f"{model_dir}/{STATE_NAME}") or any(steps(model_dir))


def steps(model_dir: str) -> list[int]:
    """Returns the steps of which a folder holds files of checkpoints, ascending."""
    return sorted({int(found[1]) for name in files.names(model_dir) if (found := _FILE.fullmatch(name))})


def step_of(path: str) -> int:
    """Returns the global step of a checkpoint of either loop.

    Raises:
      DamagedCheckpoint: It cannot be read.
    """
    name = "global_step"
    try:
        reader = tf.train.load_checkpoint(path)
        return int(reader.get_tensor(name if reader.has_tensor(name) else name + OF_OBJECT))
    except _UNREADABLE as error:
        raise DamagedCheckpoint(_said(path, error)) from error


def damage(path: str) -> str:
    """Returns what is wrong with a checkpoint, "" when it is whole.

    All of it is read once, with which TensorFlow compares the checksum that it has written for each tensor
    (tensorflow/core/util/tensor_bundle/tensor_bundle.cc: BundleReader::GetValue), and those of the index's blocks.
    """
    if not tf.io.gfile.exists(f"{path}.index"):
        return f"{path + '.index'!r} is missing"
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except _UNREADABLE as error:
        return _said(path, error)
    return ""


def newest_whole(model_dir: str) -> tuple[str | None, str]:
    """Returns the path of the checkpoint to go on from, and what is wrong with the last one if it is another.

    Returns:
      (None, "") when there is none yet; (path, "") when the last one is whole.

    Raises:
      ValueError: None of them is whole, or see latest_checkpoint().
    """
    last = None
    try:
        last = latest_checkpoint(model_dir)
        wrong = damage(last) if last else ""
    except DamagedCheckpoint as error:
        wrong = str(error)
    if not wrong:
        return last, ""
    path = next(iter(whole(model_dir, besides=last)), None)
    if path is None:
        raise ValueError(
            f"{wrong}, and {model_dir!r} holds no other checkpoint that is whole; give another --model_dir"
        )
    return path, wrong


def whole(model_dir: str, besides: str | None = None) -> list[str]:
    """Returns the paths of a folder's whole checkpoints, the newest first; all of them are read."""
    paths = [f"{model_dir}/{NAME}-{step}" for step in reversed(steps(model_dir))]
    return [path for path in paths if path != besides and not damage(path)]


def check_unshared(model_dir: str, step: int) -> None:
    """Checks that no file of a checkpoint which training will write is there already under another name too.

    TensorFlow writes an index into the file that it finds (tensor_bundle.cc: MergeBundles): one that has a second name,
    a hard link, would change there as well.

    Args:
      model_dir: Folder or URI.
      step: Of the checkpoint that training goes on from; -1 when there is none.

    Raises:
      ValueError: A file of a later step has.
    """
    for name in files.names(model_dir) if "://" not in model_dir else ():
        path, found = f"{model_dir}/{name}", _FILE.fullmatch(name)
        if found and int(found[1]) > step and os.lstat(path).st_nlink > 1:
            raise ValueError(
                f"{path!r} has another name too (a hard link), and training from step {max(0, step)} on would write "
                "over both; remove it"
            )


def name_last(model_dir: str, path: str) -> None:
    """Writes the file `checkpoint`: `path`, of this folder, is the last one."""
    last = step_of(path)
    lines = [f'model_checkpoint_path: "{NAME}-{last}"']
    lines += [f'all_model_checkpoint_paths: "{NAME}-{step}"' for step in steps(model_dir) if step <= last]
    files.write(f"{model_dir}/{STATE_NAME}", "".join(f"{line}\n" for line in lines))


def _named(model_dir: str) -> str | None:
    """Returns what the file `checkpoint` names as the last, "model.ckpt-STEP"; None when there is no such file."""
    path = f"{model_dir}/{STATE_NAME}"
    if not tf.io.gfile.exists(path):
        return None
    try:
        lines = files.read_text(path).splitlines()
    except UnicodeDecodeError:
        lines = [""]
    if not lines or not all(_NAMES.fullmatch(line) or _TIMES.fullmatch(line) for line in lines):
        raise DamagedCheckpoint(f"{path!r} is damaged: it does not say which checkpoint is the last")
    # Some of TensorFlow's savers write whole paths.
    found = [match for match in map(_NAMES.fullmatch, lines) if match]
    named = [(match[1], match[2].removeprefix(f"{model_dir}/")) for match in found]
    for _, name in named:
        if not re.fullmatch(re.escape(NAME) + "-[0-9]{1,18}", name):
            raise ValueError(
                f"{path!r} names {name!r}, which is no checkpoint of its own folder; train never writes such a file: "
                f"if you trust the folder, replace {name!r} by a name as in {NAME}-5000, else give another --model_dir"
            )
    last = [name for key, name in named if key == "model_checkpoint_path"]
    if len(last) != 1:
        raise DamagedCheckpoint(f"{path!r} is damaged: it names {len(last)} checkpoints as the last")
    return last[0]


def _said(path: str, error: Exception) -> str:
    """Returns a line that names the files of a checkpoint which cannot be read, and why."""
    folder, _, name = path.rpartition("/")
    data = [f"{folder}/{other}" for other in files.names(folder) if other.startswith(f"{name}.data-")]
    reason = (str(error).splitlines() or [repr(error)])[0]
    which = ", ".join(map(repr, data)) if data else f"{path + '.data-…'!r}, which is missing,"
    try:
        tf.train.load_checkpoint(path)
    except _UNREADABLE:
        which = repr(f"{path}.index")
    return f"{which} of a checkpoint cannot be read ({reason})"


def misfit(path: str, needed: Mapping[str, list[int]]) -> str:
    """Returns the first thing in which a checkpoint differs from the shapes `needed` by name, "" when nothing does."""
    try:
        found = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    except _UNREADABLE as error:
        raise DamagedCheckpoint(_said(path, error)) from error
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
