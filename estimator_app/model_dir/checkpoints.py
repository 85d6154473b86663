"""Checkpoints of a model_dir: finding the latest, detecting damaged ones, saving, comparing with the model.

    MODEL_DIR/checkpoint                            names the latest one: latest_checkpoint()
    MODEL_DIR/model.ckpt-STEP.index, .data-…        one checkpoint: damage(), newest_whole()

Both trainers name their checkpoints model.ckpt-STEP. Estimator's checkpoints store variables by their names in the
graph, and tf.distribute's by their path in the trainer's object graph. A model_dir may come from an untrusted source:
 TensorFlow would load, and later delete, whatever the file `checkpoint` names, so the file is validated first.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from estimator_app.model_dir.array_files import SUFFIX, ArrayReader
from estimator_app.runtime import files
from tpu_input.command_line.wording import first_line

NAME = "model.ckpt"
STATE_NAME = "checkpoint"
MAX_TO_KEEP = 5  # number of checkpoints to keep, the same as Estimator's default
VARIABLE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"  # suffix that tf.train.Checkpoint appends to a variable's path
_FILE = re.compile(re.escape(NAME) + r"-([0-9]{1,18})\.(npz|index|meta|data-[0-9]{5}-of-[0-9]{5})")
_LAST_FILES = ("index", "npz")  # endings of the files that are written last
# Lines of a CheckpointState (tensorflow/python/training/checkpoint_state.proto) as TensorFlow prints it.
_NAMES = re.compile(r'(model_checkpoint_path|all_model_checkpoint_paths): "([^"\\]*)"')
_TIMES = re.compile(r"(all_model_checkpoint_timestamps|last_preserved_timestamp): [-+.0-9e]+")


class DamagedCheckpoint(ValueError):
    """Error of a checkpoint, or of the file that names the latest one, that cannot be read; others may be intact."""


def unreadable_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that reading a damaged checkpoint raises, TensorFlow's own if it is imported.

    TensorFlow's C++ code also raises built-in Python exceptions.
    """
    tensorflow = sys.modules.get("tensorflow")
    errors = (IndexError, KeyError, ValueError, RuntimeError, MemoryError, OverflowError)
    return (*errors, tensorflow.errors.OpError) if tensorflow else errors


def open_checkpoint(path: str) -> Any:
    """Returns the reader of a checkpoint: NumPy's arrays, or TensorFlow's."""
    if files.exists(f"{path}{SUFFIX}"):
        return ArrayReader(path)
    import tensorflow as tf

    return tf.train.load_checkpoint(path)


def main_file(path: str) -> str:
    """Returns the path of the file that makes a checkpoint complete, also if it is missing."""
    return f"{path}{SUFFIX}" if files.exists(f"{path}{SUFFIX}") else f"{path}.index"


def latest_checkpoint(model_dir: str) -> str | None:
    """Returns the path of the latest checkpoint, without file extensions; None when there is none yet.

    Raises:
      DamagedCheckpoint: The file `checkpoint` cannot be read, or the index that it names is missing.
      ValueError: It names something else than a checkpoint of this folder, or there are checkpoints of later steps than
        0 but no file `checkpoint`.
    """
    name = _latest_name(model_dir)
    if name is None:
        trained = [step for step in steps(model_dir) if step]  # a run killed at its start leaves step 0 only
        if trained:
            listed = ", ".join(map(str, steps(model_dir)))
            raise ValueError(
                f"{model_dir!r} has checkpoints of steps {listed}, but not the file {STATE_NAME!r} that names the last "
                f"one; to resume from step {trained[-1]}, write this line into "
                f'{model_dir}/{STATE_NAME}: model_checkpoint_path: "{NAME}-{trained[-1]}"; to start over, use another '
                "--model_dir"
            )
        return None
    path = f"{model_dir}/{name}"
    if not files.exists(main_file(path)):
        raise DamagedCheckpoint(f"{main_file(path)!r} of the last checkpoint is missing")
    return path


def latest_step(model_dir: str) -> int:
    """Returns the global step of the latest checkpoint; 0 when there is none.

    Raises:
      ValueError: See latest_checkpoint(), or the checkpoint is damaged.
    """
    path = latest_checkpoint(model_dir)
    return step_of(path) if path else 0


def has_checkpoint(model_dir: str) -> bool:
    """Returns whether a run has begun in a folder, even if its checkpoints are damaged."""
    return files.exists(f"{model_dir}/{STATE_NAME}") or any(steps(model_dir))


