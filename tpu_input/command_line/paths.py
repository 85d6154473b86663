"""Paths as users write them: [NAME=]PATH, where PATH is local or a URI, and may itself have a "=".

Without TensorFlow and without access to buckets: only local paths are looked for.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import NamedTuple

_NAME = re.compile(r"\w[\w .-]*")  # of a split or a dataset; no part of a path with folders, and no URI
_WILDCARDS = frozenset("*?[")


# A URI whose second slash is missing; such a local folder can be given as ./gs:/x.
_HALF_URI = re.compile(r"(gs|s3|az|hf|https?|hdfs|file):/(?!/)")


# Object stores: a file becomes visible only when it is complete, and folders are only name prefixes.
_OBJECT_STORES = ("gs://", "s3://")


class Unclear(ValueError, argparse.ArgumentTypeError):
    """A text that is not a path, or can be read in two ways; argparse, too, shows its message."""


class NamedPath(NamedTuple):
    """What is given as [NAME=]PATH; `name` is "" without one."""

    name: str
    path: str


def absolute(path: str | os.PathLike[str]) -> str:
    """Returns a form of a path that processes in other folders can use: a URI without trailing slashes, or absolute.

    Raises:
      Unclear: The path is empty, as from a variable of a shell that is not set, or a URI with a single slash, or it is
        not UTF-8.
    """
    text = os.fspath(path)
    if not text:
        raise Unclear("a path is empty; if it comes from a variable, set it, and for this folder write .")
    if match := _HALF_URI.match(text):
        raise Unclear(f"{text!r} is not a URI; write {match[1]}://, or for a local folder ./{text}")
    scheme, separator, rest = text.partition("://")
    path = scheme + separator + rest.rstrip("/") if separator else os.path.abspath(os.path.expanduser(text))
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Unclear(f"the path {path!a} is not UTF-8, but datasets and runs store it so; rename it") from None
    return path


def is_in_bucket(path: str) -> bool:
    """Returns whether a path is a URI of an object store."""
    return path.startswith(_OBJECT_STORES)


def named_path(text: str) -> NamedPath:
    """Returns [NAME=]PATH with an absolute path.

    A text that begins as a local file or folder does is a path, such as a folder date=2026, and date=2026/train-*.

    Raises:
      Unclear: There is both a local path of the whole text and one behind NAME=.
    """
    name, separator, path = text.partition("=")
    if not separator or not path or not _NAME.fullmatch(name):
        return NamedPath("", absolute(text))
    if os.path.lexists(_begin(text)):
        if os.path.lexists(path):
            raise Unclear(
                f"{text!r} is a path, and {path!r} is one, too; write ./{text} for the first, and {name}=./{path} for "
                "the second"
            )
        return NamedPath("", absolute(text))
    return NamedPath(name, absolute(path))


def named_patterns(text: str) -> list[NamedPath]:
    """Returns the absolute paths and globs of GLOB, or of NAME=GLOB,NAME=GLOB with a name for each.

    A glob may have a comma, as train-{1,2}: only what follows "," as NAME= begins another one.
    """
    first = named_path(text)
    if not first.name:
        return [first]
    return [named_path(part.strip()) for part in re.split(r",(?=\s*\w+=)", text)]


def absolute_patterns(text: str) -> str:
    """Returns what named_patterns() takes, with absolute paths."""
    return ",".join(f"{name}={path}" if name else path for name, path in named_patterns(text))


def _begin(text: str) -> str:
    """Returns the first part of a path, which lies in the working folder; the whole path if it has one part."""
    first, slash, _ = text.partition("/")
    return first if slash and not _WILDCARDS & set(first) else text
