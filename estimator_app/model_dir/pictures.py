"""Pictures of a run, as files and in TensorBoard: curves, confusion, and what training sees.

MODEL_DIR/curves.png, confusion.png
MODEL_DIR/pictures/events.out.tfevents.…    a folder of its own: TensorBoard reads one writer's file a folder at a time
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model.evaluation import Metrics
from estimator_app.model_dir.history import Row
from estimator_app.model_dir.plots import draw_confusion, draw_curves
from estimator_app.runtime import files
from tpu_input import InputConfig, Manifest
from tpu_input.dataset_format.records import parse
from tpu_input.pipeline.images import decode_for_training

NUM_INPUTS, NUM_SHARDS = 16, 4
EVENTS_NAME = "pictures"


def write_pictures(model_dir: str, config: TrainConfig, rows: Sequence[Row], metrics: Metrics) -> list[str]:
    """Writes curves.png, and confusion.png when the model counts confusion; both for TensorBoard too.

    Returns:
      Their paths.
    """
    drawn = {"curves": draw_curves(rows, config.early_stop_metric)}
    if metrics.confusion:
        drawn["confusion"] = draw_confusion(metrics, config.classes)
    with _writer(model_dir).as_default(metrics.step):
        for name, png in drawn.items():
            files.write(f"{model_dir}/{name}.png", png)
            tf.summary.image(name, tf.image.decode_png(png)[None])
    return [f"{model_dir}/{name}.png" for name in drawn]


def write_inputs(model_dir: str, manifest: Manifest, config: InputConfig) -> None:
    """Writes some training images for TensorBoard, cropped and augmented as training sees such images.

    One by one: building an input pipeline takes longer than all of them. An image or a shard that cannot be read is
    left out here, for training names it, or skips it, as it was told to.
    """
    images: list[tf.Tensor] = []
    config = dataclasses.replace(config, echo=1)
    shards = manifest.split("train").shards[:NUM_SHARDS]
    for shard in shards:
        with contextlib.suppress(tf.errors.OpError):
            for serialized in tf.data.TFRecordDataset(f"{manifest.path}/{shard.name}").take(NUM_INPUTS // len(shards)):
                encoded = parse(serialized, manifest.first_label, manifest.record)["encoded"]
                seed = tf.constant([config.seed, len(images)], tf.int64)
                images.append(decode_for_training(encoded, seed, config, manifest.record))
    if images:
        with _writer(model_dir).as_default(0):
            tf.summary.image("inputs", tf.cast(tf.stack(images), tf.float32) / 255, max_outputs=NUM_INPUTS)


def _writer(model_dir: str) -> tf.summary.SummaryWriter:
    return tf.summary.create_file_writer(f"{model_dir}/{EVENTS_NAME}")
