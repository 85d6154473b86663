"""The limit of open files of this process, which training by many lanes reaches."""

from __future__ import annotations

import resource

_OTHERS = 256  # files that TensorFlow, checkpoints, logs and sockets have open


def allow_open_files(count: int) -> None:
    """Raises this process' limit of open files, if needed, so that `count` more can be open at the same time.

    Raises:
      ValueError: The hard limit does not allow it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"a batch of {count:,} examples has up to {count:,} shards open at the same time, and the limit of open "
            f"files is {hard:,}; raise it to at least {needed:,} (ulimit -n {needed}, as root or in the service's "
            "settings), or use a smaller batch"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))
