"""One way of making batches with TensorFlow, in a process of its own; __main__.py starts it.

python -m benchmarks.input.ours DATASET WAY  ──▶  {"images/s": …, "cpu_ms": …, "peak_mb": …}
python -m benchmarks.input.ours DATASET keras FOLDER_OF_JPEGS  ──▶  the same
python -m benchmarks.input.ours DATASET first_batch [HOST NUM_HOSTS]  ──▶  {"seconds": …, "peak_mb": …}
python -m benchmarks.input.ours DATASET plan  ──▶  {"seconds": …, "peak_mb": …}
python -m benchmarks.input.ours DATASET memory  ──▶  {"start_mb": …, "peak_mb": …, "trimmed_mb": …, "buffers_mb": …}
python -m benchmarks.input.ours DATASET waits  ──▶  {"median_ms": …, "longest_ms": …, "times": …, "peak_mb": …}
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

import tpu_input
from benchmarks.order import measures as order_measures
from benchmarks.own_cost import cost_of, peak_mb, trimmed_mb
from tpu_input.dataset_format import records as record_format
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.images import decode_for_training
from tpu_input.pipeline.lanes import Blocks
from tpu_input.pipeline.memory import input_bytes
from tpu_input.pipeline.order import Order
from tpu_input.pipeline.reading import no_autograph

_IMPORTED_MB = peak_mb()
BATCH_SIZE = 64
IMAGE_SIZE = 224
MEMORY_BATCHES = 500  # of which memory has the peak, of any dataset: what malloc keeps grows with each batch
BORDERS = 2.25  # epochs of which waits are measured, so that two borders lie between
SHUFFLE_RECORDS = 1024  # of those that have a buffer, DALI included
CONFIG = tpu_input.InputConfig(IMAGE_SIZE)
CONFIGS: dict[str, dict[str, Any]] = {
    "train": {},
    "bfloat16": {"dtype": "bfloat16"},
    "echo2": {"echo": 2},
    "any_order": {"deterministic": False},
    "whole_decode": {"scaled_decode": False},
}
# ImageNet's, of pixels in [0, 255].
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def reference(manifest: Manifest) -> tf.data.Dataset:
    """The steps of the Cloud TPU tutorial's ResNet-50 input, as publicly described, all of them on the host.

    A distorted box of 0.08 to 1 of the image, fused decode and crop, bicubic resize, flip, normalization, bfloat16.
    """

    def prepare(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = tf.io.parse_single_example(
            serialized,
            {
                "image/encoded": tf.io.FixedLenFeature([], tf.string),
                "image/class/label": tf.io.FixedLenFeature([], tf.int64),
            },
        )
        encoded = example["image/encoded"]
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(encoded),
            bounding_boxes=[[[0.0, 0.0, 1.0, 1.0]]],
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        image = tf.io.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], size[:2]], 0), channels=3)
        image = tf.image.resize([image], [IMAGE_SIZE, IMAGE_SIZE], "bicubic")[0]
        image = (tf.image.random_flip_left_right(image) - _MEAN) / _STD
        return tf.cast(image, tf.bfloat16), tf.cast(example["image/class/label"], tf.int32)

    names = [f"{manifest.path}/{shard.name}" for shard in manifest.split("train").shards]
    shards = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names)).repeat()
    serialized = shards.interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE)
    images = serialized.shuffle(SHUFFLE_RECORDS).map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(BATCH_SIZE, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def bare(manifest: Manifest) -> tf.data.Dataset:
    """TensorFlow's own operations for the same images in the order on disk: no shuffle, no check, nothing named."""

    def prepare(number: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = record_format.parse(serialized, manifest.first_label, manifest.record)
        seed = tf.stack([tf.constant(0, tf.int64), number])
        return decode_for_training(example["encoded"], seed, CONFIG, magic_checked=True), example["label"]

    names = [f"{manifest.path}/{shard.name}" for shard in manifest.split("train").shards]
    serialized = tf.data.TFRecordDataset(names, buffer_size=8 << 20).repeat()
    images = serialized.enumerate().map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(BATCH_SIZE, drop_remainder=True).prefetch(2)


def keras(folder: str) -> tf.data.Dataset:
    """Keras's own input: files decoded whole and resized whole to float32; it crops nothing and flips nothing."""
    size = (IMAGE_SIZE, IMAGE_SIZE)
    images = tf.keras.utils.image_dataset_from_directory(
        folder, image_size=size, batch_size=BATCH_SIZE, seed=0, label_mode="int", interpolation="bilinear"
    )
    return images.filter(no_autograph(lambda image, _: tf.shape(image)[0] == BATCH_SIZE)).repeat()


def make(manifest: Manifest, way: str, *arguments: str) -> tf.data.Dataset:
    if way == "keras":
        return keras(*arguments)
    if way in ("reference", "bare"):
        return {"reference": reference, "bare": bare}[way](manifest)
    params = {"batch_size": BATCH_SIZE}
    if way == "eval":
        return tpu_input.make_eval_input_fn(manifest, tpu_input.InputConfig(IMAGE_SIZE), "train")(params)
    config = dataclasses.replace(CONFIG, **CONFIGS[way])
    return tpu_input.make_train_input_fn(manifest, config)(params)


def cost(manifest: Manifest, way: str, *arguments: str) -> dict[str, float]:
    """An epoch, after another that is not counted, as with the peers: threads start, lanes open."""
    num_batches = manifest.split("train").num_examples // BATCH_SIZE * CONFIGS.get(way, {}).get("echo", 1)
    uncounted = num_batches
    if way == "eval":  # what follows an epoch is padding
        uncounted = num_batches // 4
        num_batches -= uncounted
    batches = iter(make(manifest, way, *arguments).take(uncounted + num_batches))
    for _ in range(uncounted):
        next(batches)
    return cost_of(lambda: BATCH_SIZE * sum(1 for _ in batches))


def first_batch(manifest: Manifest, host: str = "0", num_hosts: str = "1") -> dict[str, float]:
    """Seconds from the input_fn's call to its first batch."""
    params = {"batch_size": BATCH_SIZE, "host": int(host), "num_hosts": int(num_hosts)}
    next(iter(tpu_input.make_train_input_fn(manifest, CONFIG)(params)))  # TensorFlow's own start
    start = time.perf_counter()
    next(iter(tpu_input.make_train_input_fn(manifest, CONFIG)(params)))
    seconds = time.perf_counter() - start
    for _ in tpu_input.make_train_input_fn(manifest, CONFIG)(params).take(4):  # buffers fill
        pass
    return {"seconds": seconds, "peak_mb": peak_mb()}


def plan(path: str) -> dict[str, float]:
    """Seconds to read the manifest and the places of all records, and what that takes at the most, in MB."""
    start = time.perf_counter()
    manifest = tpu_input.read_manifest(path)
    order = Order.of(manifest, "train", BATCH_SIZE, CONFIG.seed, CONFIG.block_records)
    Blocks(manifest, "train", order, BATCH_SIZE).ends(range(BATCH_SIZE), 0, None)
    return {"seconds": time.perf_counter() - start, "peak_mb": peak_mb() - _IMPORTED_MB}


def memory(manifest: Manifest) -> dict[str, float]:
    """Peak of training and what is held once malloc returned what is freed; what TensorFlow takes for tiny batches.

    And what the buffers take at the most, by pipeline/memory.py's sum.
    """
    tiny = tpu_input.InputConfig(8)
    next(iter(tpu_input.make_train_input_fn(manifest, tiny)({"batch_size": 1})))
    start = peak_mb()
    buffers = sum(input_bytes(manifest, "train", CONFIG, BATCH_SIZE, Host()).values()) / 1e6
    batches = iter(make(manifest, "train"))
    for _ in range(MEMORY_BATCHES):
        next(batches)
    return {"start_mb": start, "peak_mb": peak_mb(), "trimmed_mb": trimmed_mb(), "buffers_mb": buffers}


def waits(manifest: Manifest) -> dict[str, Any]:
    """How long each batch of training takes for one who does nothing with them, across two borders of epochs."""
    num_batches = int(BORDERS * manifest.split("train").num_examples / BATCH_SIZE)
    batches = iter(make(manifest, "train").take(num_batches))
    return order_measures.waits(lambda _: batches, Path(manifest.path), BATCH_SIZE, num_batches)


def main(path: str, way: str, *arguments: str) -> dict[str, float]:
    if way == "plan":
        return plan(path)
    manifest = tpu_input.read_manifest(path)
    by_name = {"first_batch": first_batch, "memory": memory, "waits": waits}
    return by_name[way](manifest, *arguments) if way in by_name else cost(manifest, way, *arguments)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