def steps(model_dir: str) -> list[int]:
    """Returns the steps for which a folder holds checkpoint files, in ascending order."""
    return sorted({int(match[1]) for name in files.names(model_dir) if (match := _FILE.fullmatch(name))})


def step_of(path: str) -> int:
    """Returns the global step that is stored in a checkpoint of either trainer.

    Raises:
      DamagedCheckpoint: It cannot be read.
    """
    name = "global_step"
    try:
        reader = open_checkpoint(path)
        return int(reader.get_tensor(name if reader.has_tensor(name) else name + VARIABLE_SUFFIX))
    except unreadable_errors() as error:
        raise DamagedCheckpoint(_error_line(path, error)) from error


def damage(path: str) -> str:
    """Returns a description of the problem with a checkpoint, "" when it is intact.

    Reads the complete checkpoint once: TensorFlow then verifies the checksum of each tensor
    (tensorflow/core/util/tensor_bundle/tensor_bundle.cc: BundleReader::GetValue) and of the index's blocks.
    """
    if not files.exists(main_file(path)):
        return f"{main_file(path)!r} is missing"
    try:
        reader = open_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except unreadable_errors() as error:
        return _error_line(path, error)
    return ""


def newest_whole(model_dir: str) -> tuple[str | None, str]:
    """Returns the path of the newest intact checkpoint, to resume from, and the problem with the latest one.

    Returns:
      (None, "") when there is no checkpoint yet; (path, "") when the latest one is intact; (path of an intact one, what
      is wrong with the latest one) when the latest one is damaged.

    Raises:
      ValueError: No checkpoint is intact, or see latest_checkpoint().
    """
    last = None
    try:
        last = latest_checkpoint(model_dir)
        wrong = damage(last) if last else ""
    except DamagedCheckpoint as error:
        wrong = str(error)
    if not wrong:
        return last, ""
    path = next(iter(intact_checkpoints(model_dir, besides=last)), None)
    if path is None:
        raise ValueError(f"{wrong}, and {model_dir!r} has no other intact checkpoint; use another --model_dir")
    return path, wrong


def intact_checkpoints(model_dir: str, besides: str | None = None) -> list[str]:
    """Returns the paths of a folder's intact checkpoints except `besides`, newest first; reads all of them."""
    paths = [f"{model_dir}/{NAME}-{step}" for step in reversed(steps(model_dir))]
    return [path for path in paths if path != besides and not damage(path)]


def finished_steps(model_dir: str) -> list[int]:
    """Returns the steps of the complete checkpoints, in ascending order, also while another process writes one.

    The file `checkpoint` names a checkpoint only when it is complete.
    """
    last = latest_step(model_dir)
    matches = filter(None, map(_FILE.fullmatch, files.names(model_dir)))
    complete = {int(match[1]) for match in matches if match[2] in _LAST_FILES}
    return sorted(step for step in complete if step <= last)


def prune_checkpoints(model_dir: str, evaluated: int, steps_per_eval: int) -> None:
    """Removes old checkpoints: all but the newest MAX_TO_KEEP and those that are still to be evaluated.

    Training and a watcher may both call it, as a file that is already gone is not an error.

    Args:
      model_dir: Folder or URI of the run.
      evaluated: Step of the last evaluation; checkpoints of later multiples of `steps_per_eval` are kept.
      steps_per_eval: Steps between evaluations.
    """
    removed = {step for step in finished_steps(model_dir)[:-MAX_TO_KEEP] if step <= evaluated or step % steps_per_eval}
    entries = [(name, match) for name in files.names(model_dir) if (match := _FILE.fullmatch(name))]
    # The index first: what is left of an interrupted removal is not taken for a checkpoint.
    for name, match in sorted(entries, key=lambda one: one[1][2] not in _LAST_FILES):
        if int(match[1]) in removed:
            with contextlib.suppress(FileNotFoundError):
                files.remove(f"{model_dir}/{name}")


def check_unshared(model_dir: str, step: int) -> None:
    """Checks that no checkpoint file which training will overwrite has a second hard link.

    TensorFlow writes an index into the existing file (tensor_bundle.cc: MergeBundles), so that a file with a second
    hard link would change under its other name too.

    Args:
      model_dir: Folder or URI.
      step: Global step of the checkpoint that training resumes from; -1 when there is none.

    Raises:
      ValueError: A checkpoint file of a step later than `step` has a second hard link.
    """
    for name in files.names(model_dir) if "://" not in model_dir else ():
        path, match = f"{model_dir}/{name}", _FILE.fullmatch(name)
        if match and int(match[1]) > step and os.lstat(path).st_nlink > 1:
            raise ValueError(
                f"{path!r} has a second hard link, and training from step {max(0, step)} on would overwrite both; "
                "remove it"
            )


