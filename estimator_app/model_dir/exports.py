"""Retention of exports: keeps the newest exports of last steps and the newest of best evaluations, removes older ones.

EXPORT_DIR/1763596800         export of the last step, written when a run ends
EXPORT_DIR/best/1763596700    export of the best evaluation so far, written immediately after that evaluation
MODEL_DIR/exports.json        exports that this run has made: no other folder is ever removed

Paths of exports in MODEL_DIR are stored relative to it, so that a run can be moved or copied with its exports.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any, Literal, TypedDict, get_args

from estimator_app.runtime import files
from tpu_input.dataset_format import json_fields

EXPORTS_NAME = "exports.json"
SAVED_MODEL_NAME = "saved_model.pb"
STABLEHLO_NAME = "model.stablehlo"
WEIGHTS = "weights"  # of model.stablehlo: WEIGHTS.npz
PROGRAM_NAMES = (SAVED_MODEL_NAME, STABLEHLO_NAME)  # one of them is in an export, and is written last
ExportFormat = Literal["saved_model", "stablehlo"]
FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
KINDS = ("last", "best")
NUMBER = re.compile("[0-9]{1,18}")  # name of an export; str.isdigit() would also accept non-ASCII digits
_FOLDER_NAME = re.compile(f"best|(temp-)?{NUMBER.pattern}")  # names of folders that are written into an export folder


class Entry(TypedDict):
    """An export of a run: the step of its checkpoint, and its path, which is absolute or a URI."""

    step: int
    path: str


def folder(export_dir: str, kind: str) -> str:
    """Returns the folder of the exports of a kind, one of KINDS."""
    return export_dir if kind == "last" else f"{export_dir}/{kind}"


def new_number(parent: str) -> int:
    """Returns the name of the next export in a folder, from folder(): the time, in whole seconds since 1970.

    Where exports of the run have this name or a later one, it is the next one after theirs, so that the newest export
    of all kinds has the highest number.
    """
    export_dir = parent.removesuffix("/best")
    names = (name.removeprefix("temp-") for kind in KINDS for name in files.names(folder(export_dir, kind)))
    return max([int(time.time()), *(int(name) + 1 for name in names if NUMBER.fullmatch(name))])


def check_export_dir(export_dir: str) -> None:
    """Checks that exports can be read back from a folder, and that no symbolic link redirects them elsewhere.

    Links with other names, such as "latest", are allowed, and so is a link as the folder itself: the user has named it.

    Raises:
      ValueError: A name that exports use is a symbolic link, or TensorFlow would take the path for a pattern.
    """
    files.check_no_pattern(export_dir)
    for parent in (folder(export_dir, kind) for kind in KINDS if "://" not in export_dir):
        for name in os.listdir(parent) if os.path.isdir(parent) else ():
            if _FOLDER_NAME.fullmatch(name) and os.path.islink(f"{parent}/{name}"):
                raise ValueError(
                    f"{parent!r} contains a symlink, {name!r}, through which exports would be written or removed "
                    "elsewhere; remove it, or use another --export_dir"
                )


def prune_exports(
    model_dir: str,
    kind: str,
    step: int,
    parent: str,
    num: int,
    export: Callable[[], str],
    is_ours: Callable[[str], bool] = lambda path: False,
) -> str:
    """Makes the export of a step unless it exists, removes all but the newest `num`, and returns the newest path.

    Exports that the run has made in another folder are kept: giving another folder does not ask for their removal.

    Args:
      model_dir: Folder or URI of the run.
      kind: One of KINDS.
      step: Global step of the checkpoint that is exported.
      parent: Folder of the export, from folder().
      num: Number of exports of this kind to keep in `parent`.
      export: Makes the export and returns its path.
      is_ours: Returns whether the SavedModel at a path is of this run; others are never removed, even if exports.json
        lists them.

    Raises:
      ValueError: An export to be removed is listed in exports.json but is not of this run.
    """
    entries = read_complete_exports(model_dir, kind)
    elsewhere = [entry for entry in entries if entry["path"].rpartition("/")[0] != parent]
    exports = [entry for entry in entries if entry not in elsewhere]
    if not exports or exports[-1]["step"] != step:
        exports.append({"step": step, "path": export()})
        # Written before anything is removed: an export that is not listed would never be removed.
        _write(model_dir, kind, [*elsewhere, *exports])
    for entry in exports[:-num]:
        if not is_ours(entry["path"]):
            raise ValueError(
                f"{model_dir}/{EXPORTS_NAME} lists {entry['path']!r}, which is not an export of this run; remove it "
                "from that file"
            )
        # Removed first: if the removal is interrupted, the rest of the folder is not taken for a SavedModel.
        for name in PROGRAM_NAMES:
            if files.exists(f"{entry['path']}/{name}"):
                files.remove(f"{entry['path']}/{name}")
        files.remove_folder(entry["path"])
    _write(model_dir, kind, [*elsewhere, *exports[-num:]])
    return str(exports[-1]["path"])


def program_name(path: str) -> str:
    """Returns the name of the file in an export that is written last."""
    return STABLEHLO_NAME if files.exists(f"{path}/{STABLEHLO_NAME}") else SAVED_MODEL_NAME


def is_complete(path: str) -> bool:
    """Returns whether there is an export at `path`, with all of its files."""
    return any(files.exists(f"{path}/{name}") for name in PROGRAM_NAMES)


def read_complete_exports(model_dir: str, kind: str) -> list[Entry]:
    """Returns the entries of read_exports() of a kind whose SavedModels still exist, oldest first."""
    return [entry for entry in read_exports(model_dir).get(kind, []) if is_complete(entry["path"])]


def read_exports(model_dir: str) -> dict[str, list[Entry]]:
    """Returns {"last": …, "best": …}, each a list of {"step", "path"}, oldest first; {} when there is no exports.json.

    Raises:
      ValueError: exports.json is damaged, or lists a path that cannot be an export.
    """
    path = f"{model_dir}/{EXPORTS_NAME}"
    try:
        lists = json_fields.load(files.read_text(path))
        if not isinstance(lists, dict) or not lists.keys() <= {*KINDS}:
            raise ValueError(f"its keys must be {' and '.join(map(repr, KINDS))}")
        return {kind: [_entry(fields, model_dir) for fields in lists[kind]] for kind in lists}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path!r} is damaged ({error}); remove it, then remove old exports by hand") from error


def stored_path(path: str, model_dir: str) -> str:
    """Returns the path of an export as files of the run store it: relative to model_dir if it is in there."""
    return path.removeprefix(f"{model_dir}/")


def export_path(stored: object, model_dir: str) -> str:
    """Returns the path of an export, absolute or a URI, from what a file of the run stores.

    Raises:
      ValueError: It is not the path of an export: it has ".." in it, or its name is not a number.
    """
    is_whole = isinstance(stored, str) and (stored.startswith("/") or "://" in stored)
    path = stored if is_whole else f"{model_dir}/{stored}"
    if not files.is_plain_path(path) or not NUMBER.fullmatch(str(path).rpartition("/")[2]):
        raise ValueError(f"path {stored!r} is not the path of an export, such as export/1763596800")
    return str(path)


def _entry(fields: dict[str, Any], model_dir: str) -> Entry:
    if type(fields["step"]) is not int or fields["step"] < 0:
        raise ValueError(f"step must be a non-negative integer, got {fields['step']!r}")
    return {"step": fields["step"], "path": export_path(fields["path"], model_dir)}


def _write(model_dir: str, kind: str, exports: list[Entry]) -> None:
    lists = read_exports(model_dir) | {kind: exports}
    stored = {
        kind: [{**entry, "path": stored_path(entry["path"], model_dir)} for entry in entries]
        for kind, entries in lists.items()
    }
    files.write(f"{model_dir}/{EXPORTS_NAME}", json.dumps(stored, indent=1) + "\n")
