"""Records of a split in batches, and what a model gives for their images.

    split ──read_batches()──▶ Batch ──model──▶ (Batch, rows): run_on_records()

TensorFlow reads the shards for its own models; for models of JAX, they are read without TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from estimator_app.runtime.record_errors import check_record, record_errors
from estimator_app.saved_model.classifier import Array
from tpu_input import Manifest, RecordSource
from tpu_input.dataset_format.records import parse
from tpu_input.example_source import label_of

if TYPE_CHECKING:
    import tensorflow as tf


class Batch(NamedTuple):
    """Records of a split.

    Attributes:
      numbers: [N] numbers in the split.
      are_read: [N] whether each could be read; one that could not has no key, no image and no label.
      keys: [N] bytes.
      encoded: [N] image files.
      labels: [N] integers; with several labels per image, [N, num_labels] of zeros and ones.
    """

    numbers: Array
    are_read: Array
    keys: Array
    encoded: Sequence[bytes]
    labels: Array


def read_batches(
    manifest: Manifest, split: str, batch_size: int, ranges: Sequence[range] | None, with_tensorflow: bool
) -> Iterator[Batch]:
    """Yields records of a split; the last batch may be smaller.

    Args:
      manifest: The dataset.
      split: Name of the split.
      batch_size: Records per batch.
      ranges: Ranges of the numbers of the records, in whose order they come, of whole batches but for the last; None
        for all, in any order.
      with_tensorflow: Whether TensorFlow reads them.

    Raises:
      ValueError, tf.errors.OpError: A shard or a record cannot be read.
    """
    if not with_tensorflow:
        yield from _read_by_number(manifest, split, batch_size, ranges)
        return
    import tensorflow as tf

    from tpu_input.pipeline.reading import no_autograph, records

    @no_autograph
    def columns_of(number: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        example = parse(serialized, manifest.first_label, manifest.record, manifest.num_labels)
        key = tf.io.parse_single_example(serialized, {"image/key": tf.io.FixedLenFeature([], tf.string, "")})
        return number, tf.not_equal(serialized, ""), key["image/key"], example["encoded"], example["label"]

    dataset = records(manifest, split, ranges, by_number=ranges is not None).map(columns_of)
    for columns in dataset.batch(batch_size).prefetch(2).as_numpy_iterator():
        yield Batch(*columns)


def _read_by_number(manifest: Manifest, split: str, batch_size: int, ranges: Sequence[range] | None) -> Iterator[Batch]:
    source = RecordSource(manifest, split)
    for record_range in ranges or [range(len(source))]:
        for start in range(record_range.start, record_range.stop, batch_size):
            numbers = range(start, min(start + batch_size, record_range.stop))
            records = [source[number] for number in numbers]
            yield Batch(
                numbers=np.array(numbers),
                are_read=np.ones(len(numbers), bool),
                keys=np.array([record.key.encode() for record in records], object),
                encoded=[record.encoded for record in records],
                labels=np.array([label_of(manifest, record) for record in records]),
            )


def run_on_records(
    run: Callable[[Sequence[bytes]], list[Array | ValueError]],
    manifest: Manifest,
    split: str,
    batch_size: int,
    ranges: Sequence[range] | None = None,
    with_tensorflow: bool = True,
) -> Iterator[tuple[Batch, Array]]:
    """Yields the batches of read_batches(), each with the [N, …] rows that a model gives for its images.

    Args:
      run: Function of image files -> a row of each, or a ValueError for one that is not an image.
      manifest: As of read_batches().
      split: As of read_batches().
      batch_size: As of read_batches().
      ranges: As of read_batches().
      with_tensorflow: As of read_batches().

    Raises:
      ValueError: A record cannot be read or decoded, or has a label outside the classes; the message names it.
    """
    with record_errors(manifest, split):
        for batch in read_batches(manifest, split, batch_size, ranges, with_tensorflow):
            results = run(list(batch.encoded))
            for number, is_read, key, _, label, result in zip(*batch, results, strict=True):
                if isinstance(result, ValueError) and not with_tensorflow:
                    raise ValueError(
                        f"the image of {key.decode()!r} cannot be decoded: {result}; find the damage with: "
                        f"jpeg2tpu verify {manifest.path}"
                    )
                check_record(manifest, split, number, is_read, label, result)
            yield batch, np.stack([result for result in results if not isinstance(result, ValueError)])
