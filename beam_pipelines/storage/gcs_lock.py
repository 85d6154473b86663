"""A lock that outlives nobody by long, as an object of a bucket.

Its holder writes it again every few seconds, each time on condition that nobody else has (if_generation_match). Whoever
finds it watches it: written again, its holder is alive; left alone for as long as a lease lasts, its holder was killed,
and it may be taken, again on condition that it is still the same. No two machines' clocks are compared.
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

LEASE = 30.0  # seconds without a sign of life after which a holder counts as dead
_BEATS = 6  # signs of life in a lease, so that a few may fail while the store is down


class _Lock:
    """The object, and what this process knows of it."""

    def __init__(self, path: str) -> None:
        self.path, self.generation, self._token, self._beat = path, 0, uuid.uuid4().hex, 0

    def write(self, generation: int) -> bool:
        """Writes it if that is its generation now, 0 for an object that is not there; returns whether it did."""
        self._beat += 1
        holder = {"host": socket.gethostname(), "process": os.getpid(), "token": self._token, "beat": self._beat}
        lock = gcs.blob(self.path)
        with gcs.explained(self.path):
            try:
                lock.upload_from_string(json.dumps(holder), if_generation_match=generation, retry=gcs.QUICK)
            except exceptions.PreconditionFailed:
                # It may be so because the answer to an earlier try was lost.
                if self.read() != holder:
                    return False
                lock.reload(retry=gcs.QUICK)
        self.generation = int(lock.generation)
        return True

    def now(self) -> int:
        """Returns its generation, 0 if it is not there."""
        with gcs.explained(self.path):
            lock = gcs.blob(self.path)
            if not lock.exists(retry=gcs.QUICK):
                return 0
            lock.reload(retry=gcs.QUICK)
            return int(lock.generation)

    def read(self) -> dict[str, Any]:
        """Returns who holds it; nothing if it is gone."""
        with contextlib.suppress(exceptions.NotFound, ValueError):
            found = json_fields.load(gcs.blob(self.path).download_as_bytes(retry=gcs.QUICK))
            return json_fields.mapping(found, "a lock")
        return {}

    def remove(self) -> None:
        """Removes it unless another process has it; if that fails, the lease runs out."""
        with contextlib.suppress(Exception):
            gcs.blob(self.path).delete(if_generation_match=self.generation, retry=gcs.QUICK)


@contextlib.contextmanager
def leased(path: str) -> Iterator[Callable[[], None]]:
    """Holds the lock at a gs:// URI.

    Yields:
      A function that raises OSError if the lock was lost, as when this process was stopped for longer than the lease.

    Raises:
      ValueError: Another process holds it, or it cannot be written.
    """
    lock = _Lock(path)
    try:
        if not lock.write(0) and not lock.write(_abandoned(lock)):
            raise _held(lock)
    except OSError as error:
        raise ValueError(str(error)) from error
    ended, lost = threading.Event(), threading.Event()
    beats = threading.Thread(target=_renew, args=(lock, ended, lost), daemon=True)
    beats.start()

    def still_held() -> None:
        if lost.is_set():
            raise OSError(f"the lock {path!r} was lost while this process stood still or could not reach the bucket")

    try:
        yield still_held
    finally:
        ended.set()
        beats.join()
        if not lost.is_set():
            lock.remove()


def _abandoned(lock: _Lock) -> int:
    """Returns the generation of a lock whose holder has given no sign of life for a lease, 0 if it is gone.

    Raises:
      ValueError: Its holder is alive.
    """
    if not (first := lock.now()):
        return 0
    print_line(f"{lock.path} is held by {_holder(lock)}; waiting {LEASE:g} s for a sign of life", sys.stderr)
    # Looks are counted, not seconds: a machine that stood still for a lease may have stopped the holder too.
    for _ in range(_BEATS):
        time.sleep(LEASE / _BEATS)
        if (now := lock.now()) != first:
            if now:
                raise _held(lock)
            return 0
    return first


def _renew(lock: _Lock, ended: threading.Event, lost: threading.Event) -> None:
    alive = time.monotonic()
    while not ended.wait(LEASE / _BEATS):
        try:
            held = lock.write(lock.generation)
            alive = time.monotonic()
        except OSError:  # the store may come back in time
            held = time.monotonic() - alive < LEASE
        if not held:
            lost.set()
            return


def _holder(lock: _Lock) -> str:
    found = lock.read()
    return f"process {json_fields.shown(found.get('process'))} on {json_fields.shown(found.get('host'))}"


def _held(lock: _Lock) -> ValueError:
    output = lock.path.rpartition("/")[0].rpartition("/")[0]
    return ValueError(
        f"another conversion ({_holder(lock)}) is writing {output!r}; wait for it, or choose another output"
    )
