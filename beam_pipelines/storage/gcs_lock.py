"""Lock stored as a GCS object with a heartbeat; it expires 30 s after its holder was killed.

The holder rewrites the object every few seconds, on condition that no other process has written it
(if_generation_match). A process that finds the object watches its generation: if it changes, the holder is alive; if it
is unchanged for the duration of a lease, the holder counts as dead, and the process takes the lock, on condition that
the generation is still the same. Clocks of different machines are never compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from google.api_core import exceptions

from beam_pipelines.storage import gcs
from tpu_input.command_line import print_line
from tpu_input.dataset_format import json_fields

LEASE = 30.0  # seconds without a heartbeat after which a holder counts as dead
_BEATS = 6  # heartbeats per lease, so that a few may fail while the store is unavailable


class _Lock:
    """The lock object, and the generation that this process has written."""

    def __init__(self, path: str) -> None:
        self.path, self.generation, self._token, self._beat = path, 0, uuid.uuid4().hex, 0

    def write(self, generation: int) -> bool:
        """Writes the object if its generation is `generation`, 0 for no object; returns whether it was written."""
        self._beat += 1
        holder = {"host": socket.gethostname(), "process": os.getpid(), "token": self._token, "beat": self._beat}
        lock = gcs.blob(self.path)
        with gcs.explained(self.path):
            try:
                lock.upload_from_string(json.dumps(holder), if_generation_match=generation, retry=gcs.QUICK)
            except exceptions.PreconditionFailed:
                # An earlier try may have written the object, with the response lost.
                if self.read() != holder:
                    return False
                lock.reload(retry=gcs.QUICK)
        self.generation = int(lock.generation)
        return True

    def now(self) -> int:
        """Returns the current generation of the object; 0 if it does not exist."""
        with gcs.explained(self.path):
            lock = gcs.blob(self.path)
            with contextlib.suppress(exceptions.NotFound):
                lock.reload(retry=gcs.QUICK)
            return int(lock.generation or 0)

    def read(self) -> dict[str, Any]:
        """Returns the content of the object, which names the holder; empty if it is missing or unreadable."""
        with contextlib.suppress(exceptions.NotFound, ValueError):
            content = json_fields.load(gcs.blob(self.path).download_as_bytes(retry=gcs.QUICK))
            return json_fields.mapping(content, "a lock")
        return {}

    def remove(self) -> None:
        """Deletes the object unless another process has written it; if that fails, the lock expires."""
        with contextlib.suppress(Exception):
            gcs.blob(self.path).delete(if_generation_match=self.generation, retry=gcs.QUICK)


@contextlib.contextmanager
def leased(path: str) -> Iterator[Callable[[], None]]:
    """Context manager: holds the lock at a gs:// URI during its body.

    Yields:
      A function that raises OSError if the lock was lost, e.g. because this process was stopped for longer than LEASE.

    Raises:
      ValueError: Another process holds the lock, or it cannot be written.
    """
    lock = _Lock(path)
    try:
        if not lock.write(0) and not lock.write(_abandoned(lock)):
            raise _held_error(lock)
    except OSError as error:
        raise ValueError(str(error)) from error
    stop_event, lost_event = threading.Event(), threading.Event()
    beats = threading.Thread(target=_renew, args=(lock, stop_event, lost_event), daemon=True)
    beats.start()

    def check_held() -> None:
        if lost_event.is_set():
            raise OSError(
                f"the lock {path!r} was lost because this process was suspended or could not reach the bucket"
            )

    try:
        yield check_held
    finally:
        stop_event.set()
        beats.join()
        if not lost_event.is_set():
            lock.remove()


def _abandoned(lock: _Lock) -> int:
    """Watches a lock for the duration of a lease; returns its generation if there was no heartbeat, 0 if it is gone.

    Raises:
      ValueError: The holder is alive.
    """
    if not (first := lock.now()):
        return 0
    print_line(f"{lock.path} is held by {_holder(lock)}; waiting {LEASE:g} s for a heartbeat", sys.stderr)
    # Reads of the lock are counted rather than seconds: if this machine was suspended for the duration of a lease, the
    # holder may have been suspended too, and be alive.
    for _ in range(_BEATS):
        time.sleep(LEASE / _BEATS)
        if (now := lock.now()) != first:
            if now:
                raise _held_error(lock)
            return 0
    return first


def _renew(lock: _Lock, stop_event: threading.Event, lost_event: threading.Event) -> None:
    alive = time.monotonic()
    while not stop_event.wait(LEASE / _BEATS):
        try:
            is_held = lock.write(lock.generation)
            alive = time.monotonic()
        except OSError:  # the store may be available again before the lease ends
            is_held = time.monotonic() - alive < LEASE
        if not is_held:
            lost_event.set()
            return


def _holder(lock: _Lock) -> str:
    holder = lock.read()
    return f"process {json_fields.short_repr(holder.get('process'))} on {json_fields.short_repr(holder.get('host'))}"


def _held_error(lock: _Lock) -> ValueError:
    output = lock.path.rpartition("/")[0].rpartition("/")[0]
    return ValueError(
        f"another conversion ({_holder(lock)}) is writing {output!r}; wait for it, or choose another output"
    )
