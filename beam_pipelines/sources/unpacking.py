"""Inputs whose images cannot be read one by one, copied once to where they can: compressed archives, Parquet.

    flowers.tar.gz ──decompress──▶ OUTPUT/.jpeg2tpu/images-HASH, a tar, whose members are read in place

The copy is a working file of the conversion, removed at its end. Its name is a hash of path, size and version of the
input, so that a conversion that is resumed finds it. It needs as much space as the images again.
"""

from __future__ import annotations

import bz2
import collections
import contextlib
import gzip
import hashlib
import json
import lzma
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import zstandard

from beam_pipelines import storage
from beam_pipelines.options import WORK_NAME

NOWHERE = "/dev/null/no-output"  # output of options for rows that are not converted, so that nothing can be unpacked
_PIECE_BYTES = 1 << 20
_ZSTD_BYTES = 1 << 12  # of a compressed file; 4 bytes of it may be 128 KiB in memory
# Images hardly become smaller, labels a tenth. What unpacks to more does not hold images, but is meant to fill disks.
_MOST_TIMES = 100
_ALWAYS_ALLOWED = 1 << 30


def inflates_too_much(num_bytes: int, packed_bytes: int, allowed: int | None = None) -> str:
    """Returns a message if so many bytes are more than images can be in a file of `packed_bytes`; else ""."""
    if num_bytes <= max(_ALWAYS_ALLOWED if allowed is None else allowed, _MOST_TIMES * packed_bytes):
        return ""
    return f"decompresses to more than {_MOST_TIMES} times its size, as no images do"


# Of this process, by output: decompressed bytes, by path, of files that exceed _MOST_TIMES their size.
_excess = collections.defaultdict[str, dict[str, int]](dict)
_excess_lock = threading.Lock()


def limited(uri: str, output: str, write: Callable[[bytes], Any]) -> Callable[[bytes, int], None]:
    """Returns a function (piece, minimum of bytes to count for it) that writes what a file inflates to.

    It raises ValueError for more than inflates_too_much() allows. All files that this process unpacks for an output
    share the allowance _ALWAYS_ALLOWED, as there may be a thousand small files.
    """
    packed_bytes, num_bytes = storage.file_bytes(uri), 0
    with _excess_lock:
        _excess[output][uri] = 0  # after a failure it is unpacked again

    def add(piece: bytes, least: int) -> None:
        nonlocal num_bytes
        num_bytes += max(len(piece), least)
        if num_bytes > _MOST_TIMES * packed_bytes:
            with _excess_lock:
                _excess[output][uri] = num_bytes
                total = sum(_excess[output].values())
            if why := inflates_too_much(total, packed_bytes):
                raise ValueError(f"{uri!r} {why}; decompress it first if you trust it")
        write(piece)

    return add


def _read_by(opened: Callable[[IO[bytes]], Any]) -> Callable[[IO[bytes]], Iterator[bytes]]:
    def pieces(file: IO[bytes]) -> Iterator[bytes]:
        with contextlib.closing(opened(file)) as content:
            while piece := content.read(_PIECE_BYTES):
                yield piece

    return pieces


def _read_zstd(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the content of all frames; unlike zstandard's own readers, it raises EOFError if the last is cut off."""
    packed, frame = b"", None
    while packed := packed or file.read(_ZSTD_BYTES):
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(packed)
        packed = frame.unused_data
        frame = None if frame.eof else frame
    if frame:
        raise EOFError("its last frame is cut off")


_KINDS = {
    b"\x1f\x8b": _read_by(gzip.open),
    b"BZh": _read_by(bz2.open),
    b"\xfd7zXZ": _read_by(lzma.open),
    b"\x28\xb5\x2f\xfd": _read_zstd,
}


def decompressed(uri: str, output: str) -> str:
    """Returns the path of the decompressed content of a file; of a file that is not compressed, its own.

    Args:
      uri: The file: gzip, bzip2, xz or zstd.
      output: Output of the conversion.

    Raises:
      ValueError: It is damaged, decompresses to more than 100 times its size, or there is no output.
    """
    with storage.open_headers(uri) as file:
        begin = file.read(8)
    read = next((read for magic, read in _KINDS.items() if begin.startswith(magic)), None)
    if not read:
        return uri

    def write(copy: IO[bytes]) -> None:
        with storage.open_file(uri) as file:
            add = limited(uri, output, copy.write)
            for piece in read(file):
                add(piece, 0)

    try:
        return unpacked(uri, output, write)
    except (EOFError, zlib.error, lzma.LZMAError, OSError, zstandard.ZstdError) as error:
        if storage.is_failure(error):
            raise
        raise ValueError(f"{uri!r} is not a complete compressed file: {error}; copy it again") from error


def unpacked(uri: str, output: str, write: Callable[[IO[bytes]], None]) -> str:
    """Returns the path of a copy of a file in another form, which is written unless it is there.

    Args:
      uri: The file.
      output: Output of the conversion.
      write: Writes the copy to a file.

    Raises:
      ValueError: There is no output.
    """
    if output == NOWHERE:
        raise ValueError(
            f"{uri!r} must be unpacked before its images can be read one by one, next to the dataset that is made from "
            "them: ListInputs(…, output=OUTPUT); or unpack it first"
        )
    num_bytes = storage.file_bytes(uri)
    _, version = storage.look(storage.slice_uri(uri, 0, 0))  # of a complete local file, only the size is compared
    digest = hashlib.sha256(json.dumps([uri, num_bytes, version]).encode()).hexdigest()
    path = f"{output}/{WORK_NAME}/images-{digest[:32]}"
    if not storage.exists(path):
        # Of two workers that write it at the same time, the first is right: a second one would have another version.
        with contextlib.suppress(FileExistsError), storage.create(path, new=True) as copy:
            write(copy)
    return path
