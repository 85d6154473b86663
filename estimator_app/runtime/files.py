"""Reading and writing of the files of a run; writes are atomic:

local        content ──▶ a new file in the folder of PATH ──rename──▶ PATH
in a bucket  content ──upload──▶ PATH, which becomes visible when it is complete; a rename would copy it
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from typing import IO

import tensorflow as tf

from tpu_input.storage.gcs_filesystem import in_words

# Object stores: a file becomes visible only when it is complete, and folders are only name prefixes.
_OBJECT_STORES = ("gs://", "s3://")
# Maximum size of a text file, enough for half a million evaluations in history.csv. A sparse file takes no disk space,
# but would take memory when it is read.
_TEXT_BYTES = 1 << 26
# Entries of a folder that are neither files nor folders: opening one may block forever, or reading it may never end.
_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_in_bucket(path: str) -> bool:
    """Returns whether a path is a URI of an object store."""
    return path.startswith(_OBJECT_STORES)


def read_text(path: str) -> str:
    """Returns the content of a text file.

    Raises:
      tf.errors.NotFoundError: The file does not exist.
      ValueError: It is larger than any text file of a run can be.
    """
    with tf.io.gfile.GFile(path) as file:
        if (num_bytes := file.size()) > _TEXT_BYTES:
            raise ValueError(f"{path!r} has {num_bytes:,} bytes, more than any file of a run can have; remove it")
        return str(file.read())


def is_plain_path(path: object) -> bool:
    """Returns whether `path` is printable, absolute or a URI, and has no "." or ".." and no empty component."""
    if not isinstance(path, str) or not path.isprintable():
        return False
    scheme, separator, rest = path.rpartition("://")
    parts = rest.split("/") if separator else rest[1:].split("/")
    return (bool(scheme) or path.startswith("/")) and not {"", ".", ".."} & set(parts)


def check_no_pattern(path: str) -> None:
    """Checks that TensorFlow can read a checkpoint back from a folder: it takes the path for a pattern of names.

    Raises:
      ValueError: The path has [ or a backslash in it, with which a pattern does not match itself; * and ? do.
    """
    if found := re.search(r"[\[\\]", path):
        raise ValueError(
            f"{path!r} has {found[0]!r} in it, which TensorFlow takes for a part of a pattern: it could not read a "
            "checkpoint back from there; choose a path without [ and \\"
        )


def check_plain(folder: str, whole: bool = False, beginning: str = "") -> None:
    """Checks that a folder from an untrusted source holds only files and folders, or links to files and folders.

    Must be called before anything in the folder is opened. URIs pass, as they can hold nothing else, and so do broken
    links, which cannot be opened.

    Args:
      folder: Path or URI.
      whole: Whether to check subfolders recursively. The entries of a linked folder are checked too, but not its
        subfolders.
      beginning: Prefix of the names to check; "" for all.

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
    """Returns whether everything below a folder is a regular file or folder: no symbolic links, no special files."""
    if "://" in folder:
        return True
    return all(stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR) for path in _below(folder, True))


def _below(folder: str, whole: bool) -> Iterator[str]:
    """Yields the paths of a local folder's entries, recursively if `whole`; nothing when there is no such folder."""
    folders = [(folder, whole)]  # no recursive calls: folders may be nested deeper than Python's recursion limit
    while folders:
        folder, whole = folders.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                yield entry.path
                if whole and entry.is_dir():
                    folders.append((entry.path, not entry.is_symlink()))


def write(path: str, content: str | bytes) -> None:
    """Writes a file atomically: readers see either the old content or all of the new content.

    A local file is first written under an unpredictable temporary name: a file or link that was placed at a predictable
    name would be overwritten, wherever it points. A process that is killed leaves a temporary file with a hidden name.

    Raises:
      OSError: The file cannot be written.
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
            with contextlib.suppress(OSError):  # exists only if the rename failed
                os.unlink(written)


def _write_new(path: str, content: bytes) -> None:
    """Writes a local file that must not exist yet, not even as a broken link (O_EXCL)."""
    with open(path, "xb") as file:
        file.write(content)


@contextlib.contextmanager
def writing(path: str, folder: str) -> Iterator[IO[bytes]]:
    """Opens a local file for writing, which becomes `path` atomically at the end; after an exception, there is none.

    Args:
      path: Path or URI of the file.
      folder: Folder on the same disk as a local `path`, in which the file lies until then; a process that is killed
        leaves it there under a hidden name. A file for a URI lies in a temporary folder, and is copied.

    Raises:
      OSError: The file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        name = path.rpartition("/")[2]
        scratch = stack.enter_context(tempfile.TemporaryDirectory()) if "://" in path else folder
        written = f"{scratch}/.{name}.{uuid.uuid4().hex}.tmp"
        try:
            with open(written, "xb") as file:
                yield file
            if "://" not in path:
                os.replace(written, path)
                return
            copied = path if is_in_bucket(path) else f"{path.removesuffix(name)}.{name}.{uuid.uuid4().hex}.tmp"
            tf.io.gfile.copy(written, copied, overwrite=True)
            if copied != path:
                tf.io.gfile.rename(copied, path, overwrite=True)
        except tf.errors.OpError as error:
            raise OSError(f"cannot write {path!r}: {reason(error)}") from error
        except OSError as error:
            raise OSError(f"cannot write {path!r}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):  # exists only if it was not renamed
                os.unlink(written)


def make_folder(path: str) -> None:
    """Creates a folder, unless it exists.

    Raises:
      OSError: It cannot be created.
    """
    try:
        if is_in_bucket(path):
            # makedirs() also requests the bucket itself, which needs one more permission and never ends if the bucket
            # is missing.
            with contextlib.suppress(tf.errors.AlreadyExistsError):
                tf.io.gfile.mkdir(path)
        else:
            tf.io.gfile.makedirs(path)
    except tf.errors.OpError as error:
        raise OSError(f"cannot write to {path!r}: {reason(error)}") from error


def why_not_writable(path: str) -> str:
    """Returns why no file of a run can be written to a folder that may not exist yet; "" if one can.

    Writes a file and removes it: into the folder, or if it does not exist, into the nearest one above it.
    """
    folder = path
    while not is_in_bucket(folder) and not os.path.lexists(folder) and folder != "/":
        folder = os.path.dirname(folder)
    probe = f"{folder}/.jpeg2tpu-{uuid.uuid4().hex}"
    try:
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("removed at once")
        tf.io.gfile.remove(probe)
    except tf.errors.OpError as error:
        return reason(error)
    return ""


def copy_folder(folder: str, copy: str, last: str) -> None:
    """Copies a folder atomically, by renaming a temporary copy.

    In a bucket, copies the file `last` after all others instead: if it exists, the copy is complete.

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
    """Removes a folder recursively; links in it are removed, but not their targets."""
    if "://" in path:
        tf.io.gfile.rmtree(path)
    else:
        shutil.rmtree(path)


def reason(error: tf.errors.OpError) -> str:
    """Returns the reason in the message of a TensorFlow error about a file, without the path at its beginning."""
    message = str(error.message)
    said = in_words(message)
    if said == message:
        return message.rpartition("; ")[2]
    return said.partition(": ")[2] if said.startswith("gs://") else said


def names(path: str) -> list[str]:
    """Returns the sorted names of a folder's entries; [] when there is no such folder."""
    return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(path)) if tf.io.gfile.isdir(path) else []
