"""A step of the trainer on JAX, part by part, beside the TensorFlow trainers' own."""

from __future__ import annotations

import dataclasses
from contextlib import closing

import numpy as np
import pytest

from support.app_fixtures import configured
from support.trainers import needs_jax

pytestmark = needs_jax
K = 7


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [(), tuple(np.linspace(0.5, 2, K).tolist())])
@pytest.mark.parametrize("kind", ["one", "several", "mixed"])
def test_the_loss_is_that_of_the_other_trainers(rng, kind, weights, smoothing):
    import tensorflow as tf

    from estimator_app.model.losses import cross_entropy as expected
    from estimator_app.trainers.jax.step import cross_entropy

    logits = rng.normal(0, 3, (20, K)).astype(np.float32)
    labels = rng.integers(0, K, 20).astype(np.int32)
    if kind == "several":
        labels = (rng.random((20, K)) < 0.3).astype(np.float32)
    elif kind == "mixed":
        labels = rng.dirichlet(np.ones(K), 20).astype(np.float32)
    losses = cross_entropy(logits, labels, smoothing, weights, kind == "mixed")
    reference = expected(tf.constant(logits), tf.constant(labels), smoothing, weights, kind == "mixed")
    np.testing.assert_allclose(losses, reference.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["momentum", "lars", "adamw"])
def test_the_optimizer_is_that_of_the_other_trainers(rng, digits_dataset, name):
    import jax
    import optax
    import tensorflow as tf

    from estimator_app.model.optimizers import make_optimizer as expected
    from estimator_app.trainers.jax.optimizer import make_optimizer

    config = configured(digits_dataset, optimizer=name, learning_rate=0.3, weight_decay=0.02, train_steps=9)
    start = {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4), "zeros": np.zeros((2, 2))}
    weights = {key: value.astype(np.float32) for key, value in start.items()}
    gradients = [
        {key: rng.normal(size=value.shape).astype(np.float32) for key, value in start.items()} for _ in range(5)
    ]
    variables = {key: tf.Variable(value) for key, value in weights.items()}
    step = tf.Variable(0.0)
    tf_optimizer = expected(name, lambda: config.schedule.learning_rate(step, xp=tf), config.weight_decay)
    optimizer = make_optimizer(config)
    state = optimizer.init(weights)
    for gradient in gradients:
        tf_optimizer.apply_gradients([(tf.constant(gradient[key]), variables[key]) for key in variables])
        step.assign_add(1)
        updates, state = jax.jit(optimizer.update)(gradient, state, weights)
        weights = optax.apply_updates(weights, updates)
    for key, variable in variables.items():
        # Of 1 - 0.999^t, float32 has four digits.
        np.testing.assert_allclose(weights[key], variable.numpy(), rtol=2e-6, atol=2e-5 if name == "adamw" else 1e-6)


@pytest.mark.parametrize("options", [{"mixup": 0.3}, {"cutmix": 1.0}, {"mixup": 0.3, "cutmix": 1.0}])
@pytest.mark.parametrize("has_several", [False, True])
def test_a_batch_is_mixed_as_by_the_other_trainers(rng, digits_dataset, options, has_several):
    import tensorflow as tf

    from estimator_app.model.mixing import mix
    from estimator_app.trainers.jax.mixing import draw_mixing, mixed

    config = configured(digits_dataset, image_size=12, seed=3, **options)
    images = rng.normal(size=(6, 12, 12, 3)).astype(np.float32)
    labels = rng.integers(0, K, 6).astype(np.int32)
    if has_several:
        labels = (rng.random((6, K)) < 0.3).astype(np.float32)
    weight = np.array([1, 0, 1, 1, 1, 0], np.float32)
    for step in range(12):
        actual = mixed(images, labels, weight, draw_mixing(config, step), K)
        expected = mix(
            tf.constant(images), tf.constant(labels), tf.constant(weight), K, (3, step), config.mixup, config.cutmix
        )
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("has_several", [False, True])
def test_the_metrics_are_those_of_the_other_trainers(rng, has_several):
    import tensorflow as tf

    from estimator_app.model.losses import cross_entropy
    from estimator_app.model.scores import Scores
    from estimator_app.model.tensorflow_metrics import batch_sums, results

    logits = rng.normal(size=(40, K)).astype(np.float32).round(1)  # with ties
    labels = rng.integers(0, K - 1, 40).astype(np.int32)  # none of the last class
    if has_several:
        labels = (rng.random((40, K)) < 0.3).astype(np.float32)
        labels[:, -1] = 0
    scores = Scores(K)
    for part in (slice(0, 15), slice(15, 40)):
        scores.add_logits(logits[part], labels[part])
    constants = tf.constant(logits), tf.constant(labels)
    expected = results(batch_sums(*constants, cross_entropy(*constants), tf.ones(40)))
    actual = scores.results()
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value.numpy(), rtol=1e-6, err_msg=name)


