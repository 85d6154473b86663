"""A large file behind requests: read from front to back, or here and there, in large pieces.

read, seek ──▶ the piece at hand ──none there──▶ fetch(start, end) ──▶ bytes
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any, cast

PIECE_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 16  # from which lines and headers are read, without a call of ours for each


class _Pieces(io.RawIOBase):
    """The file, of which one piece is held; what lies beyond its end is never asked for, which would be an error."""

    def __init__(self, num_bytes: int, fetch: Callable[[int, int], bytes]) -> None:
        self._num_bytes, self._fetch = num_bytes, fetch
        self._at, self._start, self._piece = 0, 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (0, self._at, self._num_bytes)[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        if not self._start <= self._at < self._start + len(self._piece) and self._at < self._num_bytes:
            self._piece = self._fetch(self._at, min(self._at + PIECE_BYTES, self._num_bytes))
            self._start = self._at
        begin = self._at - self._start
        read = self._piece[begin : begin + len(buffer)]
        buffer[: len(read)] = read
        self._at += len(read)
        return len(read)


def in_pieces(num_bytes: int, fetch: Callable[[int, int], bytes]) -> IO[bytes]:
    """Returns a file opened for reading.

    Args:
      num_bytes: Its size.
      fetch: Returns the bytes from the first position up to, without, the second.
    """
    return cast(IO[bytes], io.BufferedReader(_Pieces(num_bytes, fetch), _BUFFER_BYTES))
