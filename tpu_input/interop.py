"""Helpers to use the same datasets without TPUEstimator: with tf.distribute, and as NumPy arrays for JAX and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def params_from_context(context: Any, global_batch_size: int) -> dict[str, int]:
    """Returns the params of an input_fn inside strategy.distribute_datasets_from_function.

        strategy.distribute_datasets_from_function(lambda context: input_fn(params_from_context(context, 1024)))

    Args:
      context: The tf.distribute.InputContext.
      global_batch_size: Examples per step over all replicas.

    Raises:
      ValueError: The batch is not divisible by the number of replicas.
    """
    return {
        "batch_size": context.get_per_replica_batch_size(global_batch_size),
        "host": context.input_pipeline_id,
        "num_hosts": context.num_input_pipelines,
        "batches_per_step": context.num_replicas_in_sync // context.num_input_pipelines,
    }


def as_numpy(dataset: tf.data.Dataset) -> Iterator[Any]:
    """Returns an iterator of a dataset's elements as NumPy arrays, e.g. ({"image", "weight"}, label) for JAX."""
    elements: Iterator[Any] = dataset.as_numpy_iterator()
    return elements
