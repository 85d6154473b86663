"""Files that a run writes into its model_dir, in addition to TensorFlow's own files:

    MODEL_DIR/config.json     options of the run, versions and command; written first
    MODEL_DIR/history.csv     one row per evaluation (history.py)
    MODEL_DIR/metrics.json    all metrics of the last evaluation; names the export when the run is complete
    MODEL_DIR/exports.json    exports that this run has made (exports.py)
    MODEL_DIR/initial_weights.csv  what the run took from --init_from (trainers/starting_weights.py)
    MODEL_DIR/*.png           curves and confusion matrix (plots.py)

All writes are atomic. With --eval=watch, two processes write them: `train` writes config.json, initial_weights.csv and
the checkpoints, and `watch` the other files and the exports; both remove old checkpoints that are evaluated. Otherwise
`train` writes all files. The two locks of lock.py keep other processes out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import shlex

from estimator_app.config import TrainConfig
from estimator_app.model.keras_library import backend_of, uses_tensorflow
from estimator_app.model.metrics import Metrics
from estimator_app.model.network_names import is_users
from estimator_app.model_dir.checkpoints import (
    NAME,
    check_unshared,
    has_checkpoint,
    name_last,
    newest_whole,
    step_of,
    steps,
)
from estimator_app.model_dir.exports import export_path, stored_path
from estimator_app.runtime import files
from estimator_app.runtime.missing_paths import no_run
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format import json_fields

CONFIG_NAME = "config.json"
METRICS_NAME = "metrics.json"
# What a process that is killed leaves: a file that files.write() was about to rename, and the folder into which
# TensorFlow writes a checkpoint first (tensorflow/core/util/tensor_bundle/tensor_bundle.cc).
UNFINISHED_FILE = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_UNFINISHED_CHECKPOINT = re.compile(re.escape(NAME) + r"-[0-9]{1,18}_temp")
_PART = re.compile(r"part-[0-9]{5}-of-[0-9]{5}\.(index|data-[0-9]{5}-of-[0-9]{5})(\.tempstate[0-9]+)?")
# Maximum number of unknown files that an error message lists.
_LISTED = 5


@dataclasses.dataclass(frozen=True)
class Finished:
    """Result of a run: the metrics of its last evaluation, and the path of its export, "" until the run is complete."""

    metrics: Metrics
    export: str


def check_free(model_dir: str) -> None:
    """Checks that a folder holds either a run or nothing but hidden files, and no symbolic links.

    Raises:
      ValueError: The folder holds other files but no run; or a symbolic link, through which training would write
        elsewhere; or something that is neither a file nor a folder; or TensorFlow would take its path for a pattern, or
        it cannot be printed.
    """
    files.check_no_pattern(model_dir)
    if not model_dir.isprintable():  # the paths of exports in exports.json must be
        raise ValueError(f"{model_dir!r} has signs in it that cannot be printed; use another --model_dir")
    names = files.names(model_dir)
    if links := [name for name in names if os.path.islink(f"{model_dir}/{name}")]:
        raise ValueError(
            f"{model_dir!r} contains a symlink, {links[0]!r}, through which training would write elsewhere; remove it "
            "(to write exports elsewhere, use --export_dir)"
        )
    files.check_plain(model_dir)
    # Earlier versions wrote config.json.tmp.
    foreign = [name for name in names if not name.startswith(".") and name != f"{CONFIG_NAME}.tmp"]
    if foreign and CONFIG_NAME not in names:
        raise ValueError(
            f"{model_dir!r} has no {CONFIG_NAME} but contains {enumerated(foreign, _LISTED)}, so it is not a "
            "training run; use another --model_dir"
        )


def write_run_config(model_dir: str, config: TrainConfig, command: str = "") -> str:
    """Writes config.json, unless `model_dir` holds other files or a checkpoint of another run.

    If the latest checkpoint is damaged, the newest intact one becomes the latest.

    Args:
      model_dir: Folder or URI of the run.
      config: Options of the run.
      command: Command line that the user typed, stored so that it can be repeated.

    Returns:
      The problem with the latest checkpoint, "" if it is intact.

    Raises:
      ValueError: `model_dir` holds other files or another run, none of its checkpoints is intact, or a file that
        training will overwrite has a second hard link; nothing was changed.
      OSError: `model_dir` cannot be written.
    """
    check_free(model_dir)
    last, wrong = newest_whole(model_dir)
    if last:
        run = read_config(model_dir)
        if differences := run.differences(config, step_of(last)):
            first = read_command(model_dir)
            repeat = f", or repeat its options{f': {first}' if first else ''}"
            if run.dataset == config.dataset and run.fingerprint != config.fingerprint:
                repeat = ""  # the same command would be refused too, as the dataset was replaced
            raise ValueError(
                f"{model_dir!r} holds another run: its {'; its '.join(differences)}; use another --model_dir{repeat}"
            )
    check_unshared(model_dir, step_of(last) if last else -1)
    files.make_folder(model_dir)
    files.write(f"{model_dir}/{CONFIG_NAME}", config.to_json(versions(config.trainer), command))
    if last and wrong:
        name_last(model_dir, last)
    return wrong


def remove_unfinished(model_dir: str) -> None:
    """Removes what killed processes left in the folder of a run: temporary files, and parts of unfinished checkpoints.

    Must be called by the only process that trains there. Anything with another name stays, and so does what cannot be
    removed.
    """
    for name in files.names(model_dir):
        path = f"{model_dir}/{name}"
        with contextlib.suppress(OSError):
            if UNFINISHED_FILE.fullmatch(name):
                files.remove(path)
            elif _UNFINISHED_CHECKPOINT.fullmatch(name):
                for part in filter(_PART.fullmatch, files.names(path)):
                    files.remove(f"{path}/{part}")
                if not files.names(path):
                    files.remove_folder(path)


def read_config(model_dir: str) -> TrainConfig:
    """Returns the options of the run in `model_dir`, from config.json.

    Raises:
      ValueError: There is no config.json, or it cannot be parsed.
    """
    path = f"{model_dir}/{CONFIG_NAME}"
    if not files.exists(path):
        if not files.is_folder(model_dir):
            raise ValueError(no_run(model_dir))
        raise ValueError(
            f"{model_dir!r} has no {CONFIG_NAME}, so it is not a training run; create one with: jpeg2tpu train"
        )
    return TrainConfig.from_json(files.read_text(path), path)


def read_command(model_dir: str) -> str:
    """Returns the command line that started or last resumed the run, for its folder of today, as one printable line."""
    command = str(json_fields.load(files.read_text(f"{model_dir}/{CONFIG_NAME}")).get("command", ""))
    with contextlib.suppress(ValueError):  # somebody has changed it, and it cannot be parsed
        words = shlex.split(command)
        moved = [
            f"--model_dir={model_dir}" if word.startswith("--model_dir=") else word
            for word, before in zip(words, ["", *words], strict=False)
            if before != "--model_dir"
        ]
        command = shlex.join(f"--model_dir={model_dir}" if word == "--model_dir" else word for word in moved)
    return command if command.isprintable() else repr(command)


def command_for(verb: str, model_dir: str) -> str:
    """Returns the command line of another command on a run, for a shell: a network of the user's own is named in it."""
    flags = [f"--model_dir={model_dir}"]
    with contextlib.suppress(ValueError):  # of a config.json that is damaged, which the command will say
        network = read_config(model_dir).network
        flags += [f"--network={network}"] if is_users(network) else []
    return shlex.join(["jpeg2tpu", verb, *flags])


