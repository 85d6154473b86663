"""Error messages of a dataset that cannot be read further; TensorFlow's own name neither record nor cause.

tf.errors.InvalidArgumentError("Invalid JPEG data …") ──named()──▶ ValueError: which record of which shard
tf.errors.NotFoundError("…/train-00000-of-00042.tfrecord") ──named()──▶ ValueError: the dataset was replaced or moved
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from estimator_app.runtime.tensorflow_startup import one_line
from tpu_input import Manifest, find_undecodable
from tpu_input.pipeline.decoding import unread
from tpu_input.pipeline.reading import locate
from tpu_input.storage.positions import check_stands


@contextlib.contextmanager
def named(manifest: Manifest, split: str) -> Iterator[None]:
    """Context manager that replaces errors of the parser or decoder by a ValueError that names the record.

    A shard that is not there any more is also a ValueError. All other errors pass through unchanged.

    Raises:
      ValueError: A record of the split cannot be parsed, or its image cannot be decoded, or a shard is missing.
    """
    try:
        yield
    except tf.errors.NotFoundError as error:
        for shard in manifest.split(split).shards:
            if shard.name in error.message:
                check_stands(manifest.path, shard)
        raise
    except tf.errors.InvalidArgumentError as error:
        reason = one_line(error)
        place = find_undecodable(manifest, split, reason)
        if place is None:
            raise
        said = reason.partition(", value: ")[0]  # followed by the record itself, which is left out
        raise ValueError(
            f"{place} has an image or a label that cannot be decoded ({said}); find all such records with: "
            f"jpeg2tpu verify {manifest.path}"
        ) from error


def check_record(
    manifest: Manifest, split: str, number: int, is_read: bool, label: npt.NDArray[Any], result: object
) -> None:
    """Checks one record of a split.

    Args:
      manifest: The dataset.
      split: Name of the split.
      number: Number of the record in the split.
      is_read: Whether the record could be read.
      label: From parse().
      result: What the image gives; a ValueError if it cannot be decoded.

    Raises:
      ValueError: It cannot be read or decoded, or its label is outside the classes; the message names the record.
    """
    valid = bool(np.all((label >= 0) & (label < len(manifest.classes))))
    if is_read and valid and not isinstance(result, ValueError):
        return
    path, place = locate(manifest, split)(tf.constant(number, tf.int64))
    why = f"cannot be decoded: {result}" if valid else f"has label {np.max(label)}, which is out of range"
    why += f"; find the damage with: jpeg2tpu verify {manifest.path}"
    raise ValueError(f"record {place.numpy()} of {path.numpy().decode()!r} {why if is_read else unread(manifest)}")
