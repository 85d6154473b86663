"""One shard: its rows → checked images → records appended → renamed into place → a receipt.

    [Row] ──read_images──▶ (Row, CheckedImage or Rejected) ──encode──▶ shard, index, Receipt

Memory is that of the images in flight, whatever the size of a shard.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from typing import IO

from beam_pipelines import storage
from beam_pipelines.images import CheckedImage, Rejected
from beam_pipelines.index import IndexRow, index_path, write_index
from beam_pipelines.options import ConvertOptions
from beam_pipelines.reading import read_images
from beam_pipelines.receipts import Receipt, Rejection
from beam_pipelines.rows import Row
from tpu_input.schema import Record, encode, frame

Progress = Callable[[int, bool], None]


def write_shard(
    name: str,
    rows: Iterable[Row],
    options: ConvertOptions,
    classes: tuple[str, ...],
    progress: Progress = lambda num_bytes, written: None,
) -> Receipt:
    """Writes OUTPUT/`name` and its index; returns the receipt, which the caller leaves.

    A shard none of whose rows becomes a record is not written.

    Args:
      name: The shard's file name.
      rows: In the order of their records.
      options: For the output, first_label and what is done to images.
      classes: Names in label order.
      progress: Called for every input with (bytes written, whether there is a record).
    """
    labels = {class_name: label for label, class_name in enumerate(classes)}
    receipt, index, digest = Receipt(name), list[IndexRow](), hashlib.sha256()
    with contextlib.ExitStack() as stack:
        file: IO[bytes] | None = None
        for row, image in stack.enter_context(contextlib.closing(read_images(rows, options.images))):
            if isinstance(image, Rejected):
                receipt.rejected.append(Rejection(row.key, row.uri, image.reason, image.detail))
                progress(0, False)
                continue
            record = _record(row, image, labels[row.label])
            framed = frame(encode(record, options.first_label))
            file = file or stack.enter_context(storage.create(f"{options.output}/{name}"))
            file.write(framed)
            digest.update(framed)
            index.append(_index_row(row, image, record, receipt.num_bytes, len(framed)))
            receipt.add(image, record.label, len(framed))
            progress(len(framed), True)
        if index:
            write_index(index_path(options.output, name), index)
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


def _index_row(row: Row, image: CheckedImage, record: Record, offset: int, length: int) -> IndexRow:
    return IndexRow(
        key=row.key,
        uri=row.uri,
        label=record.label,
        offset=offset,
        length=length,
        height=image.height,
        width=image.width,
        sha256=record.sha256,
        dhash=image.dhash,
    )
