"""Files that are read in pieces, by one request each: of any store that returns a range of bytes.

(number of bytes, function of (start, end)) ──▶ in_pieces(): front to back; Headers: a few bytes here and there
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any, cast

PIECE_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 16  # buffer for reads of lines and headers, so that few of them call _Pieces.readinto()


class _Ranged(io.RawIOBase):
    """Raw file that holds one piece in memory, from `_start`; its position is `_position`."""

    def __init__(self, num_bytes: int, fetch: Callable[[int, int], bytes]) -> None:
        self._num_bytes, self._fetch = num_bytes, fetch
        self._position, self._start, self._piece = 0, 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = (0, self._position, self._num_bytes)[whence] + offset
        return self._position


class _Pieces(_Ranged):
    """File that is read in pieces of PIECE_BYTES; never requests bytes beyond its end, which would be an error."""

    def readinto(self, buffer: Any) -> int:
        if not self._start <= self._position < self._start + len(self._piece) and self._position < self._num_bytes:
            self._piece = self._fetch(self._position, min(self._position + PIECE_BYTES, self._num_bytes))
            self._start = self._position
        begin = self._position - self._start
        read = self._piece[begin : begin + len(buffer)]
        buffer[: len(read)] = read
        self._position += len(read)
        return len(read)


def in_pieces(num_bytes: int, fetch: Callable[[int, int], bytes]) -> IO[bytes]:
    """Returns a seekable, buffered file that is read in pieces of PIECE_BYTES.

    Args:
      num_bytes: Size of the file.
      fetch: Function of (start, end) that returns these bytes, without the one at `end`.
    """
    return cast(IO[bytes], io.BufferedReader(_Pieces(num_bytes, fetch), _BUFFER_BYTES))


# A request takes some 40 ms, in which a stream of 100 MB/s brings 4 MB: members of less than 1 MiB are read with their
# headers, as a request for each would take longer.
_HEADER_BYTES, _FIRST_BYTES, _NEAR_BYTES = 4 << 10, 64 << 10, 1 << 20


class Headers(_Ranged):
    """File for reads of a few bytes each, from front to back, such as the headers of an archive.

    One request takes 4 KiB where 1 MiB or more was skipped, else 64 KiB; and twice as many as the one before, up to
    PIECE_BYTES, while there is a header at least every 1 MiB. So large members of an archive are skipped, and small
    ones do not take a request each.
    """

    def __init__(self, num_bytes: int, fetch: Callable[[int, int], bytes]) -> None:
        super().__init__(num_bytes, fetch)
        self._ahead, self._num_places, self._end = _HEADER_BYTES, 0, -1

    def read(self, size: int = -1) -> bytes:
        end = self._num_bytes if size < 0 else min(self._position + size, self._num_bytes)
        if self._position >= end:
            return b""
        if self._position < self._start or end > self._start + len(self._piece):
            self._choose_ahead()
            self._start, self._num_places = self._position, 0
            self._piece = self._fetch(self._position, min(max(self._position + self._ahead, end), self._num_bytes))
        data = self._piece[self._position - self._start : end - self._start]
        self._num_places += self._position != self._end  # a header that continues is in one place
        self._position = self._end = end
        return data

    def _choose_ahead(self) -> None:
        is_near = self._piece and 0 <= self._position - self._start < len(self._piece) + _NEAR_BYTES
        is_dense = len(self._piece) <= _NEAR_BYTES * self._num_places
        if is_near and is_dense and self._ahead > _HEADER_BYTES:
            self._ahead = min(2 * self._ahead, PIECE_BYTES)
        else:
            self._ahead = _FIRST_BYTES if is_near else _HEADER_BYTES
