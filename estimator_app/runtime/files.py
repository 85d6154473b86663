"""Files of a run, wherever they are, without TensorFlow; errors are OSError, and writes are atomic.

local path  ──▶ local_files.py        content ──▶ a new file in the folder of PATH ──rename──▶ PATH
gs://       ──▶ Google's client       content ──upload──▶ PATH, which becomes visible when it is complete
other URIs  ──▶ tensorflow_files.py   as the one or the other

In a process that has imported TensorFlow, gs:// is reached through TensorFlow, too: it caches the sizes of objects that
it has seen, and must see what is written. It is also what TensorFlow's checkpoints take, with the same settings.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
import uuid
from collections.abc import Iterator
from typing import IO, Protocol, cast

from estimator_app.runtime import local_files
from tpu_input.command_line.distribution import needing_extras
from tpu_input.command_line.paths import is_in_bucket as is_in_bucket
from tpu_input.storage.byte_ranges import Unavailable as Unavailable

# Maximum size of a text file, enough for half a million evaluations in history.csv. A sparse file takes no disk space,
# but would take memory when it is read.
_TEXT_BYTES = 1 << 26


class _Place(Protocol):
    """Functions of a place; errors are OSError. The functions of this module with the same names document them."""

    def exists(self, path: str) -> bool: ...
    def is_folder(self, path: str) -> bool: ...
    def num_bytes(self, path: str) -> int: ...
    def names(self, path: str) -> list[str]: ...
    def matches(self, pattern: str) -> list[str]: ...
    def read_bytes(self, path: str, start: int = 0, num_bytes: int | None = None) -> bytes: ...
    def write_bytes(self, path: str, content: bytes) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_folder(self, path: str) -> None: ...
    def make_folder(self, path: str) -> None: ...
    def paths_below(self, path: str) -> Iterator[str]: ...


def _place(path: str) -> _Place:
    """Returns the module with the functions for a path; imported on first use."""
    if "://" not in path:
        return cast(_Place, local_files)
    if _is_by_google(path):
        from tpu_input.storage import objects

        return cast(_Place, objects)
    with needing_extras(f"reading {path!r}"):
        from estimator_app.runtime import tensorflow_files

    return cast(_Place, tensorflow_files)


def _is_by_google(path: str) -> bool:
    return path.startswith("gs://") and not sys.modules.get("tensorflow")


def exists(path: str) -> bool:
    """Returns whether there is a file or a folder at a path."""
    return _place(path).exists(path)


def is_folder(path: str) -> bool:
    """Returns whether there is a folder at a path."""
    return _place(path).is_folder(path)


def num_bytes(path: str) -> int:
    """Returns the size of a file.

    Raises:
      FileNotFoundError: The file does not exist.
      OSError: It cannot be read; Unavailable if a later attempt may succeed.
    """
    return _place(path).num_bytes(path)


def read_bytes(path: str, start: int = 0, num_bytes: int | None = None) -> bytes:
    """Returns `num_bytes` bytes of a file from byte `start` on, fewer at its end; None returns all.

    Raises:
      FileNotFoundError: The file does not exist.
      OSError: It cannot be read; Unavailable if a later attempt may succeed.
      ValueError: It is a named pipe, a device or a socket.
    """
    return _place(path).read_bytes(path, start, num_bytes)


def read_text(path: str) -> str:
    """Returns the content of a text file.

    Raises:
      FileNotFoundError: The file does not exist.
      OSError: It cannot be read; Unavailable if a later attempt may succeed.
      ValueError: It is larger than any text file of a run can be, not UTF-8, or a named pipe, a device or a socket.
    """
    if (size := num_bytes(path)) > _TEXT_BYTES:
        raise ValueError(f"{path!r} has {size:,} bytes, more than any file of a run can have; remove it")
    return read_bytes(path).decode()


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
    if match := re.search(r"[\[\\]", path):
        raise ValueError(
            f"{path!r} has {match[0]!r} in it, which TensorFlow takes for a part of a pattern: it could not read a "
            "checkpoint back from there; choose a path without [ and \\"
        )


def check_plain(folder: str, recursive: bool = False, beginning: str = "") -> None:
    """Checks that a folder from an untrusted source holds only files and folders, or links to files and folders.

    Must be called before anything in the folder is opened. URIs pass, as they can hold nothing else, and so do broken
    links, which cannot be opened.

    Args:
      folder: Path or URI.
      recursive: Whether to check subfolders recursively. The entries of a linked folder are checked too, but not its
        subfolders.
      beginning: Prefix of the names to check; "" for all.

    Raises:
      ValueError: It holds a named pipe, a device or a socket.
    """
    for path in _below(folder, recursive) if "://" not in folder else ():
        if not os.path.basename(path).startswith(beginning):
            continue
        with contextlib.suppress(OSError):
            local_files.check_plain(path)


def is_without_links(folder: str) -> bool:
    """Returns whether everything below a folder is a regular file or folder: no symbolic links, no special files."""
    if "://" in folder:
        return True
    return all(stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR) for path in _below(folder, True))


def _below(folder: str, recursive: bool) -> Iterator[str]:
    """Yields the paths of a local folder's entries, recursively if `recursive`; nothing if there is no such folder."""
    folders = [(folder, recursive)]  # no recursive calls: folders may be nested deeper than Python's recursion limit
    while folders:
        folder, recursive = folders.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                yield entry.path
                if recursive and entry.is_dir():
                    folders.append((entry.path, not entry.is_symlink()))


