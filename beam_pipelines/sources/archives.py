"""Members of .tar archives, read in place: the name of each member and its byte range in the archive.

An archive inside an archive counts as a folder, so ImageNet's tar of tars is read as synset folders.

An archive may come from an untrusted source, and tarfile does not validate the sizes in headers: it would read, or seek
over, as many bytes as a header claims. This module therefore never reads beyond the end of a tar, limits the size of
headers, and treats a member that claims more bytes than the archive has as an error of the archive, because the members
after it cannot be found.

Only headers are read, besides labels (with_content) and small members between headers that one request reads.
"""

from __future__ import annotations

import functools
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple, cast

from beam_pipelines import storage
from beam_pipelines.options import TAR

_MAX_DEPTH = 8  # levels of nested archives; ImageNet's has two
_MAX_HEADER_BYTES = 1 << 20  # per member, with its extended headers; the largest are attributes of 64 KiB each
_MAX_CONTENT_BYTES = 1 << 20  # of a label
_PIECE_BYTES = 1 << 20
# tarfile parses a number in an extended header in time quadratic in its digits, so numbers of 256 digits or more are
# refused. A file's name has at most 255 characters, a size 20 digits.
_ENDLESS_NUMBER = re.compile(rb"\d{256}")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Member(NamedTuple):
    """One file of an archive, or of a folder.

    Attributes:
      path: Path within its archive or folder.
      uri: URI of its bytes; "" for a file of a folder.
      num_bytes: Its size; -1 for a link whose target is not a file.
      number: Precedence among members with the same path: the smallest number counts, which the last member has.
      fault: Why it cannot be an input, or "".
      version: Version of the complete archive, or of the file, as returned by storage.look().
      lost_target: What a hard link names, if that is not a file before it in the archive; else "".
      is_archive: Whether it is, or may be, an archive whose members are still to be listed.
      content: Its bytes, where members() is asked for them.
    """

    path: str
    uri: str
    num_bytes: int
    number: int
    fault: str = ""
    version: int = 0
    lost_target: str = ""
    is_archive: bool = False
    content: bytes = b""


def without_ending(name: str) -> str:
    """Returns the name of an archive without its ending, of a tar or a compressed tar; "" if it has none."""
    match = TAR.fullmatch(name) if _is_ending_of_tar(name.rpartition(".")[2]) else None
    return match[1] if match else ""


@functools.lru_cache(maxsize=1 << 12)  # most files have one of a few
def _is_ending_of_tar(ending: str) -> bool:
    """Returns whether a name that ends with a dot and this may be a tar's."""
    return bool(TAR.fullmatch(f".{ending}") or TAR.fullmatch(f".tar.{ending}"))


def is_archive(uri: str) -> bool:
    """Returns whether a file is a tar, complete or not, or a compressed file, for which members() raises an error."""
    with storage.open_headers(uri) as file:
        block = file.read(tarfile.BLOCKSIZE)
    return is_header(block) or bool(_compression(block))


def members(
    uri: str,
    is_apart: Callable[[str], bool] = lambda name: False,
    with_content: Callable[[str], bool] = lambda name: False,
    name: str = "",
) -> Iterator[Member]:
    """Yields every file of a .tar.

    Args:
      uri: The archive, or one that lies in another, as its member.
      is_apart: Whether an archive in it, of this name, is yielded as it is, instead of its files.
      with_content: Whether the content of a file of this name is read, if it has at most 1 MiB.
      name: Name of the archive in messages; default: the URI.

    Raises:
      ValueError: It is not a complete tar, or is compressed.
    """
    inside = storage.byte_range(uri)
    archive, start, end = inside or (uri, 0, -1)
    try:
        with storage.open_headers(archive) as file:
            end = end if inside else file.seek(0, 2)
            _, version = storage.look(storage.slice_uri(archive, 0, 0))
            for member in _members(archive, file, start, end, 2 if inside else 1, is_apart):
                content = b""
                part = storage.byte_range(member.uri) if with_content(member.path) else None
                if part and member.num_bytes <= _MAX_CONTENT_BYTES:
                    file.seek(part[1])
                    content = file.read(member.num_bytes)
                yield member._replace(version=version, content=content)
    except tarfile.TarError as error:
        raise ValueError(f"{name or archive!r} is not a complete, uncompressed tar archive: {error}") from error


def _members(
    archive: str,
    file: IO[bytes],
    start: int,
    end: int,
    depth: int,
    is_apart: Callable[[str], bool] = lambda name: False,
) -> Iterator[Member]:
    """Yields the members of the tar in the bytes `start` to `end` of the archive."""
    links: set[str] = set()  # targets of hard links
    for member in _headers(file, start, end):
        name, first = posixpath.normpath(member.name), start + member.offset_data
        is_tar = name.endswith(".tar")
        if member.islnk():
            links.add(posixpath.normpath(member.linkname))
        elif member.isdir():
            pass
        elif member.issym():
            yield Member(name, f"{archive}#{name} (a link)", -1, -first, fault_of_name(name))
        elif not member.isfile() or member.issparse():
            is_sparse = member.issparse()
            fault = "it is a sparse file; pack it without --sparse" if is_sparse else "it is a device or a pipe"
            yield Member(name, f"{archive}#{name}", 0, -first, fault)
        elif is_tar and not is_apart(name):
            if depth == _MAX_DEPTH:
                raise tarfile.ReadError(f"{name[-200:]!r} is nested inside {depth} other archives; unpack some of them")
            for inner in _members(archive, file, first, first + member.size, depth + 1):
                yield inner._replace(path=f"{name[:-4]}/{inner.path}", fault=inner.fault or fault_of_name(name))
        else:
            uri = storage.slice_uri(archive, first, member.size)
            yield Member(name, uri, member.size, -first, fault_of_name(name), is_archive=is_tar)
    if links:
        yield from _linked(archive, file, start, end, links)


