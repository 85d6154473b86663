"""Errors of all storage backends, in addition to OSError and ValueError."""

from __future__ import annotations


class Unavailable(OSError):
    """A read or write failed because of the storage, not because of the file: a retry may succeed."""


class Changed(ValueError):
    """A file has changed since it was listed."""
