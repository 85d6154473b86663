"""One way of reading records in a random order with TensorFlow, in a process of its own; __main__.py starts it.

python -m benchmarks.order.ours seen|resume|waits|cost WAY DATASET ARGUMENTS_IN_JSON  ──▶  what measures.py says

Records stay serialized. Ours are read as training from files reads them; a split of at most 64 MiB would be kept in
memory instead, in an order of the same kind.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.order.measures import Ask, Way, main, read_manifest
from tpu_input.pipeline.lanes import lane_records
from tpu_input.pipeline.order import Order
from tpu_input.pipeline.reading import no_autograph

SHUFFLE_RECORDS = 16_384
SHARDS_AT_ONCE = 16


def ours(ask: Ask, ends: bool = False) -> Iterator[Sequence[Any]]:
    """The training order of tpu_input, read by its lanes.

    Args:
      ask: What to read.
      ends: Whether the step at which reading ends is known in advance, as with end_step of make_train_input_fn.
    """
    manifest, batch_size = read_manifest(ask.dataset), ask.batch_size
    order = Order(manifest.split("train").num_examples, ask.step_records, ask.seed)
    end = ask.step + ask.num_steps if ends and ask.num_steps else None
    positions = range(ask.host * batch_size, (ask.host + 1) * batch_size)
    records = lane_records(manifest, "train", order, positions, ask.step, end)
    return _batches(records.map(no_autograph(lambda _, serialized: serialized)), ask)


def tf_data(ask: Ask, repeat_first: bool) -> Iterator[Sequence[Any]]:
    """A host's shards in random order, interleaved, and a shuffle buffer; tf.data begins at a step by skipping.

    Args:
      ask: What to read.
      repeat_first: Whether epochs run into each other in the shuffle buffer, which is then always full.
    """
    manifest = read_manifest(ask.dataset)
    names = [f"{manifest.path}/{shard.name}" for shard in manifest.split("train").shards]
    shards = tf.data.Dataset.from_tensor_slices(names).shard(ask.hosts, ask.host).shuffle(len(names), ask.seed)
    shards = shards.repeat() if repeat_first else shards
    records = shards.interleave(
        tf.data.TFRecordDataset, cycle_length=SHARDS_AT_ONCE, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    ).shuffle(SHUFFLE_RECORDS, ask.seed)
    records = records if repeat_first else records.repeat()
    return _batches(records.skip(ask.step * ask.batch_size), ask)


def in_order(ask: Ask) -> Iterator[Sequence[Any]]:
    """The records in the order on disk, shard after shard, which is the least that reading takes."""
    manifest = read_manifest(ask.dataset)
    names = [f"{manifest.path}/{shard.name}" for shard in manifest.split("train").shards]
    return _batches(tf.data.TFRecordDataset(names, buffer_size=1 << 20).repeat(), ask)


def _batches(records: tf.data.Dataset, ask: Ask) -> Iterator[Sequence[Any]]:
    batches: Iterator[Sequence[Any]] = (
        records.batch(ask.batch_size, drop_remainder=True).prefetch(2).as_numpy_iterator()
    )
    return batches


WAYS: dict[str, Way] = {
    "ours": ours,
    "ours_ends": functools.partial(ours, ends=True),
    "repeat_shuffle": functools.partial(tf_data, repeat_first=True),
    "shuffle_repeat": functools.partial(tf_data, repeat_first=False),
    "in_order": in_order,
}

if __name__ == "__main__":
    next(iter(tf.data.Dataset.range(1)))  # TensorFlow's own start
    main(WAYS)
