"""Stages of the input as separate datasets for the benchmark; each is training's input, cut off after that stage.

read ▶ parse ▶ crop: choose a window ▶ decode it ▶ resize, flip, dtype, augment ▶ batch, echo ▶ layout
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest, parse
from tpu_input.pipeline.decoding import PARALLEL_DECODES
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.images import random_window
from tpu_input.pipeline.reading import plain, records
from tpu_input.pipeline.shuffling import shuffled_records
from tpu_input.train import crops_of_decoded, crops_of_records, make_train_input_fn


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Dataset to be timed.

    Attributes:
      make: Returns a new endless dataset.
      images: Number of images that one element of the dataset stands for.
    """

    make: Callable[[], tf.data.Dataset]
    images: int

    @classmethod
    def of(cls, manifest: Manifest, config: InputConfig, split: str, batch_size: int) -> Candidate:
        """Returns the complete input, as training calls it."""
        input_fn = make_train_input_fn(manifest, config, split)
        return cls(lambda: input_fn({"batch_size": batch_size}), batch_size)


def single_threaded(manifest: Manifest, config: InputConfig, split: str, batch_size: int) -> dict[str, Candidate]:
    """Returns a candidate for each part of training's input that runs on one thread, regardless of the number of cores.

    "read" reads and shuffles the records of a dataset on local disk; "batch" puts images into batches.

    Args:
      manifest: The dataset.
      config: Options of training's input; cache and service are ignored.
      split: Name of the split.
      batch_size: Images per batch.
    """

    def read() -> tf.data.Dataset:
        return shuffled_records(manifest, split, Host(), config, 0).batch(batch_size, drop_remainder=True)

    def batch() -> tf.data.Dataset:
        black = tf.zeros([config.image_size, config.image_size, 3], config.dtype)
        example = {"image": black, "weight": tf.constant(1.0)}, tf.constant(0)
        return tf.data.Dataset.from_tensors(example).repeat().batch(batch_size, drop_remainder=True)

    return {"read": Candidate(read, batch_size * config.echo), "batch": Candidate(batch, batch_size)}


def stages(manifest: Manifest, config: InputConfig, split: str, batch_size: int) -> dict[str, Candidate]:
    """Returns a candidate for each stage with all stages before it, in order; without those that config.cache skips.

    Args:
      manifest: The dataset.
      config: Options of training's input.
      split: Name of the split.
      batch_size: Images per batch; in the stages before batching, placeholders per batch that stand for images.
    """
    crops = crops_of_decoded if config.cache == "decoded" else crops_of_records
    # With an output of one pixel, decoding costs as much as usual, and what follows next to nothing.
    one_pixel = dataclasses.replace(config, image_size=1, dtype="uint8", augment=None)
    unlaid = dataclasses.replace(config, layout="NHWC")

    def counted(config: InputConfig) -> Candidate:
        return _counted(lambda: crops(manifest, split, Host(), config, 0), batch_size, config.echo)

    found = {} if config.cache else _until_decoding(manifest, config, split, batch_size)
    found |= {"decode": counted(one_pixel), "resize": counted(config)}
    found["batch"] = Candidate.of(manifest, unlaid, split, batch_size)
    found["layout"] = Candidate.of(manifest, config, split, batch_size)
    return found


def _until_decoding(manifest: Manifest, config: InputConfig, split: str, batch_size: int) -> dict[str, Candidate]:
    def read() -> tf.data.Dataset:
        order = tf.range(len(manifest.split(split).shards))
        return records(manifest, split, Host(), config, order).repeat()

    @plain
    def parsed(path: tf.Tensor, number: tf.Tensor, serialized: tf.Tensor) -> tf.Tensor:
        return parse(serialized, manifest.first_label, manifest.record)["encoded"]

    @plain
    def window(encoded: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([tf.constant(0, tf.int64), tf.cast(tf.strings.length(encoded), tf.int64)])
        return random_window(tf.io.extract_jpeg_shape(encoded), seed, config)

    # Runs on several threads, as in training.
    at_once: dict[str, Any] = {"num_parallel_calls": PARALLEL_DECODES, "deterministic": config.deterministic}
    found = {
        "read": _counted(read, batch_size, config.echo),
        "parse": _counted(lambda: read().map(parsed, **at_once), batch_size, config.echo),
    }
    if manifest.record.encoding == "jpeg":  # a PNG among them fails in extract_jpeg_shape(), hence ignore_errors()
        found["crop"] = _counted(
            lambda: read().map(plain(lambda *record: window(parsed(*record))), **at_once).ignore_errors(),
            batch_size,
            config.echo,
        )
    return found


def _counted(make: Callable[[], tf.data.Dataset], batch_size: int, images: int) -> Candidate:
    """Returns a candidate that replaces its elements with a constant at once, so that copying them is not timed."""
    one = plain(lambda *_: tf.constant(True))
    return Candidate(lambda: make().map(one).batch(batch_size, drop_remainder=True), batch_size * images)
