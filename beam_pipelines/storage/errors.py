"""What storage raises besides OSError and ValueError, whatever kind of storage it is."""

from __future__ import annotations


class Unavailable(OSError):
    """A store did not deliver, and nothing says that the file is to blame: trying again may help."""


class Changed(ValueError):
    """A file is no longer what it was when it was listed."""