def _linked(archive: str, file: IO[bytes], start: int, end: int, targets: set[str]) -> Iterator[Member]:
    """Yields the hard links of a tar, each with the bytes of its target, which is a member before it.

    If the target is packed again after the link, the link keeps the bytes before it, as in what tar unpacks. The
    headers are read a second time, so that only the targets of links are held in memory.
    """
    spans: dict[str, tuple[int, int]] = {}  # name: (first byte, size)
    for member in _headers(file, start, end):
        name, offset = posixpath.normpath(member.name), start + member.offset_data
        span = (offset, member.size) if member.isfile() and not member.issparse() else None
        if member.islnk():
            span = spans.get(posixpath.normpath(member.linkname))
            if span:
                first, size = span
                yield Member(name, storage.slice_uri(archive, first, size), size, -offset, fault_of_name(name))
            else:
                uri = f"{archive}#{name} (a link)"
                yield Member(name, uri, -1, -offset, fault_of_name(name), lost_target=member.linkname)
        if name in targets and span:
            spans[name] = span
        elif name in targets and not member.isdir():
            spans.pop(name, None)  # a symbolic link, a device, … in its place


def fault_of_name(name: str) -> str:
    """Returns a message if the name of a member points outside the archive; else ""."""
    out = name.startswith("/") or name.partition("/")[0] == ".."
    return (
        "its name points outside the archive; pack the archive again from the folder above the classes" if out else ""
    )


def _headers(file: IO[bytes], start: int, end: int) -> Iterator[tarfile.TarInfo]:
    """Yields the members of the tar in these bytes; each lies completely within them.

    Raises:
      tarfile.TarError: It is not a tar, is truncated, continues after its end, or a header has an impossible value.
    """
    window = _Window(file, start, end)
    try:
        with tarfile.open(fileobj=cast(IO[bytes], window), mode="r:") as tar:
            last_offset = -1
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # or else a million headers stay in memory
                window.begin_member()
                has_bytes = member.isreg() and not member.issparse()
                member_end = max(tar.offset, member.offset_data + member.size * has_bytes)
                if member.size < 0 or tar.offset <= last_offset or member_end > end - start:
                    remaining = end - start - member.offset_data
                    raise tarfile.ReadError(
                        f"{member.name[-200:]!r} claims to have {member.size} bytes, but only {remaining} are left; "
                        "copy the archive again"
                    )
                last_offset = tar.offset
                yield member
                window.seek(tar.offset)  # or else tarfile reads a byte of the member to see that it is there
            _check_end(file, start + tar.offset, end)
    except (ValueError, ArithmeticError, LookupError, RecursionError) as error:  # e.g. a field that is not a number
        raise tarfile.ReadError(f"the headers at byte {start + window.tell()} cannot be read: {error}") from error


class _Window:
    """File object over the bytes of a file that contain a tar, from which tarfile reads headers of limited size."""

    def __init__(self, file: IO[bytes], start: int, end: int) -> None:
        self._file, self._start, self._num_bytes, self._position = file, start, end - start, 0
        self.begin_member()
        file.seek(start)
        if kind := _compression(file.read(min(tarfile.BLOCKSIZE, end - start))):
            raise tarfile.ReadError(f"it is compressed with {kind}; give it the ending of such a tar, as .tar.gz")

    def begin_member(self) -> None:
        """Resets the limit on the bytes of headers for the next member."""
        self._budget = _MAX_HEADER_BYTES

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int) -> int:
        self._position = offset
        return offset

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self._budget or self._position < 0:
            raise tarfile.ReadError(f"the header at byte {self._start + self._position} claims to have {size} bytes")
        self._budget -= size
        available = min(size, self._num_bytes - self._position)
        if available <= 0:
            return b""
        self._file.seek(self._start + self._position)
        data = self._file.read(available)
        if size > tarfile.BLOCKSIZE and _ENDLESS_NUMBER.search(data):
            raise tarfile.ReadError(
                f"the header at byte {self._start + self._position} contains a number with too many digits"
            )
        self._position += len(data)
        return data


def is_header(block: bytes) -> bool:
    """Returns whether a tar may begin with this block; a tar without members begins with the zeros of its end."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        return type(error).__name__ == "EOFHeaderError"
    return True


def _compression(block: bytes) -> str:
    """Returns the compression of a file that begins with this block; "" if it is not compressed."""
    kinds = [kind for magic, kind in _COMPRESSED.items() if block.startswith(magic)]
    return kinds[0] if kinds and not is_header(block) else ""


def _check_end(file: IO[bytes], offset: int, end: int) -> None:
    """Checks that a tar ends at `offset`, as tarfile takes any damaged header but the first as the end.

    Raises:
      tarfile.ReadError: There is no empty block at `offset`, or other bytes than zeros follow it.
    """
    file.seek(offset)
    remaining, is_end = end - offset, end - offset >= tarfile.BLOCKSIZE
    while is_end and remaining > 0:
        piece = file.read(min(_PIECE_BYTES, remaining))
        remaining -= len(piece)
        is_end = bool(piece) and piece == bytes(len(piece))
    if not is_end:
        raise tarfile.ReadError(
            f"byte {offset} is neither the start of a member nor the end of the archive; copy the archive again, or "
            "pack the files again if several tars were concatenated"
        )
