"""Files of this machine's file systems, with the functions that files.py has for every place."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import stat
import uuid
from collections.abc import Iterator

# What is neither a file nor a folder: opening it may block forever, or reading it may never end.
_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

exists = os.path.exists
is_folder = os.path.isdir
num_bytes = os.path.getsize
names = os.listdir
matches = glob.glob
remove = os.unlink
remove_folder = shutil.rmtree  # removes links in the folder, but not their targets


def check_plain(path: str) -> None:
    """Raises ValueError if a path, or what it links to, is a named pipe, a device or a socket."""
    if kind := _SPECIAL.get(stat.S_IFMT(os.stat(path).st_mode)):
        raise ValueError(f"{path!r} is {kind}, not a file or a folder; remove it")


def read_bytes(path: str, start: int = 0, num_bytes: int | None = None) -> bytes:
    """Returns `num_bytes` bytes of a file from byte `start` on, fewer at its end; None returns all.

    Raises:
      ValueError: As check_plain().
    """
    check_plain(path)
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(-1 if num_bytes is None else num_bytes)


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file atomically, first under an unpredictable temporary name that must not exist yet (O_EXCL).

    A file or link that was placed at a predictable name would be overwritten, wherever it points, also a broken one. A
    process that is killed leaves a temporary file with a hidden name.
    """
    name = path.rpartition("/")[2]
    temporary = f"{path.removesuffix(name)}.{name}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # exists only if the rename failed
            os.unlink(temporary)


def make_folder(path: str) -> None:
    """Creates a folder with those above it, unless it exists."""
    os.makedirs(path, exist_ok=True)


def paths_below(path: str) -> Iterator[str]:
    """Yields the paths of all files below a folder."""
    for folder, _, file_names in os.walk(path):
        yield from (f"{folder}/{name}" for name in file_names)
