"""Evaluation input: every example exactly once over all hosts, then endless padding of weight 0.

    host's share of the records, in order ▶ fused decode and center crop, weight 1 ▶ + endless black images, weight 0
    ▶ batch ▶ layout ▶ prefetch

The padding keeps every batch full and its shape static, and lets a host with fewer examples run as many steps as the
others. Metrics that are weighted by "weight" ignore it. It needs no decoding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.config import InputConfig, check_config
from tpu_input.datasets import DatasetLike, as_manifest
from tpu_input.pipeline.batches import to_batches
from tpu_input.pipeline.decoding import decode_records, no_features, no_label
from tpu_input.pipeline.hosts import Host, check_params, own_share
from tpu_input.pipeline.images import decode_for_evaluation, for_images_of
from tpu_input.pipeline.reading import records
from tpu_input.train import InputFn


@checks_arguments
def make_eval_input_fn(dataset: DatasetLike, config: InputConfig, split: str = "validation") -> InputFn:
    """Returns input_fn(params) -> Dataset of ({"image", "weight"}, label), to be evaluated for eval_steps() steps.

    Shapes and dtypes are as in make_train_input_fn. "weight" is 1 for each of the split's examples, which come in the
    same order every time, and 0 for corrupt records that are skipped and for the endless padding at the end.

    Args:
      dataset: Manifest of the dataset, or its folder or URI.
      config: Size, dtype, layout.
      split: Name of the split.

    Raises:
      ValueError: There is no such split.
    """
    manifest = as_manifest(dataset)
    check_config(config)
    config = for_images_of(config, manifest.split(split))
    input_config = dataclasses.replace(config, deterministic=True, echo=1, service=None)

    def input_fn(params: Mapping[str, Any], config: Any = None) -> tf.data.Dataset:
        batch_size = check_params(params)
        host = Host.from_params(params, config)
        share = own_share(manifest.split(split).num_examples, host)
        dataset = records(manifest, split, [share], by_number=False)
        dataset = decode_records(dataset, manifest, split, input_config, crop, black())
        return to_batches(dataset.concatenate(padding()), batch_size, input_config, host)

    def crop(encoded: tf.Tensor, _: tf.Tensor, looked: bool) -> tf.Tensor:
        return decode_for_evaluation(encoded, input_config, manifest.record, looked)

    def black() -> tf.Tensor:
        return tf.zeros([input_config.image_size, input_config.image_size, 3], input_config.dtype)

    def padding() -> tf.data.Dataset:
        features = {"image": black(), "weight": tf.constant(0.0)} | no_features(manifest, input_config)
        if input_config.on_corrupt == "skip":
            features |= {"problem": tf.constant(""), "epoch": tf.constant(0, tf.int64)}
        return tf.data.Dataset.from_tensors((features, no_label(manifest))).repeat()

    return input_fn
