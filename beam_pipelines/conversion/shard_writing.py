"""Writing of shards: units of rows → records and index in files of this attempt → receipt, which names them.

    [Unit] ──an executor calls UnitWriter──▶ [WrittenUnit], in order ──append──▶ shard, index, Receipt

A unit is at most 256 rows of a shard, so all cores of a machine work on a shard, whatever the number of shards. What
needs one writer, the files and their checksums, is done here. Memory use depends on the units in flight, not on the
size of a shard.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import hashlib
import io
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, cast

import google_crc32c

from beam_pipelines import storage
from beam_pipelines.conversion import row_lines
from beam_pipelines.conversion.checksums import combined_crc32c
from beam_pipelines.conversion.output_folder import create
from beam_pipelines.conversion.receipts import Receipt
from beam_pipelines.conversion.row_lines import Unit
from beam_pipelines.conversion.units import UnitWriter, WrittenUnit, schema_of
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import ConvertOptions
from beam_pipelines.runners import phases
from beam_pipelines.runners.executors import Executor
from beam_pipelines.shard_formats.all_formats import EXPORTS, SHARD_FORMATS
from beam_pipelines.sources.read_ahead import changes
from tpu_input.dataset_format.index import IndexWriter

Progress = Callable[[int, int, int], None]
_LEAST_ROWS = 16  # of a unit: with fewer, dividing the work takes as long as doing it
_UNITS_PER_WORKER = 8  # that each worker should get at least, so that none of them is left with much at the end


class Unwanted(Exception):
    """The shard is not needed any more: the conversion is complete, or its working files were removed."""


def write_shard(
    name: str,
    data_path: str,
    index_path: str,
    units: Iterable[Unit],
    num_images: int,
    options: ConvertOptions,
    classes: tuple[str, ...],
    executor: Executor,
    progress: Progress = lambda num_inputs, num_bytes, num_rejected: None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Receipt:
    """Writes a shard and its index; returns the receipt, which the caller stores.

    No file is written if none of the rows becomes a record. The names of the files are not flushed to disk: the
    receipt, which is written into the same folder later, does so for all three. If a power failure leaves a receipt
    without its files, a rerun finds them missing and writes the shard again.

    Args:
      name: Name of the shard in the plan, for the receipt.
      data_path: Path of the shard within the output.
      index_path: Path of its index.
      units: Inputs, in the order of their records.
      num_images: Number of images of the split, from which it follows which of them the statistics include.
      options: Options of the conversion: output, first_label, format and images are used.
      classes: Class names in label order.
      executor: Makes the records.
      progress: Called for every unit with (inputs, bytes written, inputs that were rejected).
      is_wanted: Called when all records are written, before the files get their names.

    Raises:
      Unwanted: is_wanted() returned False; nothing is left.
      concurrent.futures.CancelledError: The executor was closed; nothing is left.
    """
    receipt = Receipt(name)
    with contextlib.ExitStack() as stack:
        files: _Files | None = None
        writer = UnitWriter(options, classes, num_images, executor.num_processes)
        written_units = executor.map_units(writer, units, lambda unit: unit.num_bytes)
        for written_unit in stack.enter_context(contextlib.closing(written_units)):
            if written_unit.receipt.num_examples:
                files = files or _Files(stack, options, classes, data_path, index_path)
                files.add(written_unit, receipt.num_bytes)
            receipt.extend(written_unit.receipt)
            progress(written_unit.num_inputs, written_unit.receipt.num_bytes, len(written_unit.receipt.rejected))
        if files:
            files.end(receipt)
        if not is_wanted():
            raise Unwanted
    return receipt


class _Files:
    """The files of a shard, which get their names when `stack` ends: its records and, in a dataset, its index."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        options: ConvertOptions,
        classes: tuple[str, ...],
        data_path: str,
        index_path: str,
    ) -> None:
        self._file = _Summed(stack.enter_context(create(options.output, data_path, sync_name=False)))
        self._writer = SHARD_FORMATS[options.format].writer(self._file, schema_of(options, classes))
        self._index: IndexWriter | None = None
        if options.format not in EXPORTS:
            self._index_file = _Summed(stack.enter_context(create(options.output, index_path, sync_name=False)))
            self._index = stack.enter_context(IndexWriter(cast(IO[bytes], self._index_file)))

    def add(self, unit: WrittenUnit, begin: int) -> None:
        """Adds the records of a unit; the first begins at `begin` in the shard."""
        if self._index:
            self._index.add(unit.shifted_index(begin))
        # From another process, it is a memoryview already.
        self._writer.add(memoryview(unit.data), unit.index_columns, unit.crc32c)

    def end(self, receipt: Receipt) -> None:
        """Writes the rest of the files; their sizes and checksums go into the receipt."""
        self._writer.close()
        receipt.num_bytes, receipt.sha256 = self._file.num_bytes, self._file.sha256.hexdigest()
        receipt.crc32c = _base64(self._file.crc32c)
        if self._index:
            self._index.close()
            receipt.index_bytes, receipt.index_crc32c = self._index_file.num_bytes, _base64(self._index_file.crc32c)


