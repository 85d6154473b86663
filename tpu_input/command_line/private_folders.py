"""Folders of this machine that only the user can write to, for locks and for caches of compiled programs."""

from __future__ import annotations

import os
import stat


def make_private(folder: str) -> bool:
    """Makes a folder if it is missing; returns whether it is the user's own, and no one else can write to it.

    Another user may have made it, or a link of its name, in a folder that all share.

    Raises:
      OSError: It cannot be made.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
