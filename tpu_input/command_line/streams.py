"""stdout and stderr as all commands print to them: what is printed never decides how a command ends.

    print(), argparse, bars, logging, tracebacks ──▶ Stream ──▶ stdout, stderr

A character that the encoding of a stream lacks is escaped. A stream that cannot be written any more is dropped: in
silence if the reader of a pipe has gone, as head does, and else with one line on stderr.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class Stream:
    """Text stream that escapes what it cannot encode and drops what it cannot write; all else is the stream's.

    Attributes:
      is_lost: Whether it cannot be written any more.
      why: The reason of that, such as "No space left on device"; "" if the reader of a pipe has gone.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name
        self.is_lost, self.why = False, ""

    def write(self, text: str) -> int:
        if not self.is_lost:
            try:
                self._stream.write(encodable(text, self._stream))
            except (OSError, ValueError) as error:
                self._lose(error)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if not self.is_lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def isatty(self) -> bool:
        return not self.is_lost and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: Exception) -> None:
        self.is_lost = True
        with contextlib.suppress(OSError, ValueError):  # else Python writes again what is in the buffer when it exits
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if isinstance(error, OSError) and error.errno not in (errno.EPIPE, errno.EBADF):
            self.why = error.strerror or repr(error)
            print(f"warning: {self._name} cannot be written ({self.why}); its other lines are lost", file=sys.stderr)


def encodable(text: str, stream: TextIO) -> str:
    """Returns a text with the characters that the encoding of a stream lacks escaped as in Python, e.g. \\xe9."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        pass
    return text


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """Context manager in which sys.stdout and sys.stderr are Streams; calls may be nested.

    A closed descriptor of the three standard ones is opened on the null device first, so that no file that the command
    opens gets its number.
    """
    if isinstance(sys.stderr, Stream) or isinstance(sys.stdout, Stream):
        yield
        return
    _open_descriptors()
    before = sys.stdout, sys.stderr
    sys.stderr = cast(TextIO, Stream(sys.stderr, "stderr"))
    sys.stdout = cast(TextIO, Stream(sys.stdout, "stdout"))
    installed = sys.stdout, sys.stderr
    try:
        yield
    finally:
        for stream in installed:
            stream.flush()
        if sys.stdout is installed[0]:
            sys.stdout = before[0]
        if sys.stderr is installed[1]:
            sys.stderr = before[1]


def _open_descriptors() -> None:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def stdout_is_lost() -> bool:
    """Returns whether stdout cannot be written any more, so that a command whose only result is its lines may stop."""
    return isinstance(sys.stdout, Stream) and sys.stdout.is_lost


def check_printed() -> None:
    """Checks, at the end of a command whose only result is its lines, that they were printed or are not wanted.

    Raises:
      ValueError: stdout could not be written.
    """
    sys.stdout.flush()
    if isinstance(sys.stdout, Stream) and sys.stdout.why:
        raise ValueError("the result of this command is what it prints, and some lines are lost; run it again")
