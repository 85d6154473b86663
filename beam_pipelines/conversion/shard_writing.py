"""Writing of shards: rows → checked images → records and index in files of this attempt → receipt, which names them.

    [Row] ──map_images──▶ (Row, framed record or Rejected) ──append──▶ shard, index, Receipt

Memory use depends on the images in flight, not on the size of a shard.

On one machine, the shards of a plan are written by one process per core. Beam's local runner has either threads, which
share one interpreter (GIL), or processes, and it hangs when one of these is killed. Here the conversion fails at once
when a worker process is killed, and a worker exits when its parent process is gone. Processes are spawned, not forked,
because a fork of a process with threads may inherit a lock that is never released.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import functools
import hashlib
import io
import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import google_crc32c

from beam_pipelines import storage
from beam_pipelines.conversion.output_folder import create
from beam_pipelines.conversion.plan import is_measured
from beam_pipelines.conversion.working_folder import Receipt, Rejection, WorkingFolder, origin
from beam_pipelines.options import ConvertOptions
from beam_pipelines.runners import phases
from beam_pipelines.sources.read_ahead import changes, map_images
from beam_pipelines.sources.rows import Row, features_of
from tpu_input.dataset_format.index import IndexRow, IndexWriter
from tpu_input.dataset_format.label_kinds import Label
from tpu_input.dataset_format.records import Record, encode, frame
from tpu_input.stored_images.check import CheckedImage, Rejected, check_image

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import SynchronizedArray

Progress = Callable[[int, bool], None]
_FLUSHED_BYTES = 1 << 20


class Unwanted(Exception):
    """The shard is not needed any more: the conversion is complete, or its working files were removed."""


def write_shard(
    name: str,
    data_path: str,
    its_index_path: str,
    rows: Iterable[Row],
    num_images: int,
    options: ConvertOptions,
    classes: tuple[str, ...],
    num_decoders: int,
    progress: Progress = lambda num_bytes, written: None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Receipt:
    """Writes a shard and its index; returns the receipt, which the caller stores.

    No file is written if none of the rows becomes a record. The names of the files are not flushed to disk: the
    receipt, which is written into the same folder later, does so for all three. If a power failure leaves a receipt
    without its files, a rerun finds them missing and writes the shard again.

    Args:
      name: Name of the shard in the plan, for the receipt.
      data_path: Path of the shard within the output.
      its_index_path: Path of its index.
      rows: Inputs, in the order of their records.
      num_images: Number of images of the split, from which it follows which of them the statistics include.
      options: Options of the conversion, of which output, first_label and images are used.
      classes: Class names in label order.
      num_decoders: Number of threads that decode.
      progress: Called for every input with (bytes written, whether it became a record).
      is_wanted: Called when all records are written, before the files get their names.

    Raises:
      Unwanted: is_wanted() returned False; nothing is left.
    """
    labels = {class_name: label for label, class_name in enumerate(classes)}
    frame_image = functools.partial(_frame_image, options=options, labels=labels, num_images=num_images)
    receipt = Receipt(name)
    with contextlib.ExitStack() as stack:
        files: _Files | None = None
        framed_images = map_images(rows, frame_image, num_decoders)
        for row, framed in stack.enter_context(contextlib.closing(framed_images)):
            uri = origin(row.uri, options.output)
            if isinstance(framed, Rejected):
                receipt.rejected.append(Rejection(row.key, uri, framed.reason, framed.detail))
                progress(0, False)
                continue
            files = files or _Files(stack, options.output, data_path, its_index_path)
            files.add(framed.data, _index_row(row, uri, framed, receipt.num_bytes))
            receipt.add(framed.image, framed.label, len(framed.data))
            progress(len(framed.data), True)
        if files:
            files.end(receipt)
        if not is_wanted():
            raise Unwanted
    return receipt


class _Files:
    """The files of a shard, which get their names when `stack` ends: its records and its index.

    Records are written and hashed a megabyte at a time.
    """

    def __init__(self, stack: contextlib.ExitStack, output: str, data_path: str, its_index_path: str) -> None:
        self._file = stack.enter_context(create(output, data_path, sync_name=False))
        self._index_file = _Summed(stack.enter_context(create(output, its_index_path, sync_name=False)))
        self._index = stack.enter_context(IndexWriter(cast(IO[bytes], self._index_file)))
        self._sha256, self._crc32c = hashlib.sha256(), 0
        self._parts, self._num_bytes = list[bytes](), 0

    def add(self, data: bytes, row: IndexRow) -> None:
        self._index.add(row)
        self._parts.append(data)
        self._num_bytes += len(data)
        if self._num_bytes >= _FLUSHED_BYTES:
            self._flush()

    def end(self, receipt: Receipt) -> None:
        """Writes what add() has kept; sizes and checksums of the files go into the receipt."""
        self._flush()
        self._index.close()
        receipt.sha256, receipt.crc32c = self._sha256.hexdigest(), _base64(self._crc32c)
        receipt.index_bytes, receipt.index_crc32c = self._index_file.num_bytes, _base64(self._index_file.crc32c)

    def _flush(self) -> None:
        data = b"".join(self._parts)
        self._parts, self._num_bytes = [], 0
        self._file.write(data)
        self._sha256.update(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)


class _Summed(io.RawIOBase):
    """File that is written through this one, which knows the size and the CRC-32C of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.num_bytes, self.crc32c = 0, 0
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.crc32c = google_crc32c.extend(self.crc32c, bytes(data))
        self.num_bytes += len(data)
        return self._file.write(data)


