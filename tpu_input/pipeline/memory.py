"""Largest host memory of training's input, estimated as a sum of buffers; only a cache grows with the dataset.

shuffle buffer + readers of shards + images being decoded and cropped + batches in progress (+ cache)
"""

from __future__ import annotations

import os

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.caching import cache_bytes, largest_image_bytes
from tpu_input.pipeline.decoding import PARALLEL_DECODES
from tpu_input.pipeline.device import PARALLEL_LAYOUTS, PREFETCHED_STEPS
from tpu_input.pipeline.gcs_filesystem import block_bytes
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.images import CAST_UP_TO
from tpu_input.pipeline.reading import read_buffer_bytes
from tpu_input.pipeline.shuffling import buffer_records

# tf.data's parallel interleave opens twice cycle_length shards ahead of the cycle, and buffers up to 3 records of each.
# tensorflow/core/kernels/data/parallel_interleave_dataset_op.cc: kDefaultCyclePrefetchFactor,
# kDefaultPerIteratorPrefetchFactor
_OPEN_PER_CYCLE, _RECORDS_AHEAD = 3, 3


def input_bytes(manifest: Manifest, split: str, config: InputConfig, batch_size: int, host: Host) -> dict[str, int]:
    """Returns the peak bytes of each part of make_train_input_fn's dataset, without TensorFlow's own memory.

    Args:
      manifest: For the mean size of a record, and the mean height and width of images if they are known.
      split: Name of the split.
      config: For shuffle_records, shuffle_bytes, parallel_shards, image_size, dtype, echo, layout and cache.
      batch_size: Examples in a batch of this host.
      host: For its shards, and the batches per step.
    """
    of = manifest.split(split)
    record = of.num_bytes // max(1, of.num_examples)
    open_shards = min(_OPEN_PER_CYCLE * config.parallel_shards, len(host.shards(of.shards)))
    pixels = config.image_size**2 * 3
    image = pixels * tf.as_dtype(config.dtype).size
    whole = largest_image_bytes(manifest, split)
    # One is being filled, one is being taken. A layout other than NHWC holds its batches before and after transposing.
    batches = PREFETCHED_STEPS * host.batches_per_step + 2 + (0 if config.layout == "NHWC" else 2 * PARALLEL_LAYOUTS)
    shuffled = min(buffer_records(manifest, split, config), host.num_examples(of.shards))
    return {
        "shuffle": 0 if config.cache else shuffled * record,
        "read": open_shards * (_reader_bytes(manifest.path) + _RECORDS_AHEAD * record),
        "decode": PARALLEL_DECODES * (record + config.echo * image + (whole if config.cache == "decoded" else 0)),
        "crop": (os.cpu_count() or 1) * (whole + config.echo * (CAST_UP_TO + 1) * pixels * tf.float32.size),
        "batches": (batches + (config.echo if config.echo > 1 else 0)) * batch_size * image,
        "cache": cache_bytes(manifest, split, host, config) if config.cache else 0,
    }


def _reader_bytes(path: str) -> int:
    """Returns the bytes buffered to read a shard: in a bucket also TensorFlow's block, unless reads are larger."""
    buffer = read_buffer_bytes(path)
    return buffer + (block_bytes() if path.startswith("gs://") and block_bytes() >= buffer else 0)
