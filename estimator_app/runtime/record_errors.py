"""Error messages for records that TensorFlow cannot parse or decode; its own errors name neither record nor split.

tf.errors.InvalidArgumentError("Invalid JPEG data …") ──named()──▶ ValueError: which record of which shard
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from estimator_app.runtime.tensorflow_startup import one_line
from tpu_input import Manifest, find_undecodable


@contextlib.contextmanager
def named(manifest: Manifest, split: str) -> Iterator[None]:
    """Context manager that replaces errors of the parser or decoder by a ValueError that names the record.

    All other errors pass through unchanged.

    Raises:
      ValueError: A record of the split cannot be parsed, or its image cannot be decoded.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        reason = one_line(error)
        place = find_undecodable(manifest, split, reason)
        if place is None:
            raise
        said = reason.partition(", value: ")[0]  # followed by the record itself, which is left out
        raise ValueError(
            f"{place} has an image or a label that cannot be decoded ({said}); find all such records with: "
            f"python -m beam_pipelines verify {manifest.path}"
        ) from error
