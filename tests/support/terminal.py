"""A terminal to write to, and what has been written to it."""

from __future__ import annotations

import contextlib
import os
import termios


def open_terminal(columns: int) -> tuple[int, int]:
    """Returns the end for read_all(), and the end for a program, of a terminal of 24 lines."""
    leader, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, columns))
    return leader, terminal


def read_all(leader: int) -> str:
    """Returns what was written to a terminal whose other end is closed by now; a single read may give less."""
    shown = bytearray()
    with os.fdopen(leader, "rb", buffering=0) as stream, contextlib.suppress(OSError):  # Linux ends it by EIO
        while piece := stream.read(1 << 16):
            shown += piece
    return shown.decode()
