"""Evaluation sees every example exactly once, whatever the hosts and the batch; proved by running every host."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
import tensorflow as tf

from support.dataset_writer import write_dataset
from support.training_input import Context
from tpu_input import InputConfig, Manifest, RecordSpec, eval_steps, evaluate, make_eval_input_fn, manifest_from_shards
from tpu_input.pipeline.images import decode_for_evaluation

CONFIG = InputConfig(image_size=8, eval_crop=1.0)


def run(manifest, num_hosts: int, global_batch: int, config: InputConfig = CONFIG, replicas: int = 1):
    """Returns (the real examples that all hosts see as (image, label) counts, weights fed) of one evaluation."""
    counts, fed = Counter[tuple[str, int]](), 0
    steps = eval_steps(manifest, "validation", global_batch, num_hosts)
    for index in range(num_hosts):
        params = {"batch_size": global_batch // num_hosts // replicas, "context": Context(index, num_hosts, replicas)}
        dataset = make_eval_input_fn(manifest, config)(params)
        for features, labels in dataset.take(steps * replicas).as_numpy_iterator():
            for image, weight, label in zip(features["image"], features["weight"], labels, strict=True):
                fed += 1
                assert weight in (0, 1)
                if weight:
                    counts[hashlib.sha256(image.tobytes()).hexdigest(), int(label)] += 1
                else:
                    assert not image.any()
    return counts, fed


@pytest.fixture(scope="module")
def once(digits_dataset):
    counts, _ = run(digits_dataset, 1, 333)
    assert sum(counts.values()) == digits_dataset.split("validation").num_examples == 333
    return counts


@pytest.mark.parametrize("num_hosts", [1, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 4, 5, 6, 7, 8))])
@pytest.mark.parametrize("per_host", [1, 7, 64])
def test_every_example_is_seen_once_over_all_hosts(digits_dataset, once, num_hosts, per_host):
    counts, fed = run(digits_dataset, num_hosts, num_hosts * per_host)
    assert counts == once
    assert fed == eval_steps(digits_dataset, "validation", num_hosts * per_host, num_hosts) * num_hosts * per_host


def test_every_example_is_seen_once_with_several_replicas_a_host(digits_dataset, once):
    assert run(digits_dataset, 2, 48, replicas=8)[0] == once


def keyed(folder, num_shards: int, total: int) -> Manifest:
    """Writes `total` examples over `num_shards` shards, unevenly; the label of each is its key."""
    spec = RecordSpec("image", "key", "raw", (1, 1, 1))
    cuts = [total * n * n // num_shards**2 for n in range(num_shards + 1)]
    for shard in range(num_shards):
        with tf.io.TFRecordWriter(str(folder / f"validation-{shard:05d}")) as writer:
            for key in range(cuts[shard], cuts[shard + 1]):
                example = tf.train.Example()
                example.features.feature["image"].bytes_list.value.append(b"\xff")
                example.features.feature["key"].int64_list.value.append(key)
                writer.write(example.SerializeToString())
    return manifest_from_shards({"validation": f"{folder}/validation-*"}, spec, classes=total)


# Shards with 0 to 37 examples; fewer shards than hosts, as many, more; batches that divide the examples and do not.
@pytest.mark.parametrize(
    ("num_shards", "total", "num_hosts", "per_host"),
    [(1, 1, 8, 5), (1, 8, 2, 4), (3, 7, 5, 1), (3, 64, 3, 8), (5, 63, 6, 8), (8, 65, 4, 5), (11, 101, 7, 8)],
)
@pytest.mark.long
def test_every_key_comes_once(tmp_path, num_shards, total, num_hosts, per_host):
    manifest = keyed(tmp_path, num_shards, total)
    keys = Counter[int]()
    steps = eval_steps(manifest, "validation", num_hosts * per_host, num_hosts)
    for index in range(num_hosts):
        params = {"batch_size": per_host, "host": index, "num_hosts": num_hosts}
        for features, labels in make_eval_input_fn(manifest, InputConfig(1))(params).take(steps).as_numpy_iterator():
            keys.update(labels[features["weight"] == 1].tolist())
    assert keys == Counter(range(total))


def test_padding_is_never_decoded(digits_dataset, monkeypatch):
    decoded = []

    def count(data):
        decoded.append(len(data))
        return data

    def counted(encoded, *others):
        same = tf.numpy_function(count, [encoded], tf.string)
        return decode_for_evaluation(tf.ensure_shape(same, []), *others)

    monkeypatch.setattr(evaluate, "decode_for_evaluation", counted)
    dataset = make_eval_input_fn(digits_dataset, CONFIG)({"batch_size": 100})
    assert sum(features["weight"].sum() for features, _ in dataset.take(9).as_numpy_iterator()) == 333
    assert len(decoded) == 333


@pytest.mark.long
def test_fewer_examples_than_hosts_or_than_a_batch_are_seen_once(few_digits, tmp_path):
    manifest = write_dataset(few_digits, tmp_path / "out", {"train": (32, 1), "validation": (4, 1)})
    total = manifest.split("validation").num_examples
    assert 0 < total < 8
    assert sum(run(manifest, 8, 64)[0].values()) == total


def test_the_order_is_the_same_every_time(digits_dataset):
    def labels():
        dataset = make_eval_input_fn(digits_dataset, CONFIG)({"batch_size": 111})
        return [batch.tolist() for _, batch in dataset.take(3).as_numpy_iterator()]

    assert labels() == labels()


def test_an_unknown_split_is_refused_before_anything_runs(digits_dataset):
    with pytest.raises(ValueError, match="has no split 'test'"):
        make_eval_input_fn(digits_dataset, CONFIG, split="test")
