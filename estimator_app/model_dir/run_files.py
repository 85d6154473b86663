"""What a run leaves in its model_dir besides TensorFlow's own files:

    MODEL_DIR/config.json     what was trained, by which versions and command: written first
    MODEL_DIR/history.csv     a row an evaluation (history.py)
    MODEL_DIR/metrics.json    all of the last evaluation; names the export once the run is complete
    MODEL_DIR/exports.json    which exports are this run's (exports.py)
    MODEL_DIR/*.png           curves and confusion (plots.py)

Each is written at once or not at all.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model.metrics import Metrics
from estimator_app.model_dir.checkpoints import check_unshared, has_checkpoint, name_last, newest_whole, step_of, steps
from estimator_app.model_dir.exports import is_export_path
from estimator_app.runtime import files

CONFIG_NAME = "config.json"
METRICS_NAME = "metrics.json"
# Foreign files that a refusal lists.
_LISTED = 5


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run's last evaluation, and its export; "" as long as there is none, which is as long as the run goes on."""

    metrics: Metrics
    export: str


def check_free(model_dir: str) -> None:
    """Checks that a folder without a run holds nothing else, hidden files aside, and that no run's files are links.

    Raises:
      ValueError: It holds something, or links, through which what is written would leave the folder, or what is neither
        a file nor a folder.
    """
    every = files.names(model_dir)
    links = [name for name in every if os.path.islink(f"{model_dir}/{name}")]
    if links:
        raise ValueError(
            f"{model_dir!r} holds a link, {links[0]!r}, through which a training would write elsewhere; remove it "
            "(--export_dir says where exports go)"
        )
    files.check_plain(model_dir)
    found = [name for name in every if not name.startswith(".")]
    if CONFIG_NAME not in found:
        foreign = [name for name in found if name != f"{CONFIG_NAME}.tmp"]  # an earlier version's
        if foreign:
            more = f" and {len(foreign) - _LISTED} more" if len(foreign) > _LISTED else ""
            raise ValueError(
                f"{model_dir!r} holds no {CONFIG_NAME} but {', '.join(foreign[:_LISTED])}{more}, so it is something "
                "else's; give another --model_dir"
            )


def write_run_config(model_dir: str, config: TrainConfig, command: str = "") -> str:
    """Writes config.json, unless `model_dir` holds anything else or a checkpoint of another run.

    Where the last checkpoint is damaged, the newest that is whole becomes the last. Returns what was wrong with it, or
    "".

    Args:
      model_dir: A folder.
      config: What to train.
      command: What the user typed, for whoever repeats it.

    Raises:
      ValueError: It does, none of its checkpoints is whole, or a file that training will write over has another name
        too; nothing was changed.
      OSError: `model_dir` cannot be written.
    """
    check_free(model_dir)
    last, wrong = newest_whole(model_dir)
    if last:
        found = read_config(model_dir).differences(config, step_of(last))
        if found:
            first = read_command(model_dir)
            raise ValueError(
                f"{model_dir!r} holds another run: its {'; its '.join(found)}; give another --model_dir, or repeat its "
                f"options{f': {first}' if first else ''}"
            )
    check_unshared(model_dir, step_of(last) if last else -1)
    versions = {"python": platform.python_version(), "tensorflow": tf.__version__, "jpeg2tpu": _version()}
    files.make_folder(model_dir)
    files.write(f"{model_dir}/{CONFIG_NAME}", config.to_json(versions, command))
    if last and wrong:
        name_last(model_dir, last)
    return wrong


def read_config(model_dir: str) -> TrainConfig:
    """Returns what the run in `model_dir` was told.

    Raises:
      ValueError: There is none.
    """
    path = f"{model_dir}/{CONFIG_NAME}"
    if not tf.io.gfile.exists(path):
        has = f"holds no {CONFIG_NAME}, so no training run" if tf.io.gfile.isdir(model_dir) else "does not exist"
        raise ValueError(f"{model_dir!r} {has}; make one with: python -m estimator_app train")
    return TrainConfig.from_json(files.read_text(path), path)


def read_command(model_dir: str) -> str:
    """Returns the command that began the run or last went on with it, as config.json has it; in one printable line."""
    command = str(files.parse_json(files.read_text(f"{model_dir}/{CONFIG_NAME}")).get("command", ""))
    return command if command.isprintable() else repr(command)


def begun(model_dir: str) -> TrainConfig | None:
    """Returns what the run was told that `model_dir` has a checkpoint of; None when there is none.

    Raises:
      ValueError: It cannot be read, or the folder holds what is neither a file nor a folder.
    """
    files.check_plain(model_dir)
    told = tf.io.gfile.exists(f"{model_dir}/{CONFIG_NAME}")
    return read_config(model_dir) if told and has_checkpoint(model_dir) else None


def read_trained(model_dir: str) -> TrainConfig:
    """Returns what the run in `model_dir`, which has a checkpoint to use, was told.

    Raises:
      ValueError: There is no run, or none that has begun, or the folder holds what is neither a file nor a folder.
    """
    files.check_plain(model_dir)
    config = read_config(model_dir)
    if not any(steps(model_dir)):
        raise ValueError(f"{model_dir!r} holds no checkpoint yet; train first")
    return config


def write_finished(model_dir: str, finished: Finished, classes: tuple[str, ...]) -> None:
    """Writes metrics.json."""
    fields = finished.metrics.to_fields(classes) | {"export": finished.export}
    files.write(f"{model_dir}/{METRICS_NAME}", json.dumps(fields, indent=1, ensure_ascii=False) + "\n")


def read_finished(model_dir: str) -> Finished | None:
    """Returns what metrics.json says; None when there is none, or none that can be read."""
    try:
        fields = files.parse_json(files.read_text(f"{model_dir}/{METRICS_NAME}"))
        if fields["export"] != "" and not is_export_path(fields["export"]):
            raise ValueError(f"export {fields['export']!r} is no path of an export")
        return Finished(export=fields["export"], metrics=Metrics.from_fields(fields))
    except (tf.errors.NotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _version() -> str:
    try:
        return importlib.metadata.version("jpeg2tpu")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
