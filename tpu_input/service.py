"""Training's work on other machines, by tf.data service; every host takes what is ready, each example once an epoch.

    dispatcher: visit number (epoch x shards + place in the epoch's order) ──each to one worker──▶
    worker:     records of several shards in turn ▶ shuffle ▶ decode, crop, batch, layout ──▶ whichever host asks first

https://www.tensorflow.org/api_docs/python/tf/data/experimental/service. What a worker is given are visits, not files:
an endless dataset of epochs can then be divided, and nothing but the order depends on who works.
"""

from __future__ import annotations

import dataclasses
import hashlib
import warnings

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.reading import plain, read_buffer_bytes, shard_records
from tpu_input.pipeline.shuffling import buffer_records, shard_order


def visited_records(manifest: Manifest, split: str, config: InputConfig, start: int) -> tf.data.Dataset:
    """Returns endless (example number, (path, number in the shard, serialized)), of which each worker gets a part.

    The number is epoch x examples + the record's place in the split: it knows no worker, and so do the crops.

    Args:
      manifest: The dataset.
      split: Name of the split.
      config: For seed, parallel_shards and the shuffle buffer, which each worker has of its own.
      start: Examples that earlier steps took; begins with the visit that they had come to.
    """
    shards = manifest.split(split).shards
    counts = [shard.num_examples for shard in shards]
    total = sum(counts)
    paths = tf.constant([f"{manifest.path}/{shard.name}" for shard in shards])
    sizes = tf.constant([[shard.num_examples, shard.num_bytes] for shard in shards], tf.int64)
    firsts = tf.constant([sum(counts[:index]) for index in range(len(shards))], tf.int64)

    @plain
    def records_of(visit: tf.Tensor) -> tf.data.Dataset:
        epoch, place = visit // len(shards), visit % len(shards)
        shard = shard_order(epoch, len(shards), config)[place]
        first = epoch * total + firsts[shard]
        buffer_bytes = read_buffer_bytes(manifest.path)
        dataset = shard_records(paths[shard], sizes[shard, 0], sizes[shard, 1], buffer_bytes=buffer_bytes)
        return dataset.map(plain(lambda path, number, serialized: (first + number, (path, number, serialized))))

    at_once = min(config.parallel_shards, len(shards))
    dataset = tf.data.Dataset.range(start * len(shards) // total, 2**62).interleave(
        records_of,
        cycle_length=at_once,
        num_parallel_calls=at_once,
        deterministic=False,
    )
    return dataset.shuffle(buffer_records(manifest, split, config), config.seed)


def served(batches: tf.data.Dataset, config: InputConfig, *described_by: object) -> tf.data.Dataset:
    """Returns batches as a tf.data service hands them out: each to one of the hosts that take part in the job.

    Args:
      batches: What visited_records() became.
      config: For service and service_job.
      described_by: What else tells these batches from others'.
    """
    # A dispatcher that knows the name of a job asks no further and hands out that job's batches, whatever dataset
    # comes with the name (TF 2.15).
    augment = getattr(config.augment, "__qualname__", type(config.augment).__qualname__)
    told = repr((dataclasses.replace(config, augment=None), augment, described_by))
    digest = hashlib.sha256(told.encode()).hexdigest()[:12]
    distributed = tf.data.experimental.service.distribute(
        tf.data.experimental.service.ShardingPolicy.DYNAMIC,
        config.service,
        job_name=f"{config.service_job}-{digest}",
        compression=None,  # pixels hardly shrink
    )
    with warnings.catch_warnings():  # distribute() looks at options, which a v1 graph comments on
        warnings.simplefilter("ignore", UserWarning)
        return batches.apply(distributed)
