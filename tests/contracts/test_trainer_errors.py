"""Contract over trainers and what can be wrong with their data: the line names the cause, and the same one."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from support.app_commands import run
from support.app_fixtures import keras_warns
from support.trainers import RUNNABLE

pytestmark = keras_warns
CLASSES = 3


def jpeg(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (20, 20, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


def example(image: bytes, label: int) -> bytes:
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def good(number: int) -> bytes:
    return example(jpeg(number), 1 + number % CLASSES)


def negative(images: tf.Tensor, num_classes: int, training: bool) -> tf.Tensor:
    """A network of a user who states what must hold, wrongly."""
    return tf.keras.layers.Dense(num_classes)(tf.keras.layers.Flatten()(Checked()(images)))


class Checked(tf.keras.layers.Layer):
    def call(self, images: tf.Tensor) -> tf.Tensor:
        stated = tf.debugging.assert_less(images, -100.0, "pixels must be below -100")
        with tf.control_dependencies([stated] if stated is not None else []):
            return tf.identity(images)


# By what is wrong: the records of a shard, what the line must have, and whether it names the shard.
WRONG: dict[str, tuple[Callable[[int], bytes], str, bool]] = {
    "label": (
        lambda number: example(jpeg(number), 0),
        "label 0 on disk; labels of 3 classes must be from 1 to 3",
        True,
    ),
    "image": (
        lambda number: example(bytes(400), 1),
        "has no jpeg image that can be decoded in feature image/encoded",
        True,
    ),
    "record": (lambda number: b"no Example", "cannot be", True),
    "network": (good, "pixels must be below -100", False),
}


# In training, and in the evaluation at its end.
CASES = [
    (wrong, split)
    for wrong in WRONG
    for split in ("train", "validation")
    if (wrong, split) != ("network", "validation")
]


@pytest.mark.parametrize(("wrong", "split"), CASES)
# The trainer on JAX has no --record; test_jax_trainer.py has its errors.
@pytest.mark.parametrize("trainer", [trainer for trainer in RUNNABLE if trainer != "jax"])
def test_the_line_names_the_cause(capsys, tmp_path: Path, trainer: str, wrong: str, split: str) -> None:
    payload, word, names_shard = WRONG[wrong]
    damaged = f"{split}-00001-of-00002"
    for shard in (f"{name}-0000{index}-of-00002" for name in ("train", "validation") for index in range(2)):
        with tf.io.TFRecordWriter(str(tmp_path / shard)) as writer:
            for number in range(12):
                writer.write((payload if shard == damaged else good)(number))
    network = f"{__name__}:negative" if wrong == "network" else "support.linear_network:linear"
    size = 16 if wrong == "network" else 4
    data = f"--dataset=train={tmp_path}/train-*,validation={tmp_path}/validation-*", "--record=imagenet"
    flags = *data, f"--classes={CLASSES}", f"--trainer={trainer}", f"--network={network}", f"--image_size={size}"
    steps = "--train_batch_size=4", "--train_steps=8", "--eval_batch_size=4", "--split=validation"
    code, _, err = run(capsys, "train", *flags, *steps, f"--model_dir={tmp_path}/m")
    line = err.splitlines()[-1]
    assert (code, line[:7]) == (2, "error: ")
    assert word in line, line
    assert (damaged in line) == names_shard, line
    assert not any(part in line for part in ("Detected at node", "Graph execution", "[[{{", "Iterator::", "{{")), line