def _base64(crc: int) -> str:
    """Returns a CRC-32C as object stores give it: its four bytes, the most significant first, in base64."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def write_planned(
    shard: str, folder: WorkingFolder, options: ConvertOptions, num_decoders: int, progress: Progress
) -> Receipt | None:
    """Writes one shard of a plan, and its receipt last; returns the receipt, None if it is not wanted. Idempotent.

    Beam runners retry an element when its worker is lost, and may run it twice at the same time when a worker is slow.
    Each attempt writes files of its own, and the first that is complete stores its receipt. An attempt that ends after
    another one, or after the dataset is complete or was removed, leaves nothing.
    """
    attempt = uuid.uuid4().hex
    paths = folder.attempt_paths(shard, attempt)
    rows, plan = folder.read_rows(shard), folder.read_plan()
    num_images, classes = plan.num_images_beside(shard), plan.classes
    try:
        receipt = write_shard(shard, *paths, rows, num_images, options, classes, num_decoders, progress, folder.is_open)
    except Unwanted:
        return None
    except storage.Changed as error:
        raise storage.Changed(changes(folder.read_rows(shard)) or str(error)) from error
    receipt.attempt = attempt
    if not (folder.is_open() and folder.write_receipt(receipt)):
        folder.remove_attempt(shard, attempt)
        return None
    return receipt


class _Framed(NamedTuple):
    """An image with its label, the SHA-256 of its file, and the bytes of its TFRecord with the frame."""

    image: CheckedImage
    label: Label
    sha256: str
    data: bytes


def _frame_image(row: Row, data: bytes, options: ConvertOptions, labels: dict[str, int], num_images: int) -> _Framed:
    with_statistics = is_measured(row.key, options.seed, num_images, options.images.check)
    image = check_image(data, options.images, with_statistics)
    sha256, kind = hashlib.sha256(image.encoded).hexdigest(), options.label_kind
    names = sorted(kind.names(row.label), key=labels.__getitem__)
    label, class_name = kind.label([labels[name] for name in names]), kind.class_name(names)
    record = Record(
        row.key, image.encoded, image.height, image.width, image.channels, label, class_name, sha256, features_of(row)
    )
    return _Framed(image, label, sha256, frame(encode(record, options.first_label)))


def _index_row(row: Row, uri: str, framed: _Framed, offset: int) -> IndexRow:
    image = framed.image
    source_width, source_height = image.source_size or (image.width, image.height)
    return IndexRow(
        row.key,
        uri,
        framed.label,
        offset,
        len(framed.data),
        image.height,
        image.width,
        framed.sha256,
        image.dhash,
        row.num_bytes,
        source_height,
        source_width,
        row.features,
    )


_LOOK_EACH = 0.1  # seconds between two updates of the progress bar
# Environment of the writer processes. Arrow's own allocator keeps the memory of an index for the next one, some 20 MB;
# only the environment chooses it, as what writes Parquet ignores set_memory_pool().
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
# Inputs, rejected, bytes: totals in memory shared by all writer processes.
_counts: SynchronizedArray[int] | None = None


def write_shards(shards: list[str], folder: WorkingFolder, options: ConvertOptions, num_cores: int) -> None:
    """Writes the given shards of a plan with one process per core, or with fewer processes of several threads each.

    Raises:
      OSError: A process was killed.
    """
    global _counts
    context = multiprocessing.get_context("spawn")
    # Kept until this process ends, for a process that has just been started when the others have written all shards.
    counts = _counts = context.Array("q", 3) if phases.is_shown() else None
    num_processes = min(len(shards), num_cores)
    num_decoders = num_cores // num_processes
    write = functools.partial(_write, folder=folder, options=options, num_decoders=num_decoders, progress=_count)
    with ProcessPoolExecutor(num_processes, context, _begin, (counts,)) as pool:
        with _environment(_ENVIRONMENT):
            written = [pool.submit(write, shard) for shard in shards]  # the first one starts all processes
        try:
            if counts:
                phases.begin("writing", folder.num_rows(shards))
            _wait(written, counts)
        except BrokenProcessPool:
            raise OSError(
                "a process that writes shards has ended: it was killed, perhaps because memory ran out, or the script "
                'that calls convert does not do so below `if __name__ == "__main__":`'
            ) from None
        except KeyboardInterrupt:
            for (
                process
            ) in multiprocessing.active_children():  # Ctrl-C reaches them as well, but SIGTERM only this process
                process.terminate()
            raise
        finally:
            # Waiting here for the pool's own thread: at the end of the interpreter, the pool would be woken while that
            # thread closes the pipe it is woken by.
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets variables of the environment, except those that the user has set, for the processes that are started."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _write(shard: str, folder: WorkingFolder, options: ConvertOptions, num_decoders: int, progress: Progress) -> None:
    write_planned(shard, folder, options, num_decoders, progress)  # the receipt is not sent to the other process


def _wait(written: list[Future[None]], counts: SynchronizedArray[int] | None) -> None:
    """Waits until all shards are written; raises the first error of one of them at once."""
    left = set(written)
    while left:
        done, left = concurrent.futures.wait(left, _LOOK_EACH if counts else None, concurrent.futures.FIRST_EXCEPTION)
        for future in done:
            future.result()
        if counts:
            phases.reach("writing", counts[0], num_bytes=counts[2], num_rejected=counts[1])


def _begin(counts: SynchronizedArray[int] | None) -> None:
    """Initializes a writer process: it exits when its parent exits, and silently on SIGINT."""
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
