"""Quiet import of TensorFlow, without its hundred lines of harmless warnings, and one-line messages of its errors."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import logging
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager

from tpu_input.command_line import activity, error_lines
from tpu_input.command_line.distribution import which_extra
from tpu_input.storage import gcs_filesystem


def has_estimator() -> bool:
    """Returns whether the installed TensorFlow has TPUEstimator, without importing it, which takes a second."""
    return _version() < (2, 16)


def require_estimator() -> None:
    """Checks that the installed TensorFlow has TPUEstimator.

    Raises:
      ImportError: It does not have it.
    """
    if not has_estimator() and sys.version_info >= (3, 12):
        raise ImportError(
            "TPUEstimator needs TensorFlow 2.15, which is for Python 3.11; here use --trainer=jax or "
            "--trainer=tf_distribute, with another --model_dir"
        )
    if not has_estimator():
        version = ".".join(map(str, _version()))
        raise ImportError(
            f"TensorFlow {version} has no TPUEstimator, whose last version is TensorFlow 2.15; use "
            "--trainer=tf_distribute with another --model_dir, or use Python 3.11 with tensorflow<2.16"
        )


def _version() -> tuple[int, ...]:
    """Returns (major, minor) of the installed TensorFlow; (0, 0) if it is not installed."""
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-tpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return tuple(map(int, importlib.metadata.version(name).split(".")[:2]))
    return 0, 0


def import_tensorflow(verbose: bool) -> None:
    """Imports TensorFlow for the first time in this process.

    Args:
      verbose: Whether to show TensorFlow's log and warnings.

    Raises:
      ImportError: TensorFlow is not installed.
    """
    if not verbose:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # read once, when TensorFlow is imported
        warnings.simplefilter("ignore")
    set_up_processor()
    gcs_filesystem.set_up()
    try:
        with activity("starting TensorFlow"), contextlib.nullcontext() if verbose else no_stderr():
            import tensorflow as tf
    except ModuleNotFoundError as error:
        raise ImportError(which_extra(error) or str(error)) from None
    if not verbose:
        from estimator_app.runtime.tensorflow_private import print_no_deprecations

        print_no_deprecations()
        tf.get_logger().setLevel("CRITICAL")  # its errors are also raised
        logging.getLogger("matplotlib").setLevel("ERROR")  # it warns if the home directory is not writable


def set_up_processor() -> None:
    """Lets TensorFlow, which is not imported yet, use oneDNN on every x86 processor; TF_ENABLE_ONEDNN_OPTS precedes.

    TensorFlow itself does so only on processors with AVX-512 VNNI. One with AVX2 alone trains several times faster with
    it: docs/benchmarks.md.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # read once, when TensorFlow is imported


@contextlib.contextmanager
def no_output(descriptor: int) -> Iterator[None]:
    """Context manager that discards stdout (1) or stderr (2), including the output of C and C++ code."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    before, nowhere = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    try:
        yield
    finally:
        os.dup2(before, descriptor)
        os.close(before)
        os.close(nowhere)


def no_stderr() -> AbstractContextManager[None]:
    """Context manager that discards stderr.

    Newer TensorFlow logs before it reads its log level, and its JPEG decoder prints an error that is also raised.
    """
    return no_output(2)


def user_error_types() -> tuple[type[Exception], ...]:
    """Returns the exception types that a user's mistake may raise, including TensorFlow's if TensorFlow is imported."""
    tensorflow = sys.modules.get("tensorflow")
    return (ValueError, OSError, ImportError) + ((tensorflow.errors.OpError,) if tensorflow else ())


_FULL = {os.strerror(code): error_lines.ADVICE[code] for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}


# What stands before the reason in messages of TensorFlow and Keras, in lines of its own: where a node was made, as a
# stack trace or as a note that there is none, the node's name, and a count of errors.
_NO_REASON = re.compile(
    r"Graph execution error:|Detected at node .*|<stack traces unavailable>|Node: '.*'|\d+ root error\(s\) found\.|"
    r"Exception encountered when calling .*|\s.*|"
)
_BEFORE_REASON = re.compile(
    r"\{\{function_node \S+\}\} |Error in user-defined function passed to \S+ transformation with iterator: \S+: |"
    r"\x1b\[[0-9;]*m"
)
_FIRST_ERROR = re.compile(r"^\s*\(0\) [A-Z_]+: +", re.MULTILINE)  # of those that were counted


def one_line(error: Exception, place: str = "") -> str:
    """Returns the message of an exception in one line, without TensorFlow's prefixes; with advice if the disk is full.

    The reason follows after the Python code that created a node, in every form of TensorFlow 2.15 to 2.21 and Keras.
    All other errors are described by tpu_input/command_line/error_lines.py; `place` is a path for those that name none.
    """
    if isinstance(error, (ImportError, OSError)) or error_lines.limit_reached(error):
        return _with_resume(error_lines.one_line(error, place))
    text = re.sub(r"^in user code:\n\n.*?\n\n +", "", str(error), flags=re.DOTALL)  # autograph's prefix and stack trace
    text = gcs_filesystem.in_words(_FIRST_ERROR.sub("", text))
    lines = [line for line in text.splitlines() if not _NO_REASON.fullmatch(line)] or text.split("\n")
    line = re.sub(r" \[Op:\w+\]( name:.*)?$", "", _BEFORE_REASON.sub("", lines[0]))  # suffix by eager execution
    line = re.sub(r"^assertion failed: \[([^\]]+)\]$", r"\1", line)
    return _with_resume(line.strip() or repr(error).splitlines()[0])


def _with_resume(line: str) -> str:
    """Returns a line about a full disk with the advice to resume; others as they are."""
    for reason, advice in _FULL.items():
        if reason in line:
            advice = "" if line.endswith(advice) else f"; {advice}"
            return f"{line}{advice}; then rerun the same command to resume from the last checkpoint"
    return line
