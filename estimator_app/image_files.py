"""What a user names → image files, one at a time; here or in a bucket.

photo.jpg, photos/, gs://bucket/*.png ──image_files()──▶ paths ──read()──▶ bytes
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence

import tensorflow as tf

from estimator_app.runtime.files import is_in_bucket, reason
from tpu_input.dataset_format.decode_limits import too_many_bytes

_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png")


def image_files(named: Sequence[str], left_out: Counter[str]) -> Iterator[str]:
    """Yields paths: of files as they are named, of folders all images in them and below, of globs what matches.

    No more than the names in one folder are held in memory.

    Args:
      named: Paths, folders, globs; also URIs.
      left_out: Counts what in folders has the name of no image, or is neither a file nor a folder, by endings.
    """
    for name in named:
        matches = [name]
        if any(sign in name for sign in "*?[") and not (tf.io.gfile if _is_uri(name) else os.path).exists(name):
            matches = sorted((tf.io.gfile if _is_uri(name) else glob).glob(name)) or [name]
        for path in matches:
            # In a bucket isdir takes two requests, before any is made for the next file.
            if not (is_in_bucket(path) and _is_image(path)) and _is_folder(path):
                yield from _below(path.rstrip("/"), left_out)
            else:
                yield path


def _below(folder: str, left_out: Counter[str]) -> Iterator[str]:
    for name in sorted((tf.io.gfile if _is_uri(folder) else os).listdir(folder)):
        path = f"{folder}/{name.rstrip('/')}"
        if name.startswith("."):  # what file managers leave behind
            continue
        if not _is_uri(folder) and _is_special(path):
            left_out[os.path.splitext(name)[1]] += 1
        elif _is_image(name):  # asked first, for the same reason
            yield path
        elif name.endswith("/") or _is_folder(path):
            yield from _below(path, left_out)
        else:
            left_out[os.path.splitext(name)[1]] += 1


def _is_uri(path: str) -> bool:
    """Returns whether a path is left to TensorFlow, which loses all of a local folder that has a name not in UTF-8."""
    return "://" in path


def _is_folder(path: str) -> bool:
    return bool((tf.io.gfile if _is_uri(path) else os.path).isdir(path))


def _is_special(path: str) -> bool:
    """Returns whether a path is that of a pipe or a device, which would be waited for."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _is_image(name: str) -> bool:
    return name.lower().endswith(_ENDINGS)


def read(path: str) -> bytes | ValueError:
    """Returns a file's bytes, or why it cannot be read."""
    try:
        path.encode()
    except UnicodeEncodeError:  # neither TensorFlow nor a line of JSON can have it
        return ValueError("the name is not UTF-8; rename the file")
    if not _is_uri(path) and _is_special(path):
        return ValueError("it is a pipe or a device; save it as a file")
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            if why := too_many_bytes(file.size()):
                return ValueError(why)
            content: bytes = file.read()
            return content
    except (OSError, tf.errors.OpError) as error:
        return ValueError(reason(error) if isinstance(error, tf.errors.OpError) else str(error))
