"""One shard: its rows → images read ahead → checked → records appended → renamed into place → a receipt.

    [Row] ──read──▶ (Row, bytes) ──check──▶ (Row, CheckedImage or Rejected) ──encode──▶ shard, index, receipt

Reading and decoding run in threads, several in flight and in order: Pillow decodes, hashlib hashes and files are read
outside the GIL, so that threads use all cores, and there is no worker process whose death could pass unnoticed.
Memory is that of the images in flight, whatever the size of a shard.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import IO, TypeVar

from beam_pipelines import storage
from beam_pipelines.images import CheckedImage, Rejected, check_image
from beam_pipelines.index import IndexRow, index_path, write_index
from beam_pipelines.receipts import Receipt, Rejection
from beam_pipelines.rows import Row
from tpu_input.schema import Record, encode, frame

_READS_IN_FLIGHT = 32
_IN = TypeVar("_IN")
_OUT = TypeVar("_OUT")


def write_shard(name: str, rows: Iterable[Row], dataset: str, classes: tuple[str, ...], first_label: int) -> Receipt:
    """Writes DATASET/`name` and its index; returns the receipt, which the caller leaves.

    A shard none of whose rows becomes a record is not written.

    Args:
      name: The shard's file name.
      rows: In the order of their records.
      dataset: Folder or URI.
      classes: Names in label order.
      first_label: Label on disk of class 0.
    """
    labels = {class_name: label for label, class_name in enumerate(classes)}
    receipt, index, digest = Receipt(name), list[IndexRow](), hashlib.sha256()
    with contextlib.ExitStack() as stack:
        file: IO[bytes] | None = None
        for row, image in stack.enter_context(contextlib.closing(_checked(rows))):
            if isinstance(image, Rejected):
                receipt.rejected.append(Rejection(row.key, row.uri, image.reason, image.detail))
                continue
            record = _record(row, image, labels[row.label])
            framed = frame(encode(record, first_label))
            file = file or stack.enter_context(storage.create(f"{dataset}/{name}"))
            file.write(framed)
            digest.update(framed)
            where = receipt.num_bytes, len(framed)
            index.append(IndexRow(row.key, row.uri, record.label, *where, image.height, image.width, record.sha256))
            receipt.add(image, record.label, len(framed))
        if index:
            write_index(index_path(dataset, name), index)
            receipt.sha256 = digest.hexdigest()
    return receipt


def _record(row: Row, image: CheckedImage, label: int) -> Record:
    return Record(
        key=row.key,
        encoded=image.encoded,
        height=image.height,
        width=image.width,
        channels=image.channels,
        label=label,
        class_name=row.label,
        sha256=hashlib.sha256(image.encoded).hexdigest(),
    )


def _checked(rows: Iterable[Row]) -> Generator[tuple[Row, CheckedImage | Rejected], None, None]:
    """Yields every row with its image or with why there is none, in order."""
    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(_READS_IN_FLIGHT) as readers, ThreadPoolExecutor(cores) as decoders:
        read = in_flight(readers, _read, rows, _READS_IN_FLIGHT)
        yield from in_flight(decoders, _check, read, 2 * cores)


def in_flight(pool: Executor, function: Callable[[_IN], _OUT], items: Iterable[_IN], limit: int) -> Iterator[_OUT]:
    """Yields function(item) for every item, in order, with at most `limit` under way or waiting to be taken."""
    futures: collections.deque[Future[_OUT]] = collections.deque()
    for item in items:
        futures.append(pool.submit(function, item))
        if len(futures) == limit:
            yield futures.popleft().result()
    while futures:
        yield futures.popleft().result()


def _read(row: Row) -> tuple[Row, bytes | Rejected]:
    if row.reason:
        return row, Rejected(row.reason, row.detail)
    try:
        return row, storage.read_bytes(row.uri)
    except FileNotFoundError as error:
        return row, Rejected("missing", str(error))
    except Exception as error:  # whatever a filesystem raises for an object that it cannot deliver
        return row, Rejected("unreadable", f"{type(error).__name__}: {error}")


def _check(loaded: tuple[Row, bytes | Rejected]) -> tuple[Row, CheckedImage | Rejected]:
    row, data = loaded
    if isinstance(data, Rejected):
        return row, data
    try:
        return row, check_image(data)
    except Rejected as rejected:
        return row, rejected