def write(path: str, content: str | bytes) -> None:
    """Writes a file atomically: readers see either the old content or all of the new content.

    Raises:
      OSError: The file cannot be written.
    """
    try:
        _place(path).write_bytes(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise OSError(f"cannot write {path!r}: {reason(error)}") from error


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
        temporary = f"{scratch}/.{name}.{uuid.uuid4().hex}.tmp"
        try:
            with open(temporary, "xb") as file:
                yield file
            if "://" not in path:
                os.replace(temporary, path)
                return
            copy(temporary, path)
        except OSError as error:
            raise OSError(f"cannot write {path!r}: {reason(error)}") from error
        finally:
            with contextlib.suppress(OSError):  # exists only if it was not renamed
                os.unlink(temporary)


def make_folder(path: str) -> None:
    """Creates a folder, unless it exists.

    Raises:
      OSError: It cannot be created.
    """
    try:
        _place(path).make_folder(path)
    except OSError as error:
        raise OSError(f"cannot write to {path!r}: {reason(error)}") from error


def why_not_writable(path: str) -> str:
    """Returns why no file of a run can be written to a folder that may not exist yet; "" if one can.

    Writes a file and removes it: into the folder, or if it does not exist, into the nearest one above it.
    """
    folder = path
    while not is_in_bucket(folder) and not os.path.lexists(folder) and folder != "/":
        folder = os.path.dirname(folder)
    probe, place = f"{folder}/.jpeg2tpu-{uuid.uuid4().hex}", _place(folder)
    try:
        place.write_bytes(probe, b"removed at once")
        place.remove(probe)
    except OSError as error:
        return reason(error)
    return ""


def copy(source: str, target: str) -> None:
    """Copies a file; an existing one is replaced. A copy whose target is a URI is atomic.

    Raises:
      OSError: It cannot be read or written; Unavailable if a later attempt may succeed.
    """
    uris = [path for path in (source, target) if "://" in path]
    if not uris:
        shutil.copyfile(source, target)
    elif all(map(_is_by_google, uris)):
        from tpu_input.storage import objects

        objects.copy(source, target)
    else:
        from estimator_app.runtime import tensorflow_files

        tensorflow_files.copy(source, target)


def copy_folder(folder: str, copied: str, last: str) -> None:
    """Copies a folder atomically, by renaming a temporary copy.

    In a bucket, copies the file `last` after all others instead: if it exists, the copy is complete.

    Raises:
      OSError: A file cannot be written.
    """
    destination = copied if is_in_bucket(copied) else "{}/temp-{}".format(*copied.rsplit("/", 1))
    for path in sorted(_place(folder).paths_below(folder), key=lambda path: path == f"{folder}/{last}"):
        target = destination + path.removeprefix(folder)
        if destination != copied:
            _place(destination).make_folder(target.rpartition("/")[0])
        copy(path, target)
    if destination != copied:
        rename(destination, copied)


def rename(source: str, target: str) -> None:
    """Renames a file or folder of a file system; a bucket has copies only."""
    if "://" in source:
        from estimator_app.runtime import tensorflow_files

        tensorflow_files.rename(source, target)
    else:
        os.rename(source, target)


def remove(path: str) -> None:
    """Removes a file.

    Raises:
      FileNotFoundError: There is none.
      OSError: It cannot be removed.
    """
    _place(path).remove(path)


def remove_folder(path: str) -> None:
    """Removes a folder recursively; links in it are removed, but not their targets."""
    _place(path).remove_folder(path)


def reason(error: OSError) -> str:
    """Returns the reason in an error about a file, without the path at its beginning."""
    if error.strerror:
        return error.strerror
    message = str(error)
    return message.partition(": ")[2] if message.startswith("gs://") else message.rpartition("; ")[2]


def names(path: str) -> list[str]:
    """Returns the sorted names of a folder's entries; [] when there is no such folder."""
    return sorted(name.rstrip("/") for name in entries(path)) if is_folder(path) else []


def entries(path: str) -> list[str]:
    """Returns the names of a folder's entries, in any order; in a bucket, folders' names end with a slash.

    Raises:
      OSError: The folder cannot be listed.
    """
    return _place(path).names(path)


def matches(pattern: str) -> list[str]:
    """Returns the paths that match a pattern with *, ? or [], sorted."""
    return sorted(_place(pattern).matches(pattern))
