"""Owners of shards: the processes that write shards, each with workers of its own.

A process that owns shards writes, hashes and indexes what its workers send, so it can feed only so many of them. On a
machine with many cores there are several owners, and each takes the next shard that no other has begun:

    command ──shard──▶ owner ──unit──▶ worker
            ◀──counts──      ◀──records──

On a machine with fewer cores, the command itself is the only owner.
"""

from __future__ import annotations

import dataclasses
import functools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from beam_pipelines.conversion.shard_writing import write_planned, write_shards
from beam_pipelines.conversion.units import UnitWriter
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import ConvertOptions
from beam_pipelines.runners import phases
from beam_pipelines.runners.executors import MANY_IN_FLIGHT, Executor, Processes, local_executor
from beam_pipelines.sources.url_names import is_url

# An image takes an owner a tenth of the time that it takes a worker. For two thirds of it, in SHA-256 and system calls,
# other threads of the owner run (benchmarks.conversion.shard_owner).
WORKERS_PER_OWNER = 20


def write_on_this_machine(
    shards: list[str], folder: WorkingFolder, options: ConvertOptions, num_workers: int, is_much: bool
) -> None:
    """Writes the given shards of a plan with the cores of this machine.

    Args:
      shards: Their names.
      folder: Working folder of the plan.
      options: Options of the conversion.
      num_workers: Maximum number of processes or threads that make records.
      is_much: As executors.is_much_work() has it.

    Raises:
      OSError: A worker process or an owner was killed.
    """
    # Only a list has URLs; rows are not read without need, because in a bucket each file is a request.
    has_list = any(source.is_list for source in options.sources)
    reads_urls = has_list and any(is_url(row.uri) for row in folder.read_rows(shards[0]))
    # The workers of one owner share the limits of URLs.
    num_owners = min(num_workers // WORKERS_PER_OWNER, len(shards)) if is_much and not reads_urls else 1
    if num_owners < 2:
        limits = {"units_per_worker": MANY_IN_FLIGHT} if reads_urls else {}
        with local_executor(num_workers, is_much, UnitWriter.__module__, **limits) as executor:
            write_shards(shards, folder, options, executor)
        return
    owner = Owner(folder, options, -(-num_workers // num_owners))
    with Processes(num_owners, [UnitWriter.__module__]) as owners:
        for counts in owners.map_units(owner, shards):
            phases.advance("writing", *counts)


class WrittenShard(NamedTuple):
    """What a shard adds to the progress; nothing if it was not needed any more."""

    num_inputs: int = 0
    num_bytes: int = 0
    num_rejected: int = 0


@dataclasses.dataclass(frozen=True)
class Owner:
    """Function for executors: it writes a shard, while the next one of the same owner is begun.

    Attributes:
      folder: Working folder of the plan.
      options: Options of the conversion.
      num_workers: Number of workers of each owner.
    """

    folder: WorkingFolder
    options: ConvertOptions
    num_workers: int

    def begin(self, shard: str) -> Future[WrittenShard]:
        return self._threads.submit(self._write, shard)

    def __call__(self, future: Future[WrittenShard]) -> WrittenShard:
        return future.result()

    # These end with the owner's process.
    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(2)

    @functools.cached_property
    def _executor(self) -> Executor:
        return local_executor(self.num_workers, is_much=True, module=UnitWriter.__module__)

    def _write(self, shard: str) -> WrittenShard:
        receipt = write_planned(shard, self.folder, self.options, self._executor, lambda *counts: None)
        if not receipt:
            return WrittenShard()
        num_rejected = len(receipt.rejected)
        return WrittenShard(receipt.num_examples + num_rejected, receipt.num_bytes, num_rejected)
