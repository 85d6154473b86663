"""What is handed to frameworks, as the frameworks feed it: every dataset is finished, every example counts once."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import tpu_input
from tpu_input import InputConfig, TrainSource
from tpu_input.pipeline import order

CONFIG = InputConfig(image_size=8)


@functools.cache
def _dispatcher() -> tf.data.experimental.service.DispatchServer:
    return tf.data.experimental.service.DispatchServer()


# Everything public that returns a tf.data.Dataset; one that is made public and is not here fails the second test.
MAKERS = {
    "load": (
        lambda dataset, images: tpu_input.load(dataset, batch_size=32, image_size=8),
        lambda dataset, images: tpu_input.load(dataset, batch_size=32, image_size=8, epochs=1, normalize=True),
        lambda dataset, images: tpu_input.load(dataset, batch_size=32, image_size=8, class_weight={1: 2.0}),
        lambda dataset, images: tpu_input.load(dataset, batch_size=32, image_size=8, cache="decoded"),
        lambda dataset, images: tpu_input.load(dataset, batch_size=32, image_size=8, echo=2, on_corrupt="skip"),
        lambda dataset, images: tpu_input.load(dataset, deterministic=False, service=_dispatcher().target),
        lambda dataset, images: tpu_input.load(dataset, "validation", batch_size=32, image_size=8),
        lambda dataset, images: tpu_input.load(dataset, "validation", batch_size=32, image_size=8, static_batch=True),
    ),
    "make_train_input_fn": (
        lambda dataset, images: tpu_input.make_train_input_fn(dataset, CONFIG)({"batch_size": 32}),
    ),
    "make_eval_input_fn": (lambda dataset, images: tpu_input.make_eval_input_fn(dataset, CONFIG)({"batch_size": 32}),),
    "make_predict_input_fn": (
        lambda dataset, images: tpu_input.make_predict_input_fn(images, CONFIG)({"batch_size": 32}),
    ),
}
CASES = [(name, number) for name, makers in MAKERS.items() for number in range(len(makers))]


@pytest.mark.parametrize("is_in_memory", [True, False])
@pytest.mark.parametrize(("name", "number"), CASES)
def test_frameworks_leave_every_dataset_as_it_is(digits_dataset, digits, monkeypatch, name, number, is_in_memory):
    if not is_in_memory:
        monkeypatch.setattr(order, "_IN_MEMORY_BYTES", 0)
    images = sorted(map(str, digits.rglob("*.jpg")))[:4]
    options = MAKERS[name][number](digits_dataset, images).options()
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert options.autotune.enabled is False


def test_every_maker_of_a_dataset_is_among_these():
    returning = {
        name
        for name in tpu_input.__all__
        if "tf.data.Dataset" in str(getattr(getattr(tpu_input, name), "__annotations__", {}).get("return", ""))
    }
    input_fns = {name for name in tpu_input.__all__ if name.startswith("make_") and name.endswith("_input_fn")}
    assert returning | input_fns == set(MAKERS)


WORKER = """
import json, os, sys
import tensorflow as tf
index, ports, folder, memory = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3], int(sys.argv[4])
task = {"cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]}, "task": {"type": "worker", "index": index}}
if len(ports) > 1:
    os.environ["TF_CONFIG"] = json.dumps(task)
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
is_alone = len(ports) == 1
several = tf.distribute.MultiWorkerMirroredStrategy
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if is_alone else several()
import tpu_input
from tpu_input.pipeline import order
order._IN_MEMORY_BYTES = memory
own = {"batch_size": 100, "host": index, "num_hosts": len(ports), "image_size": 8}
seen = {}
for name, more in (("train", {"epochs": 2}), ("validation", {"static_batch": True})):
    if name == "train" and len(ports) > 1: more = {}
    fed = strategy.experimental_distribute_dataset(tpu_input.load(folder, name, **own, **more))
    seen[name] = []
    for step, (image, label, weight) in enumerate(fed):
        if name == "train" and not more and step == 8: break
        for part in zip(*map(strategy.experimental_local_results, (image, label, weight))):
            sums = part[0].numpy().astype(int).sum((1, 2, 3)) if name == "validation" else [0] * len(part[0])
            seen[name] += [[int(a), int(b)] for a, b, w in zip(part[1], sums, part[2]) if w > 0]
print(json.dumps(seen), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_strategy_counts_each_example_once(digits_dataset, num_workers, monkeypatch):
    """experimental_distribute_dataset, as fit() and evaluate() use it, over two replicas, and over two processes."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num_workers)]
    ports = ",".join(str(server.getsockname()[1]) for server in sockets)
    for server in sockets:
        server.close()
    # A strategy takes the batch for that of all workers, and of each worker's a half at a step: in 8 steps, 4 batches.
    memory = 0 if num_workers == 2 else 64 << 20
    monkeypatch.setattr(order, "_IN_MEMORY_BYTES", memory)  # a split that is read by lanes, and one in memory
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER, str(number), ports, digits_dataset.path, str(memory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            text=True,
        )
        for number in range(num_workers)
    ]
    try:
        ends = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert all(ends)
    results = [json.loads(text.splitlines()[-1]) for text in ends]
    counts = {name: Counter(tuple(example) for result in results for example in result[name]) for name in results[0]}
    alone = tpu_input.load(digits_dataset, "validation", batch_size=50, image_size=8)
    expected = Counter(
        (int(label), int(image.astype(int).sum()))
        for images, labels, _ in tpu_input.as_numpy(alone)
        for image, label in zip(images, labels, strict=True)
    )
    assert counts["validation"] == expected
    labels = Counter(dict.fromkeys(range(10), 0))
    batches = tpu_input.load(digits_dataset, batch_size=100 * num_workers, image_size=8, epochs=2)
    for step, (_, label, weight) in enumerate(tpu_input.as_numpy(batches)):
        if num_workers == 1 or step < 4:
            labels.update(int(one) for one in label[weight > 0])
    assert Counter(label for label, _ in counts["train"].elements()) == labels


@pytest.mark.parametrize(("threads", "batch_size"), [(1, 64), (16, 256), (16, 4096), (64, 64), (64, 1024)])
def test_threads_that_read_whole_batches_plan_each_part_once(digits_dataset, monkeypatch, threads, batch_size):
    """As grain's default does: each of many threads reads a batch of its own, so that all are at other places."""
    source, planned = TrainSource(digits_dataset, CONFIG, batch_size), Counter[int]()
    plan = source._planned
    monkeypatch.setattr(source, "_planned", lambda chunk: planned.update([chunk]) or plan(chunk))
    monkeypatch.setattr("threading.active_count", lambda: threads)
    for place in np.linspace(0, batch_size - 1, 5).astype(int):
        for thread in range(threads):
            source[thread * batch_size + int(place)]
    assert set(planned.values()) == {1}
