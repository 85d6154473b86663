"""Pictures of a run, as files and in TensorBoard: curves, confusion, and what training sees.

MODEL_DIR/curves.png, confusion.png
MODEL_DIR/pictures/events.out.tfevents.…    a folder of its own: TensorBoard reads one writer's file a folder at a time
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from estimator_app import files
from estimator_app.config import TrainConfig
from estimator_app.damage import named
from estimator_app.evaluation import Metrics
from estimator_app.history import Row
from estimator_app.plots import draw_confusion, draw_curves
from tpu_input import InputConfig, Manifest, make_train_input_fn

NUM_INPUTS = 16
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
    """Writes some training images for TensorBoard, cropped and augmented as the first step sees such images.

    Raises:
      ValueError: An image cannot be decoded.
    """
    # From few shards and a small shuffle: the run's own buffers take as long to fill as they do before the first step.
    shards = min(config.parallel_shards, 4)
    few = dataclasses.replace(config, shuffle_records=NUM_INPUTS, parallel_shards=shards, cache=None, service=None)
    few = dataclasses.replace(few, layout="NHWC", echo=1)
    with named(manifest, "train"):
        features, _ = next(iter(make_train_input_fn(manifest, few)({"batch_size": NUM_INPUTS})))
    with _writer(model_dir).as_default(0):
        tf.summary.image("inputs", tf.cast(features["image"], tf.float32) / 255, max_outputs=NUM_INPUTS)


def _writer(model_dir: str) -> tf.summary.SummaryWriter:
    return tf.summary.create_file_writer(f"{model_dir}/{EVENTS_NAME}")
