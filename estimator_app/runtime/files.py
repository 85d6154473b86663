"""Files of a run, each written whole or not at all:

here         content ──▶ a new file beside PATH ──rename──▶ PATH
in a bucket  content ──upload──▶ PATH, which is there when all of it is; a rename would copy it
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from typing import Any, NoReturn

import tensorflow as tf

from tpu_input.pipeline.gcs_filesystem import in_words

# Where a file appears when it is complete, and folders are but names.
_OBJECT_STORES = ("gs://", "s3://")
_TEXT_BYTES = 1 << 26  # half a million evaluations in history.csv; a file with holes takes no disk, but memory
# What may lie in a folder that is neither a file nor a folder: to open it may take forever, or give bytes without end.
_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_in_bucket(path: str) -> bool:
    """Returns whether a path is an object store's."""
    return path.startswith(_OBJECT_STORES)


def read_text(path: str) -> str:
    """Returns a file's text.

    Raises:
      tf.errors.NotFoundError: There is none.
      ValueError: It is larger than any text of a run.
    """
    with tf.io.gfile.GFile(path) as file:
        if (num_bytes := file.size()) > _TEXT_BYTES:
            raise ValueError(f"{path!r} has {num_bytes:,} bytes, which no file of a run has; remove it")
        return str(file.read())


def parse_json(text: str) -> Any:
    """Returns what a file of a run says, which may come from a stranger.

    Raises:
      ValueError: It is no JSON, is nested without end, or has numbers that are none.
    """

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def is_plain_path(path: object) -> bool:
    """Returns whether `path` is absolute or a URI, and leads through no "." or ".."."""
    if not isinstance(path, str) or not path.isprintable():
        return False
    scheme, separator, rest = path.rpartition("://")
    parts = rest.split("/") if separator else rest[1:].split("/")
    return (bool(scheme) or path.startswith("/")) and not {"", ".", ".."} & set(parts)


def check_plain(folder: str, whole: bool = False, beginning: str = "") -> None:
    """Checks that a folder of a stranger's holds nothing but files and folders, be they links to such.

    Call it before anything of the folder is opened. A folder that is not local has nothing else, and a name that leads
    nowhere cannot be opened: both pass.

    Args:
      folder: Path or URI.
      whole: Look also at all that lies below; of a folder that is a link, at what it holds, and no further.
      beginning: Look only at names that begin so.

    Raises:
      ValueError: It holds a named pipe, a device or a socket.
    """
    for path in _below(folder, whole) if "://" not in folder else ():
        if not os.path.basename(path).startswith(beginning):
            continue
        with contextlib.suppress(OSError):
            kind = _SPECIAL.get(stat.S_IFMT(os.stat(path).st_mode))
            if kind:
                raise ValueError(f"{path!r} is {kind}, not a file or a folder; remove it")


def is_without_links(folder: str) -> bool:
    """Returns whether all that lies below a folder is files and folders of its own: no link, nor anything else."""
    if "://" in folder:
        return True
    return all(stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR) for path in _below(folder, True))


def _below(folder: str, whole: bool) -> Iterator[str]:
    """Yields the paths of what a local folder holds; nothing when there is none."""
    folders = [(folder, whole)]  # no recursion: there may be more folders in folders than Python allows calls
    while folders:
        folder, whole = folders.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                yield entry.path
                if whole and entry.is_dir():
                    folders.append((entry.path, not entry.is_symlink()))


def write(path: str, content: str | bytes) -> None:
    """Writes a whole file, of which nobody ever reads half.

    Here it is written under a name that nobody can know before: a file or link that waits at a known name would be
    written over, wherever it leads. What a killed process leaves has a hidden name.

    Raises:
      OSError: It cannot be written.
    """
    name = path.rpartition("/")[2]
    written = path if is_in_bucket(path) else f"{path.removesuffix(name)}.{name}.{uuid.uuid4().hex}.tmp"
    try:
        if "://" not in path:
            _write_new(written, content.encode() if isinstance(content, str) else content)
            os.replace(written, path)
            return
        with tf.io.gfile.GFile(written, "w" if isinstance(content, str) else "wb") as file:
            file.write(content)
        if written != path:
            tf.io.gfile.rename(written, path, overwrite=True)
    except tf.errors.OpError as error:
        raise OSError(f"cannot write {path!r}: {reason(error)}") from error
    except OSError as error:
        raise OSError(f"cannot write {path!r}: {error.strerror}") from error
    finally:
        if "://" not in path:
            with contextlib.suppress(OSError):  # it is there only if it could not be renamed
                os.unlink(written)


def _write_new(path: str, content: bytes) -> None:
    """Writes a local file that must not be there yet, not even as a link (O_EXCL)."""
    with open(path, "xb") as file:
        file.write(content)


def make_folder(path: str) -> None:
    """Makes a folder, unless it is there.

    Raises:
      OSError: It cannot be made.
    """
    try:
        if is_in_bucket(path):
            # makedirs() asks for the bucket itself: it takes a permission more, and for a missing one has no end.
            with contextlib.suppress(tf.errors.AlreadyExistsError):
                tf.io.gfile.mkdir(path)
        else:
            tf.io.gfile.makedirs(path)
    except tf.errors.OpError as error:
        raise OSError(f"cannot write to {path!r}: {reason(error)}") from error


def copy_folder(folder: str, copy: str, last: str) -> None:
    """Copies a folder, which appears whole; in a bucket its file `last` comes last: where that is, all others are.

    Raises:
      tf.errors.OpError: A file cannot be written.
    """
    written = copy if is_in_bucket(copy) else "{}/temp-{}".format(*copy.rsplit("/", 1))
    found = [f"{parent.rstrip('/')}/{name}" for parent, _, names in tf.io.gfile.walk(folder) for name in names]
    for path in sorted(found, key=lambda path: path == f"{folder}/{last}"):
        if written != copy:
            tf.io.gfile.makedirs((written + path.removeprefix(folder)).rpartition("/")[0])
        tf.io.gfile.copy(path, written + path.removeprefix(folder), overwrite=True)
    if written != copy:
        tf.io.gfile.rename(written, copy)


def remove_folder(path: str) -> None:
    """Removes a folder and all it holds; links within it are removed, what they lead to is not."""
    if "://" in path:
        tf.io.gfile.rmtree(path)
    else:
        shutil.rmtree(path)


def reason(error: tf.errors.OpError) -> str:
    """Returns what an error of TensorFlow's says about a file, without the path that it begins with."""
    message = str(error.message)
    said = in_words(message)
    if said == message:
        return message.rpartition("; ")[2]
    return said.partition(": ")[2] if said.startswith("gs://") else said


def names(path: str) -> list[str]:
    """Returns what a folder holds, sorted; nothing when there is none."""
    return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(path)) if tf.io.gfile.isdir(path) else []
