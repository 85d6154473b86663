"""Largest host memory of training's input, estimated as a sum of buffers; only a cache grows with the dataset.

readers of lanes, or records in memory + images being decoded and cropped + batches in progress (+ cache)
"""

from __future__ import annotations

import os

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.batches import PARALLEL_LAYOUTS, PREFETCHED_STEPS
from tpu_input.pipeline.caching import cache_bytes, largest_image_bytes
from tpu_input.pipeline.decoding import parallel_decodes
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.images import CAST_UP_TO
from tpu_input.pipeline.lanes import buffer_bytes, records_ahead
from tpu_input.pipeline.order import Order, is_in_memory
from tpu_input.pipeline.reading import is_remote
from tpu_input.storage.gcs_filesystem import block_bytes

# Records that tf.data's parallel interleave buffers of each lane (it is used for buckets).
# tensorflow/core/kernels/data/parallel_interleave_dataset_op.cc: kDefaultPerIteratorPrefetchFactor
_RECORDS_AHEAD = 3
_LANE_BYTES = 150 << 10  # TensorFlow's iterators of a lane, measured with 1,024 of them


def input_bytes(manifest: Manifest, split: str, config: InputConfig, batch_size: int, host: Host) -> dict[str, int]:
    """Returns the peak bytes of each part of make_train_input_fn's dataset, without TensorFlow's own memory.

    Args:
      manifest: For the mean size of a record, and the mean height and width of images if they are known.
      split: Name of the split.
      config: For image_size, dtype, echo, layout and cache.
      batch_size: Examples in a batch of this host.
      host: For the batches per step.
    """
    split_info = manifest.split(split)
    record = split_info.num_bytes // max(1, split_info.num_examples)
    read = 0 if config.cache else split_info.num_bytes
    if not config.cache and not is_in_memory(manifest, split):
        order = Order.of(manifest, split, host.lanes(batch_size), config.seed, config.block_records, config.sampling)
        read = _lanes_bytes(manifest, split, order, len(host.positions(batch_size)), record)
    pixels = config.image_size**2 * 3
    image = pixels * tf.as_dtype(config.dtype).size
    full_image = largest_image_bytes(manifest, split)
    # One is being filled, one is being taken. A layout other than NHWC holds its batches before and after transposing.
    batches = PREFETCHED_STEPS * host.batches_per_step + 2 + (0 if config.layout == "NHWC" else 2 * PARALLEL_LAYOUTS)
    return {
        "read": read,
        "decode": parallel_decodes(config.service)
        * (record + config.echo * image + (full_image if config.cache == "decoded" else 0)),
        "crop": (os.cpu_count() or 1) * (full_image + config.echo * (CAST_UP_TO + 1) * pixels * tf.float32.size),
        "batches": (batches + (config.echo if config.echo > 1 else 0)) * batch_size * image,
        "cache": cache_bytes(manifest, split, host, config) if config.cache else 0,
    }


def _lanes_bytes(manifest: Manifest, split: str, order: Order, lanes: int, record: int) -> int:
    """Returns the bytes that a host's lanes have read ahead, of records of `record` bytes on average."""
    buffer, ahead = buffer_bytes(manifest.path, lanes), 1
    if is_remote(manifest.path):
        ahead = records_ahead(manifest, split, order, lanes) + _RECORDS_AHEAD
    block = block_bytes() if manifest.path.startswith("gs://") else 0  # TensorFlow's own
    return lanes * (buffer + block + ahead * record + _LANE_BYTES)
