"""Members of .zip archives, read in place: the name of each member and its byte range, stored or deflated.

    end of the archive ──zipfile──▶ its directory ──header of each member──▶ Member(path, FILE#deflate=BEGIN-END:BYTES)

An archive may come from an untrusted source. Ranges lie within the archive, each header is where the directory says,
and what is inflated of a member is limited to the size that the directory states, which is the size of the input.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import stat
import struct
import zipfile
from collections.abc import Iterator
from typing import IO

from beam_pipelines import storage
from beam_pipelines.sources.archives import Member, fault_of_name
from beam_pipelines.sources.unpacking import inflates_too_much

# Where \ is not allowed in a file name: FAT, NTFS (twice), VFAT; APPNOTE 4.4.2.2
_WINDOWS_SYSTEMS = {0, 10, 11, 14}
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, …, bytes of the name, bytes of the extra field: APPNOTE 4.3.7
_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED, _UTF8 = 1, 1 << 11  # bits of the flags
_FAULTS = (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, LookupError, ArithmeticError)
_MEMBER_BYTES = 256 << 20  # to which any member may inflate: 50 megapixels of a BMP of one color have 200 MB


def members(uri: str) -> Iterator[Member]:
    """Yields every file of a .zip, in the order of its directory.

    Raises:
      ValueError: It is not a complete .zip.
    """
    _, version = storage.look(storage.slice_uri(uri, 0, 0))
    try:
        with storage.open_headers(uri) as file:
            end = file.seek(0, 2)
            with zipfile.ZipFile(file) as archive:
                _check_apart(archive.infolist())
                for number, info in enumerate(archive.infolist()):
                    if not _decoded(info).endswith("/"):
                        yield _member(uri, file, end, info, number)._replace(version=version)
    except (*_FAULTS, OSError) as error:
        # A damaged offset is negative, which no seek takes: EINVAL. Else, the storage failed.
        if not isinstance(error, _FAULTS) and error.errno != errno.EINVAL:
            raise
        raise ValueError(f"{uri!r} is not a complete .zip archive: {error}; copy it again") from error


def _check_apart(infos: list[zipfile.ZipInfo]) -> None:
    """Raises zipfile.BadZipFile if members overlap: a few bytes would be inflated for each of them."""
    end, before = 0, ""
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise zipfile.BadZipFile(f"its members {before[-200:]!r} and {info.filename[-200:]!r} overlap")
        end, before = info.header_offset + _LOCAL_HEADER.size + info.compress_size, info.filename


def _member(uri: str, file: IO[bytes], end: int, info: zipfile.ZipInfo, number: int) -> Member:
    name = posixpath.normpath(_decoded(info))
    member = Member(name, f"{uri}#{name}", 0, -number, fault_of_name(name))
    if stat.S_ISLNK(info.external_attr >> 16):
        return member._replace(uri=f"{uri}#{name} (a link)", num_bytes=-1)
    if info.flag_bits & _ENCRYPTED:
        return member._replace(fault="it is encrypted; unpack the archive with its password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        kind = zipfile.compressor_names.get(info.compress_type, "an unknown method")  # type: ignore[attr-defined]
        return member._replace(fault=f"it is compressed with {kind}; unpack the archive, or pack it with deflate")
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(_SIGNATURE):
        raise zipfile.BadZipFile(f"there is no member at byte {info.header_offset}, where {name[-200:]!r} should be")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    begin = info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if begin + info.compress_size > end:
        raise zipfile.BadZipFile(
            f"{name[-200:]!r} claims to have {info.compress_size} bytes, but only {end - begin} are left"
        )
    if info.compress_type == zipfile.ZIP_STORED:
        if info.file_size != info.compress_size:
            raise zipfile.BadZipFile(f"{name[-200:]!r} has two sizes, {info.file_size} and {info.compress_size} bytes")
        return member._replace(uri=storage.slice_uri(uri, begin, info.file_size), num_bytes=info.file_size)
    if why := inflates_too_much(info.file_size, info.compress_size, _MEMBER_BYTES):
        return member._replace(fault=f"it {why}")
    packed = storage.deflate_uri(uri, begin, info.compress_size, info.file_size)
    return member._replace(uri=packed, num_bytes=info.file_size)


def _decoded(info: zipfile.ZipInfo) -> str:
    """Returns the name of a member, with / between folders.

    macOS writes names in UTF-8 without the flag that says so, and programs on Windows \\ between folders.
    """
    name = info.filename
    if not info.flag_bits & _UTF8:
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode()
    return name.replace("\\", "/") if info.create_system in _WINDOWS_SYSTEMS else name
