"""Which exports are kept: the newest of the last steps and the newest of the best, each in a folder of its own.

EXPORT_DIR/1763596800         of the last step, made when a run ends
EXPORT_DIR/best/1763596700    of the best evaluation so far, made at once
MODEL_DIR/exports.json        those that this run has made: no other folder is ever removed
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from estimator_app.runtime import files

EXPORTS_NAME = "exports.json"
KINDS = ("last", "best")
NUMBER = re.compile("[0-9]{1,18}")  # an export's name; str.isdigit() would take other alphabets' digits too
_WRITTEN = re.compile(f"best|(temp-)?{NUMBER.pattern}")  # what is written into a folder for exports, by its names


def folder(export_dir: str, kind: str) -> str:
    """Returns where the exports of a kind are."""
    return export_dir if kind == "last" else f"{export_dir}/{kind}"


def check_no_links(export_dir: str) -> None:
    """Checks that exports into a folder stay in it: nothing there that they are written to or removed from is a link.

    Links of other names, such as "latest", may be there, and the folder itself may be one: the user has named it.

    Raises:
      ValueError: There is such a link.
    """
    for parent in (folder(export_dir, kind) for kind in KINDS if "://" not in export_dir):
        for name in os.listdir(parent) if os.path.isdir(parent) else ():
            if _WRITTEN.fullmatch(name) and os.path.islink(f"{parent}/{name}"):
                raise ValueError(
                    f"{parent!r} holds a link, {name!r}, through which exports would be written or removed elsewhere; "
                    "remove it, or give another --export_dir"
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
    """Returns the path of the export of a step, which is made unless it is there; removes all but the newest `num`.

    Those that the run has made in another folder stay: whoever asks for another one has not asked for that.

    Args:
      model_dir: The run's.
      kind: One of KINDS.
      step: Of the checkpoint.
      parent: The folder in which the export is to be, from folder().
      num: How many exports of this kind to keep there.
      export: Makes one and returns its path.
      is_ours: Returns whether the SavedModel at a path is of this run: no other is removed, whatever exports.json says.

    Raises:
      ValueError: exports.json names another.
    """
    found = read_kept(model_dir, kind)
    elsewhere = [entry for entry in found if entry["path"].rpartition("/")[0] != parent]
    kept = [entry for entry in found if entry not in elsewhere]
    if not kept or kept[-1]["step"] != step:
        kept.append({"step": step, "path": export()})
        # Before anything is removed: what is not listed stays for ever.
        _write(model_dir, kind, [*elsewhere, *kept])
    for entry in kept[:-num]:
        if not is_ours(entry["path"]):
            raise ValueError(
                f"{model_dir}/{EXPORTS_NAME} names {entry['path']!r}, which is no export of this run; take it out of "
                "that file"
            )
        tf.io.gfile.remove(f"{entry['path']}/saved_model.pb")  # first: what is left of it then is nobody's SavedModel
        files.remove_folder(entry["path"])
    _write(model_dir, kind, [*elsewhere, *kept[-num:]])
    return str(kept[-1]["path"])


def read_kept(model_dir: str, kind: str) -> list[dict[str, Any]]:
    """Returns those of read_exports() of a kind that are still there, oldest first."""
    known = read_exports(model_dir).get(kind, [])
    return [entry for entry in known if tf.io.gfile.exists(f"{entry['path']}/saved_model.pb")]


def read_exports(model_dir: str) -> dict[str, list[dict[str, Any]]]:
    """Returns {"last": …, "best": …}, each a list of {"step", "path"}, oldest first; empty when there are none.

    Raises:
      ValueError: exports.json is damaged, or names what cannot be an export.
    """
    path = f"{model_dir}/{EXPORTS_NAME}"
    try:
        found = files.parse_json(files.read_text(path))
        if not isinstance(found, dict) or not found.keys() <= {*KINDS}:
            raise ValueError(f"it needs {' and '.join(map(repr, KINDS))}")
        return {kind: [_entry(fields) for fields in found[kind]] for kind in found}
    except tf.errors.NotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path!r} is damaged ({error}); remove it, and then old exports by hand") from error


def is_export_path(path: object) -> bool:
    """Returns whether a path can be an export's: absolute or a URI, without "..", its name a number."""
    return files.is_plain_path(path) and bool(NUMBER.fullmatch(str(path).rpartition("/")[2]))


def _entry(fields: Any) -> dict[str, Any]:
    if type(fields["step"]) is not int or fields["step"] < 0:
        raise ValueError(f"step {fields['step']!r} is no number of steps")
    if not is_export_path(fields["path"]):
        raise ValueError(f"path {fields['path']!r} cannot be an export's, as in /exports/1763596800")
    return {"step": fields["step"], "path": fields["path"]}


def _write(model_dir: str, kind: str, kept: list[dict[str, Any]]) -> None:
    files.write(f"{model_dir}/{EXPORTS_NAME}", json.dumps(read_exports(model_dir) | {kind: kept}, indent=1) + "\n")
