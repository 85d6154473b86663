"""Batches for the device, made on the host.

examples ──to_batches()──▶ N of them, image axes in the order of config.layout ──▶ device.py
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.pipeline.caching import check_batch
from tpu_input.pipeline.decoding import within_budget
from tpu_input.pipeline.device import resolved_layout
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.reading import finished, no_autograph

# Prefetched batches on the host, in steps: one that the device takes, and the next one. tf.data's own choice (AUTOTUNE)
# would grow with the available memory.
PREFETCHED_STEPS = 2
PARALLEL_LAYOUTS = 2  # batches; a transpose takes a hundredth of the time of decoding


def check_batch_size(batch_size: int, config: InputConfig) -> None:
    """Raises ValueError if the images of a batch do not fit into this machine's memory."""
    one = 3 * config.image_size**2 * tf.as_dtype(config.dtype).size
    check_batch("batch_size", batch_size, config.image_size, one, "use a smaller image_size")


def to_batches(
    dataset: tf.data.Dataset,
    batch_size: int,
    config: InputConfig,
    host: Host,
    skipped_steps: int = 0,
    num_steps: int | None = None,
) -> tf.data.Dataset:
    """Returns prefetched, full batches of `dataset`, with the images in the layout for the device.

    Args:
      dataset: Elements ({"image": [H, W, C] or a tuple of config.echo such images, …}, label), either endless or a
        multiple of batch_size.
      batch_size: Examples in a batch.
      config: For layout, echo and on_corrupt.
      host: For the batches per step, and the number of cores that share a batch, which layout "auto" depends on.
      skipped_steps: Steps whose batches are left out at the beginning.
      num_steps: Steps after which to end; None is endless.
    """
    check_batch_size(batch_size, config)
    dataset = dataset.batch(batch_size, drop_remainder=True)
    if config.on_corrupt == "skip":
        dataset = within_budget(dataset, config.max_corrupt)
    if config.echo > 1:
        dataset = _echoed(dataset, host.batches_per_step)
    dataset = dataset.skip(skipped_steps * host.batches_per_step) if skipped_steps else dataset
    dataset = dataset if num_steps is None else dataset.take(num_steps * host.batches_per_step)
    layout = resolved_layout(config.layout, batch_size // host.cores_per_batch)
    if layout != "NHWC":
        order = ["NHWC".index(axis) for axis in layout]
        dataset = dataset.map(
            no_autograph(lambda features, label: (features | {"image": tf.transpose(features["image"], order)}, label)),
            num_parallel_calls=PARALLEL_LAYOUTS,
        )
    return finished(dataset.prefetch(PREFETCHED_STEPS * host.batches_per_step))


def _echoed(dataset: tf.data.Dataset, batches_per_step: int) -> tf.data.Dataset:
    """Returns one batch for each crop in the tuple "image", with one crop per example.

    All batches of a step are of different images; their other crops make the next steps.
    """
    batched = batches_per_step > 1
    dataset = dataset.batch(batches_per_step, drop_remainder=True) if batched else dataset
    make = tf.data.Dataset.from_tensor_slices if batched else tf.data.Dataset.from_tensors

    @no_autograph
    def steps(features: dict[str, Any], label: tf.Tensor) -> tf.data.Dataset:
        first, *others = (make((features | {"image": crops}, label)) for crops in features["image"])
        return functools.reduce(tf.data.Dataset.concatenate, others, first)

    return dataset.flat_map(steps)
