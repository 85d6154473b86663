"""Error messages of a dataset that cannot be read further; TensorFlow's own name neither record nor cause.

tf.errors.InvalidArgumentError("Invalid JPEG data …") ──record_errors()──▶ ValueError: which record of which shard
tf.errors.NotFoundError("…-00000-of-00042.tfrecord") ──record_errors()──▶ ValueError: the dataset was replaced or moved
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from estimator_app.runtime.tensorflow_startup import one_line
from tpu_input import Manifest, find_undecodable
from tpu_input.storage.positions import check_stands, unread


@contextlib.contextmanager
def record_errors(manifest: Manifest, split: str) -> Iterator[None]:
    """Context manager that replaces errors of the parser or decoder by a ValueError that names the record.

    A shard that is not there any more is also a ValueError. All other errors pass through unchanged.

    Raises:
      ValueError: A record of the split cannot be parsed, or its image cannot be decoded, or a shard is missing.
    """
    try:
        yield
    except _tensorflow_error("NotFoundError") as error:
        for shard in manifest.split(split).shards:
            if shard.name in error.message:
                check_stands(manifest.path, shard)
        raise
    except _tensorflow_error("InvalidArgumentError") as error:
        reason = one_line(error)
        place = find_undecodable(manifest, split, reason)
        if place is None:
            raise
        summary = reason.partition(", value: ")[0]  # followed by the record itself, which is left out
        raise ValueError(
            f"{place} has an image or a label that cannot be decoded ({summary}); find all such records with: "
            f"jpeg2tpu verify {manifest.path}"
        ) from error


def _tensorflow_error(name: str) -> Any:
    """Returns an exception type of TensorFlow, which catches nothing in a process that has not imported TensorFlow."""
    tensorflow = sys.modules.get("tensorflow")
    return getattr(tensorflow.errors, name) if tensorflow else ()


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
    place = int(number)
    for shard in manifest.split(split).shards:
        if place < shard.num_examples:
            break
        place -= shard.num_examples
    path = f"{manifest.path}/{shard.name}"
    why = f"cannot be decoded: {result}" if valid else f"has label {np.max(label)}, which is out of range"
    why += f"; find the damage with: jpeg2tpu verify {manifest.path}"
    raise ValueError(f"record {place} of {path!r} {why if is_read else unread(manifest)}")
