"""The shards of a plan, written by processes of this machine, one for each core.

    [shard] ──a process each──▶ shard, index and receipt in place

Beam's local runner has threads, which share one interpreter, or processes, whose death it never notices. Here, a
process that is killed ends the conversion at once, and one whose parent is gone ends by itself. Processes are spawned,
as a fork of a process with threads may inherit a lock that nobody will release.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from beam_pipelines.conversion.shard_writing import write_planned
from beam_pipelines.conversion.working_folder import Work
from beam_pipelines.options import ConvertOptions
from beam_pipelines.runners import progress

_LOOK_EACH = 0.1  # seconds between two looks at the counts for the bar
_counts: Any = None  # of this process's siblings and itself: inputs, rejected, bytes


def write_shards(shards: list[str], folder: Work, options: ConvertOptions, num_cores: int) -> None:
    """Writes those shards of a plan with a process for each core, or with fewer that have several threads each.

    Raises:
      OSError: A process was killed.
    """
    context = multiprocessing.get_context("spawn")
    num_inputs = folder.num_rows(shards) if progress.is_wanted() else 0
    counts = context.Array("q", 3) if progress.is_wanted() else None
    num_processes = min(len(shards), num_cores)
    num_decoders = num_cores // num_processes
    write = functools.partial(write_planned, folder=folder, options=options, num_decoders=num_decoders, progress=_count)
    with ProcessPoolExecutor(num_processes, context, _begin, (counts,)) as pool:
        written = [pool.submit(write, shard) for shard in shards]
        try:
            with progress.shown(num_inputs):
                _wait(written, counts)
        except BrokenProcessPool:
            raise OSError("a process that wrote shards was killed, for want of memory perhaps") from None
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():  # Ctrl-C reaches them too, SIGTERM this process alone
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _wait(written: list[Future[None]], counts: Any) -> None:
    """Returns when all are written; raises what one of them raised, as soon as it did."""
    left = set(written)
    while left:
        done, left = concurrent.futures.wait(left, _LOOK_EACH if counts else None, concurrent.futures.FIRST_EXCEPTION)
        for future in done:
            future.result()
        if counts:
            progress.show(*counts[:])


def _begin(counts: Any) -> None:
    """Prepares a process: it ends when its parent does, and at once, without a word, when the user interrupts."""
    global _counts
    _counts = counts
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
    os._exit(1)


def _count(num_bytes: int, written: bool) -> None:
    if _counts:
        with _counts.get_lock():
            for position, more in enumerate((1, not written, num_bytes)):
                _counts[position] += more
