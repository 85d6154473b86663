"""All private API of JAX that is used by this program, tested with JAX 0.12.0.

preflight/libtpu_program.py, which runs by itself in an environment of its own, has what is private to its jaxlib.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any


def detect_processes(
    address: str | None, num_processes: int | None, process_id: int | None, timeout: int
) -> tuple[Any, Any, Any, Sequence[int] | None]:
    """Returns address, number of processes, number of this one and its devices: those given, or for None the cluster's.

    jax.distributed.initialize() detects them by the same function, but does not tell what. `timeout` is in seconds.
    """
    from jax._src.clusters import ClusterEnv

    parameters: tuple[Any, Any, Any, Sequence[int] | None] = ClusterEnv.auto_detect_unset_distributed_params(
        address, num_processes, process_id, None, None, timeout
    )
    return parameters


def ignore_proxies() -> None:
    """Keeps JAX from warning of HTTP proxies, which do not matter on this machine; its logger's name is private."""
    logging.getLogger("jax._src.distributed").setLevel(logging.ERROR)
