"""Checkpoints as one file of NumPy arrays, PATH.npz, which needs no framework to be read.

{"weights/stage1_conv1/kernel": array, …} ──write_arrays()──▶ PATH.npz ──ArrayReader──▶ the arrays, one at a time

An .npz file is a zip archive of .npy files. It is written without compression, which would gain little, and a file that
has any is refused: some bytes could then inflate to any size. Zip has a checksum of each array, which reading verifies.
"""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from estimator_app.runtime import files, local_files

Array = npt.NDArray[Any]
SUFFIX = ".npz"
_MEMBER = ".npy"
_format: Any = np.lib.format  # has no types


def write_arrays(path: str, arrays: Mapping[str, Array]) -> None:
    """Writes PATH.npz atomically; when it returns, a local file is on the disk, and not only in the system's memory.

    Raises:
      OSError: The file cannot be written.
    """
    folder = path.rpartition("/")[0]
    with files.writing(f"{path}{SUFFIX}", folder) as file:
        np.savez(file, **dict(arrays))
        file.flush()
        os.fsync(file.fileno())
    if "://" not in folder:  # the rename, too
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


class ArrayReader:
    """The arrays of PATH.npz by name, with the methods of TensorFlow's reader of checkpoints."""

    def __init__(self, path: str) -> None:
        """Reads the names.

        Args:
          path: Path or URI, without its ending.

        Raises:
          ValueError: It is not an archive of uncompressed arrays.
          OSError: It cannot be read.
        """
        source: str | IO[bytes] = f"{path}{SUFFIX}"
        if "://" in path:
            source = io.BytesIO(files.read_bytes(f"{path}{SUFFIX}"))
        else:
            local_files.check_plain(f"{path}{SUFFIX}")  # a named pipe would be waited for
        try:
            self._archive = zipfile.ZipFile(source)  # closed with this object
        except FileNotFoundError:
            raise
        except (zipfile.BadZipFile, OSError) as error:  # an OSError, where a place in the file is negative
            raise ValueError(str(error)) from error
        members = self._archive.infolist()
        if packed := [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]:
            raise ValueError(f"{packed[0]!r} in it is compressed, as no checkpoint of this program is")
        self._names = {member.filename.removesuffix(_MEMBER) for member in members}

    def has_tensor(self, name: str) -> bool:
        """Returns whether there is an array of this name."""
        return name in self._names

    def get_tensor(self, name: str) -> Array:
        """Returns an array; raises ValueError if its bytes have changed since they were written."""
        with self._member(name) as file:
            array: Array = _format.read_array(file, allow_pickle=False)
            if file.read(1):
                raise ValueError(f"{name!r} in it has more bytes than its shape says")
            return array

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Returns the shape of each array by name; raises ValueError as get_tensor()."""
        return {name: self._shape(name) for name in sorted(self._names)}

    def _shape(self, name: str) -> list[int]:
        with self._member(name) as file:
            read = {(1, 0): _format.read_array_header_1_0, (2, 0): _format.read_array_header_2_0}
            version = _format.read_magic(file)
            if version not in read:
                raise ValueError(f"{name!r} in it has an array of an unknown format")
            return list(read[version](file)[0])

    @contextlib.contextmanager
    def _member(self, name: str) -> Iterator[IO[bytes]]:
        """Opens an array's file in the archive; whatever is wrong with it is a ValueError."""
        try:
            with self._archive.open(f"{name}{_MEMBER}") as file:
                yield file
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError, KeyError) as error:
            raise ValueError(str(error) or "it is cut off") from error
