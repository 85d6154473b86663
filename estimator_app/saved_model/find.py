"""Lookup of a checkpoint or an export: the one that is given, or else the newest.

MODEL_DIR, step or path ──find_checkpoint()──▶ MODEL_DIR/model.ckpt-5000
MODEL_DIR or EXPORT_DIR ──find_export()──▶ EXPORT_DIR/1763596800 ──read_origin()──▶ the run's TrainConfig and step
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from estimator_app.config import TrainConfig
from estimator_app.model_dir.checkpoints import (
    NAME,
    DamagedCheckpoint,
    damage,
    intact_checkpoints,
    latest_checkpoint,
    main_file,
    misfit,
    shapes,
    steps,
)
from estimator_app.model_dir.exports import KINDS, NUMBER, PROGRAM_NAMES, folder, is_complete, read_exports
from estimator_app.model_dir.run_files import CONFIG_NAME, METRICS_NAME, command_for, read_config
from estimator_app.runtime import files
from estimator_app.runtime.missing_paths import no_checkpoint, no_export
from tpu_input.command_line.wording import first_line
from tpu_input.dataset_format import json_fields
from tpu_input.dataset_format.records import MANIFEST_NAME


def find_checkpoint(model_dir: str, step: int | None = None, path: str | None = None, flag: str = "--step=") -> str:
    """Returns the path of a checkpoint, without file extensions.

    Args:
      model_dir: Folder or URI of the run.
      step: Global step of one of its checkpoints.
      path: Path of any checkpoint of the same network and classes. If both are None, the run's latest is returned.
      flag: What precedes a step in the advice for a damaged checkpoint.

    Raises:
      ValueError: There is no such checkpoint, it is damaged (the message lists the intact ones), or it is of another
        network.
    """
    files.check_no_pattern(path or model_dir)
    if step is not None:
        present = steps(model_dir)
        if step not in present:
            raise ValueError(f"{model_dir!r} holds no checkpoint of step {step}; it has {', '.join(map(str, present))}")
        checkpoint: str | None = f"{model_dir}/{NAME}-{step}"
    elif path is not None:
        checkpoint = re.sub(r"\.(npz|index|meta|data-\d+-of-\d+)$", "", path)
        parent, _, name = checkpoint.rpartition("/")
        files.check_plain(parent, beginning=f"{name}.")
        if not files.exists(main_file(checkpoint)):
            raise ValueError(no_checkpoint(checkpoint))
    else:
        try:
            checkpoint = latest_checkpoint(model_dir)
        except DamagedCheckpoint as error:
            raise ValueError(f"{error}; {_instead(model_dir, flag)}") from error
    if not checkpoint:
        raise ValueError(f"{model_dir!r} holds no checkpoint yet; train first")
    if wrong := damage(checkpoint):
        raise ValueError(f"{wrong}; {_instead(model_dir, flag, checkpoint)}")
    return _like(checkpoint, model_dir) if path is not None else checkpoint


def _instead(model_dir: str, flag: str, damaged: str | None = None) -> str:
    """Returns advice for a damaged checkpoint: which other checkpoints are intact."""
    others = [f"{flag}{path.rpartition('-')[2]}" for path in intact_checkpoints(model_dir, besides=damaged)]
    return f"use an intact one: {', '.join(others)}" if others else "the run has no other intact checkpoint"


def _like(path: str, model_dir: str) -> str:
    """Returns `path` after checking that the checkpoint has the same variables as the run's latest.

    Raises:
      ValueError: It has other variables, or the run has no checkpoint yet.
    """
    other = latest_checkpoint(model_dir)
    if not other:
        raise ValueError(f"{model_dir!r} holds no checkpoint yet; train first")
    if has := misfit(path, shapes(other)):
        raise ValueError(f"{path!r} is of another network or has other classes than {other!r}: it {has}")
    return path


def find_export(path: str) -> str:
    """Returns the path of the SavedModel at `path`, or of the newest one below it.

    Args:
      path: A SavedModel, a folder of SavedModels named by numbers, the export_dir of a training run, or a model_dir,
        whose exports.json lists exports in other folders.

    Raises:
      ValueError: There is no SavedModel, exports.json is damaged, or the folder holds something that is neither a file
        nor a folder.
    """
    if not files.exists(path):
        raise ValueError(no_export(path))
    path = path.rstrip("/")
    files.check_no_pattern(path)
    files.check_plain(path)
    if {*PROGRAM_NAMES} & {*(inside := files.names(path))}:
        return path
    if export := _newest(path) or _newest(f"{path}/export") or _listed(path):
        return export
    if CONFIG_NAME in inside:
        hint = f" but a run without an export; export it with: {command_for('export', path)}"
    elif MANIFEST_NAME in inside:
        hint = " but a dataset; use a folder that export has written"
    else:
        hint = "; create one with: jpeg2tpu export"
    raise ValueError(f"{path!r} holds no SavedModel{hint}")


def read_origin(path: str) -> tuple[TrainConfig, int]:
    """Returns the config and the step of the training run from which the SavedModel at `path` was exported.

    Raises:
      ValueError: It does not record them, or contains something other than files and folders.
    """
    files.check_plain(path, recursive=True)
    try:
        step = json_fields.load(files.read_text(f"{path}/assets.extra/{METRICS_NAME}"))["step"]
        if type(step) is not int or step < 0:
            raise ValueError(f"step must be a non-negative integer, got {step!r}")
        return read_config(f"{path}/assets.extra"), step
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path!r} does not record which run it was exported from ({first_line(error)}); export it again"
        ) from error


def _newest(export_dir: str) -> str | None:
    """Returns the path of the SavedModel with the highest number, of any kind; None when there is none."""
    return _last(path for kind in KINDS for path in _numbered(folder(export_dir, kind)))


def _listed(model_dir: str) -> str | None:
    """Returns the same among the exports that are listed in exports.json; None when there is none."""
    paths = [entry["path"] for entries in read_exports(model_dir).values() for entry in entries]
    return _last((int(path.rpartition("/")[2]), path) for path in paths)


def _last(exports: Iterable[tuple[int, str]]) -> str | None:
    """Returns the path with the highest number that has a complete SavedModel: saved_model.pb is uploaded last."""
    paths = (path for _, path in sorted(exports, reverse=True))
    return next((path for path in paths if is_complete(path)), None)


def _numbered(parent: str) -> list[tuple[int, str]]:
    """Returns (number, path) of the entries of a folder that are named like exports."""
    return [(int(name), f"{parent}/{name}") for name in files.names(parent) if NUMBER.fullmatch(name)]
