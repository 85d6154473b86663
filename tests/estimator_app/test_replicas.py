"""Replicas of --trainer=tf_distribute: two give the result of one; a TPU's, as far as it can be seen here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.trainers.tf_distribute.state import make_state
from support.app_fixtures import configured, keras_warns
from support.linear_network import step

pytestmark = keras_warns
ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_two_replicas_train_as_one_and_count_as_one(digits_dataset, tmp_path):
    """In a process of its own: TensorFlow divides a processor into two only before its first use."""
    code = """
import sys, threading, tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
sys.path.insert(0, "tests")
from support.app_fixtures import configured
from estimator_app.trainers.tf_distribute.train import evaluate, train
from estimator_app.trainers.tf_distribute.state import make_state
from tpu_input import read_manifest
manifest = read_manifest(sys.argv[1])
config = configured(manifest, trainer="tf_distribute", network="flat:flat", eval_batch_size=50, train_batch_size=32)
for name, strategy in ("one", None), ("two", tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
    trainer = make_state(config, f"{sys.argv[2]}/{name}", strategy=strategy)
    train(trainer, manifest, config, 0, 3, threading.Event())
    metrics = evaluate(trainer, manifest, config)
    print(metrics.num_examples, metrics.accuracy, metrics.loss)
"""
    # Without batch normalisation, whose statistics are each replica's own.
    flat = "import tensorflow as tf\ndef flat(images, num_classes, training):\n"
    flat += (
        "    return tf.keras.layers.Dense(num_classes, kernel_regularizer='l2')(tf.keras.layers.Flatten()(images))\n"
    )
    (tmp_path / "flat.py").write_text(flat)
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, digits_dataset.path, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:."},
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    one, two = ([float(word) for word in line.split()] for line in process.stdout.splitlines())
    assert one[0] == two[0] == digits_dataset.split("validation").num_examples
    np.testing.assert_allclose(one[1:], two[1:], rtol=1e-4)


def test_two_replicas_whose_examples_weigh_differently_take_the_step_of_one(digits_dataset, tmp_path):
    """In a process of its own, and against NumPy's step over all examples of weight 1."""
    code = """
import dataclasses, sys, numpy as np, tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from support import linear_network
from support.app_fixtures import configured
from estimator_app.trainers.tf_distribute.state import make_state
from tpu_input import read_manifest
config = configured(read_manifest(sys.argv[1]), trainer="tf_distribute", **linear_network.OPTIONS)
config = dataclasses.replace(config, classes=config.classes[:3])
trainer = make_state(config, sys.argv[2], strategy=tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
elements = {"image": linear_network.IMAGES, "weight": linear_network.WEIGHT}, linear_network.LABELS
dataset = tf.data.Dataset.from_tensor_slices(elements)
batches = trainer.batches(lambda params: dataset.batch(params["batch_size"], True).repeat(), 8)
loss, _ = trainer.steps(batches, tf.constant(1))
kernel, bias = (trainer.weights[name].numpy() for name in ("0_kernel", "1_bias"))
np.savez(sys.argv[2], loss=loss, kernel=kernel, bias=bias)
"""
    path = run_apart(code, digits_dataset.path, str(tmp_path / "found.npz"))
    config = configured(digits_dataset)
    for name, expected in zip(("loss", "kernel", "bias"), step(config.input.mean, config.input.std), strict=True):
        np.testing.assert_allclose(np.load(path)[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def run_apart(code, *arguments):
    """Runs a program and returns its last argument."""
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": "tests:."}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert process.returncode == 0, process.stderr[-2000:]
    return arguments[-1]


def test_the_step_and_the_sums_compile_with_xla_which_is_what_a_tpu_runs(digits_dataset, tmp_path):
    config = configured(digits_dataset, trainer="tf_distribute")
    trainer = make_state(config, str(tmp_path))
    batches = trainer.batches(lambda params: _images(config, params["batch_size"]), config.train_batch_size)
    batch = next(batches)
    expected = trainer.sums(batch)
    sums = tf.function(lambda batch: trainer.sums(batch), jit_compile=True, autograph=False)(batch)
    for name in expected:
        np.testing.assert_allclose(sums[name], expected[name], rtol=1e-4, err_msg=name)
    graph = trainer.steps.get_concrete_function(batches, tf.constant(1))
    assert {"While", "StatelessWhile"} & {op.type for op in graph.graph.get_operations()}


def _images(config, batch_size):
    size = config.input.image_size
    images = np.random.default_rng(0).integers(0, 255, [batch_size, size, size, 3], dtype=np.uint8)
    features = {"image": images, "weight": np.ones(batch_size, np.float32)}
    return tf.data.Dataset.from_tensors((features, np.arange(batch_size, dtype=np.int32) % 10)).repeat()
