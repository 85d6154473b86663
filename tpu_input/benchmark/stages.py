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
from tpu_input.pipeline.decoding import parallel_decodes
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.images import Resize, random_window
from tpu_input.pipeline.lanes import lane_records
from tpu_input.pipeline.order import Order
from tpu_input.pipeline.reading import no_autograph
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
    def from_config(cls, manifest: Manifest, config: InputConfig, split: str, batch_size: int) -> Candidate:
        """Returns the complete input, as training calls it."""
        input_fn = make_train_input_fn(manifest, config, split)
        return cls(lambda: input_fn({"batch_size": batch_size}), batch_size)


def batching(config: InputConfig, batch_size: int) -> Candidate:
    """Returns a candidate that only puts images into batches, which runs on one thread for any number of cores."""

    def batch() -> tf.data.Dataset:
        black = tf.zeros([config.image_size, config.image_size, 3], config.dtype)
        example = {"image": black, "weight": tf.constant(1.0)}, tf.constant(0)
        return tf.data.Dataset.from_tensors(example).repeat().batch(batch_size, drop_remainder=True)

    return Candidate(batch, batch_size)


def stages(manifest: Manifest, config: InputConfig, split: str, batch_size: int) -> dict[str, Candidate]:
    """Returns a candidate for each stage with all stages before it, in order; without those that config.cache skips.

    Args:
      manifest: The dataset.
      config: Options of training's input.
      split: Name of the split.
      batch_size: Images per batch; in the stages before batching, placeholders per batch that stand for images.
    """
    crops = crops_of_decoded if config.cache == "decoded" else crops_of_records
    unaugmented = dataclasses.replace(config, dtype="uint8", augment=None)
    unlaid = dataclasses.replace(config, layout="NHWC")

    def counted(config: InputConfig, resize: Resize | None = None) -> Candidate:
        return _counted(
            lambda: crops(manifest, split, Host(), config, batch_size, 0, resize=resize), batch_size, config.echo
        )

    candidates = {} if config.cache else _until_decoding(manifest, config, split, batch_size)
    candidates |= {"decode": counted(unaugmented, _first_pixel), "resize": counted(config)}
    candidates["batch"] = Candidate.from_config(manifest, unlaid, split, batch_size)
    candidates["layout"] = Candidate.from_config(manifest, config, split, batch_size)
    return candidates


def _first_pixel(image: tf.Tensor, _window: tf.Tensor, _config: InputConfig) -> tf.Tensor:
    return tf.ensure_shape(image[:1, :1], [1, 1, 3])


def _until_decoding(manifest: Manifest, config: InputConfig, split: str, batch_size: int) -> dict[str, Candidate]:
    def read() -> tf.data.Dataset:
        """Returns the records from their places in the shards, as training reads a split that is not kept in memory."""
        order = Order.of(manifest, split, batch_size, config.seed, config.block_records, config.sampling)
        lanes = lane_records(manifest, split, order, range(batch_size), 0)
        return lanes.map(no_autograph(lambda _, serialized: serialized))

    @no_autograph
    def parsed(serialized: tf.Tensor) -> tf.Tensor:
        return parse(serialized, manifest.first_label, manifest.record)["encoded"]

    @no_autograph
    def window(serialized: tf.Tensor) -> tf.Tensor:
        encoded = parsed(serialized)
        seed = tf.stack([tf.constant(0, tf.int64), tf.cast(tf.strings.length(encoded), tf.int64)])
        return random_window(tf.io.extract_jpeg_shape(encoded), seed, config)

    # Runs on several threads, as in training.
    parallel: dict[str, Any] = {
        "num_parallel_calls": parallel_decodes(config.service),
        "deterministic": config.deterministic,
    }
    candidates = {
        "read": _counted(read, batch_size, config.echo),
        "parse": _counted(lambda: read().map(parsed, **parallel), batch_size, config.echo),
    }
    if manifest.record.encoding == "jpeg":  # a PNG among them fails in extract_jpeg_shape(), hence ignore_errors()
        candidates["crop"] = _counted(lambda: read().map(window, **parallel).ignore_errors(), batch_size, config.echo)
    return candidates


def _counted(make: Callable[[], tf.data.Dataset], batch_size: int, images: int) -> Candidate:
    """Returns a candidate that replaces its elements with a constant at once, so that copying them is not timed."""
    one = no_autograph(lambda *_: tf.constant(True))
    return Candidate(lambda: make().map(one).batch(batch_size, drop_remainder=True), batch_size * images)
