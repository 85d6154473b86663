"""What commands print, and the flags for it that every command has: --quiet, --verbose, --json, --log_file.

    result     print_line()              ──▶ stdout
    warnings   print_line(…, sys.stderr) ──▶ stderr
    errors     print_error(), failed()   ──▶ stderr, and with --json an object on stdout
    progress   bars, activity()          ──▶ stderr, on a terminal; elsewhere what takes long prints a line every
                                             SECONDS_PER_LINE; neither with --quiet

All lines but progress are also written to --log_file, with the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO, cast

from tpu_input.command_line.streams import Stream, encodable

AddFlag = Callable[..., argparse.Action]  # Parser.add_argument

_log = logging.getLogger("jpeg2tpu")
_log.propagate = False
_log.setLevel(logging.INFO)
_log.addHandler(logging.NullHandler())  # else Python prints its warnings
_is_quiet = False
SECONDS_PER_LINE = 30.0  # seconds between two lines of progress where no bar is drawn
_DRAW_SECONDS = 0.5  # seconds between two drawings of an activity


def add_output_flags(flag: AddFlag, has_result: bool) -> None:
    """Adds the flags that every command has.

    Args:
      flag: Method of the command's parser or of a group of it.
      has_result: Whether the command has a result, which --json prints; a server has none.
    """
    flag("--quiet", action="store_true", help="show no progress; only the result, warnings and errors")
    flag("--verbose", action="store_true", help="show messages of the libraries, and full tracebacks")
    if has_result:
        flag("--json", action="store_true", help="print JSON on stdout instead of lines of text")
    flag("--log_file", metavar="FILE", help="local file to append all lines to, with the time (default: none)")


@contextlib.contextmanager
def output(flags: argparse.Namespace, argv: Sequence[str]) -> Iterator[None]:
    """Context manager: prints as the flags of add_output_flags() say during its body.

    Raises:
      ValueError: --log_file cannot be written.
    """
    global _is_quiet
    before, _is_quiet = _is_quiet, flags.quiet
    handler = None
    if flags.log_file:
        try:
            handler = _LogFile(flags.log_file, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ValueError(f"--log_file={flags.log_file} cannot be written: {error.strerror}") from error
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        for logger in _LOGGERS:
            logger.addHandler(handler)
    level = logging.getLogger().level
    if flags.verbose:
        logging.getLogger().setLevel(logging.INFO)
    note(f"command: {shlex.join(argv)}")
    try:
        yield
    except Exception:
        _log.exception("the command ended with an error that it does not know")
        raise
    finally:
        _is_quiet = before
        logging.getLogger().setLevel(level)
        if handler:
            for logger in _LOGGERS:
                logger.removeHandler(handler)
            with contextlib.suppress(OSError):  # what could not be written is in its buffer still
                handler.close()


class _LogFile(logging.FileHandler):
    """Handler of --log_file, which is given up with one warning when it cannot be written any more."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        for logger in _LOGGERS:
            logger.removeHandler(self)
        error = sys.exc_info()[1]
        reason = getattr(error, "strerror", None) or error
        print(f"warning: --log_file={self.baseFilename} cannot be written ({reason}); it lacks lines", file=sys.stderr)


_LOGGERS = (_log, logging.getLogger())  # this module's, and the one of all libraries


def is_quiet() -> bool:
    """Returns whether no progress is to be shown, because of --quiet."""
    return _is_quiet


def shows_progress() -> bool:
    """Returns whether bars and activities are to be drawn on stderr: on a terminal, without --quiet."""
    return sys.stderr.isatty() and not _is_quiet


def speed(count: float, seconds: float, unit: str) -> str:
    """Returns a speed for a line of progress, such as "2.3 images/s": two digits or more, never the time per unit."""
    rate = count / max(seconds, 1e-3)
    return f"{rate:.2g} {unit}/s" if rate < 10 else f"{rate:.0f} {unit}/s"


def note(text: str) -> None:
    """Writes a line to --log_file alone, without user names and queries of URLs, which may be secrets."""
    _log.info("%s", _WEB.sub(r"\1\2", printable(text)))


_WEB = re.compile(r"(https?://)(?:[^/\s@]*@)?([^\s?'\"]*)(?:\?[^\s'\"]*)?")


@contextlib.contextmanager
def activity(text: str) -> Iterator[None]:
    """Context manager: shows on a terminal what happens and for how many seconds, and removes it at the end.

    It writes to its own copy of stderr, so that the body may redirect stderr.
    """
    if not shows_progress():
        yield
        return
    ended, began = threading.Event(), time.monotonic()
    terminal = os.dup(sys.stderr.fileno())

    def show(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(terminal, encodable(text, sys.stderr).encode(errors="replace"))

    def draw() -> None:
        columns = max(20, os.get_terminal_size(terminal).columns)
        while True:
            seconds = time.monotonic() - began
            line = f"{text} …" + (f" {seconds:.0f} s" if seconds >= 1 else "")
            show(f"\r{line[: columns - 1]}\x1b[K")
            if ended.wait(_DRAW_SECONDS):
                return

    thread = threading.Thread(target=draw, daemon=True)
    with contextlib.suppress(RuntimeError):  # at a limit of threads, it is not drawn
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident:
            thread.join()
        show("\r\x1b[K")
        os.close(terminal)


def printable(text: str) -> str:
    """Returns text as one line with control characters, and all others that are not printable, escaped as in Python.

    Names of files and classes, and text from files, may come from an untrusted source: in a terminal they could move
    the cursor, change colors, or look like lines of this program.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def to_json(value: object) -> str:
    """Returns one line of JSON with unprintable characters escaped and all others, also non-ASCII ones, as they are."""
    line = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def print_line(text: str, file: TextIO | None = None) -> None:
    """Prints printable(text) and flushes; on stdout unless another file is given. It never fails: see streams.py."""
    _log.log(logging.WARNING if file is sys.stderr else logging.INFO, "%s", printable(text))
    stream = sys.stdout if file is None else file
    if not isinstance(stream, Stream):  # of a program that calls this package
        stream = Stream(stream, "stdout" if file is None else "stderr")
    print(printable(text), file=cast(TextIO, stream), flush=True)


def print_error(message: object) -> None:
    """Prints an error that ends a command with exit code 2 to stderr, as `error: …`; each line as by print_line()."""
    for line in f"error: {message}".split("\n"):
        print_line(line, sys.stderr)


def print_traceback() -> None:
    """Prints the traceback of the exception that is handled to stderr, and writes it to --log_file."""
    print(traceback.format_exc(), end="", file=sys.stderr, flush=True)
    _log.error("%s", traceback.format_exc())


def is_json(argv: Sequence[str]) -> bool:
    """Returns whether a command line asks for JSON; known also where its flags cannot be parsed."""
    return "--json" in argv


def print_failure(argv: Sequence[str], message: str) -> None:
    """Prints the object that stands for the result of a command that failed, if JSON was asked for."""
    if is_json(argv):
        print_line(to_json({"error": message}))


def failed(argv: Sequence[str], message: str) -> int:
    """Prints an error, and with --json also the object; returns the exit code."""
    print_error(message)
    print_failure(argv, message)
    return 2
