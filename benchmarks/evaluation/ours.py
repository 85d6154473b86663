"""What one host sees of one evaluation with TensorFlow, in a process of its own; __main__.py starts it.

RANK=0 WORLD_SIZE=3 python -m benchmarks.evaluation.ours WAY FOLDER_OF_JPEGS DATASET TAR BATCH_SIZE
    ──▶  {"batches": [[label, …], …]}, -1 for padding
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import tpu_input
from tpu_input.dataset_format import records as record_format

IMAGE_SIZE = 32
HOST, NUM_HOSTS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def ours(jpegs: str, dataset: str, batch_size: int) -> Iterator[npt.NDArray[Any]]:
    """As many batches as eval_steps says, of an input that pads for ever."""
    manifest = tpu_input.read_manifest(dataset)
    input_fn = tpu_input.make_eval_input_fn(manifest, tpu_input.InputConfig(IMAGE_SIZE))
    batches = input_fn({"batch_size": batch_size, "host": HOST, "num_hosts": NUM_HOSTS})
    steps = tpu_input.eval_steps(manifest, "validation", batch_size * NUM_HOSTS, NUM_HOSTS)
    for features, label in batches.take(steps).as_numpy_iterator():
        yield np.where(features["weight"] == 1, label, -1)


def reference(jpegs: str, dataset: str, batch_size: int) -> Iterator[npt.NDArray[Any]]:
    """The Cloud TPU tutorial's ResNet-50, as publicly described: a host's files, full batches, whole steps."""
    manifest = tpu_input.read_manifest(dataset)
    names = [f"{manifest.path}/{shard.name}" for shard in manifest.split("validation").shards]
    serialized = tf.data.TFRecordDataset(tf.data.Dataset.from_tensor_slices(names).shard(NUM_HOSTS, HOST))
    labels = serialized.map(lambda one: record_format.parse(one, manifest.first_label, manifest.record)["label"])
    steps = manifest.split("validation").num_examples // (batch_size * NUM_HOSTS)
    yield from labels.batch(batch_size, drop_remainder=True).take(steps).as_numpy_iterator()


def keras(jpegs: str, dataset: str, batch_size: int) -> Iterator[npt.NDArray[Any]]:
    """Every n-th image of the folder for each host; Keras itself knows no hosts."""
    images = tf.keras.utils.image_dataset_from_directory(
        jpegs, image_size=(IMAGE_SIZE, IMAGE_SIZE), batch_size=None, shuffle=False
    )
    for _, label in images.shard(NUM_HOSTS, HOST).batch(batch_size).as_numpy_iterator():
        yield label


if __name__ == "__main__":
    way, jpegs_path, dataset_path, _, size = sys.argv[1:]
    batches = {"ours": ours, "reference": reference, "keras": keras}[way](jpegs_path, dataset_path, int(size))
    print(json.dumps({"batches": [labels.tolist() for labels in batches]}))