def read_started(model_dir: str) -> TrainConfig | None:
    """Returns the options of the run in `model_dir`; None when there is no config.json or no checkpoint yet.

    Raises:
      ValueError: config.json cannot be parsed, or the folder holds something that is neither a file nor a folder.
    """
    files.check_plain(model_dir)
    has_config = files.exists(f"{model_dir}/{CONFIG_NAME}")
    return read_config(model_dir) if has_config and has_checkpoint(model_dir) else None


def read_named(model_dir: str, network: str | None = None) -> TrainConfig:
    """Returns the options of the run in `model_dir`, after a check that the module of its network may be imported.

    That is the case for networks of this package, and for custom networks that the user has named.

    Args:
      model_dir: Folder or URI of a run with a checkpoint.
      network: "package.module:function" as named by the user; None if no network was named.

    Raises:
      ValueError: There is no run or it has no checkpoint yet, or the folder holds something that is neither a file nor
        a folder; or the network is a custom one that was not named, or another one was named.
    """
    files.check_plain(model_dir)
    config = read_config(model_dir)
    if not any(steps(model_dir)):
        raise ValueError(f"{model_dir!r} holds no checkpoint yet; train first")
    if network not in (None, config.network):
        raise ValueError(f"the run in {model_dir!r} has --network={config.network}, got --network={network}")
    if is_users(config.network) and not network:
        raise ValueError(
            f"the run in {model_dir!r} has a custom network, whose code is imported only if you name it; if you trust "
            f"it, add --network={config.network}"
        )
    return config


def write_finished(model_dir: str, finished: Finished, classes: tuple[str, ...]) -> None:
    """Writes metrics.json: the metrics of a run and the path of its export, relative to model_dir if it is in there."""
    fields = finished.metrics.to_fields(classes) | {"export": stored_path(finished.export, model_dir)}
    files.write(f"{model_dir}/{METRICS_NAME}", json.dumps(fields, indent=1, ensure_ascii=False) + "\n")


def read_finished(model_dir: str) -> Finished | None:
    """Returns the content of metrics.json; None when the file is missing or cannot be parsed."""
    try:
        fields = json_fields.load(files.read_text(f"{model_dir}/{METRICS_NAME}"))
        export = "" if fields["export"] == "" else export_path(fields["export"], model_dir)
        return Finished(export=export, metrics=Metrics.from_fields(fields))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def versions(trainer: str) -> dict[str, str]:
    """Returns the versions of what a trainer computes with, by name."""
    if uses_tensorflow(trainer):
        import tensorflow as tf

        libraries = {"tensorflow": tf.__version__}
    else:
        libraries = {name: _version(name) for name in (backend_of(trainer), "keras")}
    return {"python": platform.python_version()} | libraries | {"jpeg2tpu": _version("jpeg2tpu")}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