class _Summed(io.RawIOBase):
    """File that is written through this one, which knows the size and the checksums of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.num_bytes, self.crc32c, self.sha256 = 0, 0, hashlib.sha256()
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any, crc32c: int | None = None) -> int:
        """Appends bytes; their CRC-32C, if the caller knows it, is not computed again."""
        if crc32c is None:
            self.crc32c = google_crc32c.extend(self.crc32c, bytes(data))
        else:
            self.crc32c = combined_crc32c(self.crc32c, crc32c, len(data))
        self.sha256.update(data)
        self.num_bytes += len(data)
        return self._file.write(data)


def _base64(crc: int) -> str:
    """Returns a CRC-32C as object stores give it: its four bytes, the most significant first, in base64."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def write_planned(
    shard: str, folder: WorkingFolder, options: ConvertOptions, executor: Executor, progress: Progress
) -> Receipt | None:
    """Writes one shard of a plan, and its receipt last; returns the receipt, None if it is not wanted. Idempotent.

    Beam runners retry an element when its worker is lost, and may run it twice at the same time when a worker is slow.
    Each attempt writes files of its own, and the first that is complete stores its receipt. An attempt that ends after
    another one, or after the dataset is complete or was removed, leaves nothing.
    """
    attempt = uuid.uuid4().hex
    paths = folder.attempt_paths(shard, attempt)
    plan = folder.read_plan()
    units = folder.read_units(shard, _rows_per_unit(sum(plan.num_images.values()), executor.num_workers))
    num_images, classes = plan.num_images_beside(shard), plan.classes
    try:
        receipt = write_shard(shard, *paths, units, num_images, options, classes, executor, progress, folder.is_open)
    except Unwanted:
        return None
    except storage.Changed as error:
        raise storage.Changed(changes(folder.read_rows(shard)) or str(error)) from error
    receipt.attempt = attempt
    if not (folder.is_open() and folder.write_receipt(receipt)):
        folder.remove_attempt(shard, attempt)
        return None
    return receipt


def _rows_per_unit(num_rows: int, num_workers: int) -> int:
    """Returns a size of units such that each worker gets several, but not so many that dividing them takes time."""
    return min(max(num_rows // (_UNITS_PER_WORKER * num_workers), _LEAST_ROWS), row_lines.MOST_ROWS)


def write_shards(shards: list[str], folder: WorkingFolder, options: ConvertOptions, executor: Executor) -> None:
    """Writes the given shards of a plan, several at the same time so that one of them may wait for a disk.

    Raises:
      OSError: A worker process was killed.
    """
    with ThreadPoolExecutor(_num_writers(options.output, executor.num_workers)) as threads:
        futures = list[Future[None]]()
        try:
            for shard in shards:
                futures.append(threads.submit(_write, shard, folder, options, executor))
            _wait(futures)
        except BaseException:
            for future in futures:
                future.cancel()
            executor.close()  # the threads end with CancelledError, and remove what they have begun
            raise


def _num_writers(output: str, num_workers: int) -> int:
    """Returns the number of shards that are written at the same time."""
    if storage.is_uri(output):
        return num_workers  # one upload does not use the whole network
    return min(max(num_workers // 4, 2), num_workers)


def _write(shard: str, folder: WorkingFolder, options: ConvertOptions, executor: Executor) -> None:
    # The receipt is not kept in memory.
    write_planned(shard, folder, options, executor, lambda *counts: phases.advance("writing", *counts))


def _wait(futures: list[Future[None]]) -> None:
    """Waits until all shards are written; raises the first error of one of them at once."""
    for future in concurrent.futures.as_completed(futures):
        future.result()
