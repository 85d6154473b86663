"""A terminal to write to, and what has been written to it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]


def open_terminal(columns: int) -> tuple[int, int]:
    """Returns the end for read_all(), and the end for a program, of a terminal of 24 lines."""
    leader, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, columns))
    return leader, terminal


def read_all(leader: int) -> str:
    """Returns what was written to a terminal whose other end is closed by now; a single read may give less."""
    output = bytearray()
    with os.fdopen(leader, "rb", buffering=0) as stream, contextlib.suppress(OSError):  # Linux ends it by EIO
        while piece := stream.read(1 << 16):
            output += piece
    return output.decode()


def run_in_terminal(module: str, *arguments: str, columns: int = 80) -> tuple[int, str]:
    """Runs a module in a terminal; returns its exit code and what it has written there."""
    leader, terminal = open_terminal(columns)
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    with ThreadPoolExecutor() as pool:
        output = pool.submit(read_all, leader)  # at the same time, as a terminal holds some 15 KB
        result = subprocess.run(command, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
    return result.returncode, output.result()
