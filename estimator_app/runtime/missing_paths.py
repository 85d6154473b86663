"""Local paths that do not exist, found before TensorFlow is imported: a mistyped path fails at once.

What is in a bucket is looked for later, by what reads it, and so is everything but the existence of a path. Who reads a
path raises errors with the same messages.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from tpu_input.command_line.paths import named_patterns
from tpu_input.datasets import read_manifest
from tpu_input.storage.patterns import is_pattern, no_match


def check_dataset(path: str) -> None:
    """Raises ValueError if a dataset does not exist."""
    if not may_exist(path):
        read_manifest(path)  # raises


def check_shards(patterns: str) -> None:
    """Raises ValueError if no file matches one of the patterns of other programs' TFRecords."""
    for _, pattern in named_patterns(patterns):
        if "://" not in pattern and "{" not in pattern and not glob.glob(pattern):  # TensorFlow expands {1,2}, too
            raise ValueError(no_match(pattern))


def check_run(model_dir: str) -> None:
    """Raises ValueError if the folder of a run does not exist."""
    if not may_exist(model_dir):
        raise ValueError(no_run(model_dir))


def check_export(path: str) -> None:
    """Raises ValueError if there is nothing that could be or hold a SavedModel."""
    if not may_exist(path):
        raise ValueError(no_export(path))


def check_checkpoint(path: str) -> None:
    """Raises ValueError if no file begins with the path of a checkpoint."""
    if not _may_begin(path):
        raise ValueError(no_checkpoint(path))


def may_exist(path: str) -> bool:
    """Returns whether there is a local path, or a URI, which is not looked for."""
    return "://" in path or os.path.lexists(path)


def check_weights(path: str) -> None:
    """Raises ValueError if the path of --init_from does not exist, also as a checkpoint.

    A run that has begun does not read it again.
    """
    if not _may_begin(path):
        raise ValueError(no_weights(path))


def check_images(files: Sequence[str]) -> None:
    """Raises ValueError if none of the named files of images exists; if some do, these can be classified."""
    if files and not any(may_exist(file) or glob.glob(file) for file in files):
        more = f", nor does any of {len(files) - 1} more files" if len(files) > 1 else ""
        problem = f"no file matches {files[0]!r}" if is_pattern(files[0]) else f"{files[0]!r} does not exist"
        raise ValueError(f"{problem}{more}")


def no_run(model_dir: str) -> str:
    """Returns the message that there is no such folder of a run."""
    return f"{model_dir!r} does not exist; create one with: jpeg2tpu train"


def no_export(path: str) -> str:
    """Returns the message that there is no such export."""
    return f"{path!r} does not exist; give a SavedModel, a folder of them, or a model_dir"


def no_checkpoint(path: str) -> str:
    """Returns the message that there is no such checkpoint."""
    return f"checkpoint {path!r} does not exist; give a path such as MODEL_DIR/model.ckpt-5000"


def no_weights(path: str) -> str:
    """Returns the message that there is nothing at the path of --init_from."""
    return (
        f"--init_from={path} does not exist; give a model_dir, a checkpoint such as MODEL_DIR/model.ckpt-5000, a "
        "SavedModel, or a .keras, .h5, .weights.h5 or .safetensors file"
    )


def _may_begin(path: str) -> bool:
    return may_exist(path) or bool(glob.glob(f"{glob.escape(path)}.*"))
