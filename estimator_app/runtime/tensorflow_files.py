"""Files of TensorFlow's file systems, such as s3:// and hdfs://, with the functions that files.py has for every place.

TensorFlow's errors become OSError: FileNotFoundError, and Unavailable where a later attempt may succeed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import cast

import tensorflow as tf

from tpu_input.command_line.paths import is_in_bucket
from tpu_input.storage.byte_ranges import Unavailable
from tpu_input.storage.gcs_filesystem import in_words


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    unavailable = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
    try:
        yield
    except tf.errors.OpError as error:
        message = in_words(str(error.message))
        if isinstance(error, tf.errors.NotFoundError):
            raise FileNotFoundError(message) from error
        raise (Unavailable if isinstance(error, unavailable) else OSError)(message) from error


exists = _errors()(tf.io.gfile.exists)
is_folder = tf.io.gfile.isdir
names = _errors()(tf.io.gfile.listdir)
matches = _errors()(tf.io.gfile.glob)
rename = _errors()(tf.io.gfile.rename)
remove = _errors()(tf.io.gfile.remove)
remove_folder = _errors()(tf.io.gfile.rmtree)


def num_bytes(path: str) -> int:
    """Returns the size of a file."""
    with _errors():
        return int(tf.io.gfile.stat(path).length)


def read_bytes(path: str, start: int = 0, num_bytes: int | None = None) -> bytes:
    """Returns `num_bytes` bytes of a file from byte `start` on, fewer at its end; None returns all."""
    with _errors(), tf.io.gfile.GFile(path, "rb") as file:
        if start:
            file.seek(start)
        return cast(bytes, file.read(-1 if num_bytes is None else num_bytes))


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file atomically: an object of a store appears when it is complete, another file is renamed."""
    with _errors(), _atomic(path) as temporary, tf.io.gfile.GFile(temporary, "wb") as file:
        file.write(content)


def copy(source: str, target: str) -> None:
    """Copies a file between any two places that TensorFlow knows, atomically as write_bytes()."""
    with _errors(), _atomic(target) as temporary:
        tf.io.gfile.copy(source, temporary, overwrite=True)


@contextlib.contextmanager
def _atomic(path: str) -> Iterator[str]:
    folder, _, name = path.rpartition("/")
    temporary = path if is_in_bucket(path) else f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
    yield temporary
    if temporary != path:
        tf.io.gfile.rename(temporary, path, overwrite=True)


def make_folder(path: str) -> None:
    """Creates a folder, unless it exists."""
    with _errors():
        if is_in_bucket(path):
            # makedirs() also requests the bucket itself, which needs one more permission and never ends if the bucket
            # is missing.
            with contextlib.suppress(tf.errors.AlreadyExistsError):
                tf.io.gfile.mkdir(path)
        else:
            tf.io.gfile.makedirs(path)


def paths_below(path: str) -> Iterator[str]:
    """Yields the paths of all files below a folder."""
    with _errors():
        for folder, _, file_names in tf.io.gfile.walk(path):
            yield from (f"{folder.rstrip('/')}/{name}" for name in file_names)