def name_last(model_dir: str, path: str) -> None:
    """Writes the file `checkpoint`, which then names `path`, a checkpoint of this folder, as the latest one."""
    last = step_of(path)
    lines = [f'model_checkpoint_path: "{NAME}-{last}"']
    lines += [f'all_model_checkpoint_paths: "{NAME}-{step}"' for step in steps(model_dir) if step <= last]
    files.write(f"{model_dir}/{STATE_NAME}", "".join(f"{line}\n" for line in lines))


def _latest_name(model_dir: str) -> str | None:
    """Returns the name of the latest checkpoint, "model.ckpt-STEP", from the file `checkpoint`; None without the file.

    Raises:
      DamagedCheckpoint: The file cannot be parsed.
      ValueError: It names something else than a checkpoint of its folder.
    """
    path = f"{model_dir}/{STATE_NAME}"
    if not files.exists(path):
        return None
    try:
        lines = files.read_text(path).splitlines()
    except UnicodeDecodeError:
        lines = [""]
    if not lines or not all(_NAMES.fullmatch(line) or _TIMES.fullmatch(line) for line in lines):
        raise DamagedCheckpoint(f"{path!r} is damaged: it does not say which checkpoint is the last")
    # Some of TensorFlow's savers write complete paths instead of names.
    matches = [match for match in map(_NAMES.fullmatch, lines) if match]
    entries = [(match[1], match[2].removeprefix(f"{model_dir}/")) for match in matches]
    for _, name in entries:
        if not re.fullmatch(re.escape(NAME) + "-[0-9]{1,18}", name):
            raise ValueError(
                f"{path!r} names {name!r}, which is not a checkpoint in the same folder; train never writes such a "
                f"file: if you trust the folder, replace {name!r} with a name such as {NAME}-5000, else use another "
                "--model_dir"
            )
    last = [name for key, name in entries if key == "model_checkpoint_path"]
    if len(last) != 1:
        raise DamagedCheckpoint(f"{path!r} is damaged: it names {len(last)} checkpoints as the last")
    return last[0]


def _error_line(path: str, error: Exception) -> str:
    """Returns a one-line message that names the unreadable files of a checkpoint and the reason."""
    folder, _, name = path.rpartition("/")
    reason = first_line(error)
    if files.exists(f"{path}{SUFFIX}"):
        return f"a checkpoint cannot be read: {path + SUFFIX!r} ({reason})"
    data = [f"{folder}/{other}" for other in files.names(folder) if other.startswith(f"{name}.data-")]
    which = ", ".join(map(repr, data)) if data else f"{path + '.data-…'!r} is missing"
    try:
        open_checkpoint(path)
    except unreadable_errors():
        which = repr(f"{path}.index")
    return f"a checkpoint cannot be read: {which} ({reason})"


def shapes(path: str) -> dict[str, list[int]]:
    """Returns the shape of each variable in a checkpoint, by name."""
    return dict(open_checkpoint(path).get_variable_to_shape_map())


def misfit(path: str, needed: Mapping[str, list[int]]) -> str:
    """Returns the first difference between a checkpoint and the shapes `needed`, by variable name; "" if there is none.

    Raises:
      DamagedCheckpoint: It cannot be read.
    """
    try:
        actual = shapes(path)
    except unreadable_errors() as error:
        raise DamagedCheckpoint(_error_line(path, error)) from error
    for name in sorted(needed):
        if actual.get(name) != needed[name]:
            return f"has {name} with shape {actual[name]}, not {needed[name]}" if name in actual else f"has no {name}"
    return ""


def check_fits(path: str, needed: Mapping[str, list[int]], network: str, num_classes: int) -> None:
    """Checks that a checkpoint has the variables that will be loaded from it, by name and shape.

    Raises:
      ValueError: The checkpoint is of another network or another number of classes.
    """
    if has := misfit(path, needed):
        raise ValueError(
            f"checkpoint {path!r} {has}: it is not of network {network!r} with {num_classes} classes, but of another "
            "network or of other classes; use another --model_dir"
        )