def test_padding_adds_nothing_to_the_metrics(digits_dataset, rng):
    from estimator_app.model.scores import Scores

    values = {"loss": rng.random(8), "label": rng.integers(0, K, 8), "predicted": rng.integers(0, K, 8)}
    values |= {"rank": rng.integers(1, K, 8), "weight": np.array([1, 1, 1, 1, 1, 0, 0, 0], np.float32)}
    padded, unpadded = Scores(K), Scores(K)
    padded.add(values)
    unpadded.add({name: value[:5] for name, value in values.items()})
    for name, value in unpadded.results().items():
        np.testing.assert_array_equal(padded.results()[name], value)
    assert padded.results()["num_examples"] == 5


def test_averages_follow_numbers_and_copy_counts(digits_dataset):
    from estimator_app.trainers.jax.step import moved

    old = {"kernel": np.float32(2), "seed": np.uint32(5)}
    averages = moved(old, {"kernel": np.float32(4), "seed": np.uint32(6)}, 0.9, np.int32(0))
    assert float(averages["kernel"]) == pytest.approx(0.1 * 2 + 0.9 * 4)
    assert int(averages["seed"]) == 6
    assert float(moved(old, old | {"kernel": np.float32(4)}, 0.5, np.int32(10**6))["kernel"]) == pytest.approx(3)


def test_a_read_back_of_event_files_has_what_tensorflow_finds_in_them(tmp_path):
    import tensorflow as tf

    from estimator_app.model_dir.events import EventFile, read_scalars

    events = EventFile(str(tmp_path))
    events.scalars(7, {"train/loss": 0.5, "é": -2.0})
    events.images(300, {"picture": (b"PNG", 4, 5)})
    events.close()
    (path,) = tmp_path.iterdir()
    assert list(read_scalars(path.read_bytes())) == [("train/loss", 7, 0.5), ("é", 7, -2.0)]
    version, scalars, images = (
        tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))
    )
    assert version.file_version == "brain.Event:2"
    assert [(value.tag, value.simple_value) for value in scalars.summary.value] == [("train/loss", 0.5), ("é", -2.0)]
    assert (scalars.step, images.step) == (7, 300)
    image = images.summary.value[0].image
    assert (image.encoded_image_string, image.height, image.width, image.colorspace) == (b"PNG", 4, 5, 3)
    damaged = path.read_bytes()[:-3]
    with pytest.raises(ValueError, match="truncated"):
        list(read_scalars(damaged))


def test_the_same_batches_come_from_the_threads_as_from_the_source(digits_dataset):
    from estimator_app.trainers.jax.batches import BatchReader
    from tpu_input import TrainSource

    config = dataclasses.replace(configured(digits_dataset).input, layout="NHWC")
    source = TrainSource(digits_dataset, config, 40, end_step=3)
    with closing(BatchReader(source, 40, 3, digits_dataset.path)) as reader:
        batches = list(reader)
    for number, batch in enumerate(batches):
        for place in range(40):
            example = source[number * 40 + place]
            for name, array in batch.arrays.items():
                np.testing.assert_array_equal(array[place], example[name])
    assert len(batches) == 3
