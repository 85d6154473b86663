"""The parts for Keras: the layer that normalises, the checkpoint, and fit() and evaluate() on what load() returns."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import tpu_input
from tpu_input import InputConfig, load
from tpu_input.keras import Checkpoint, Normalize, trained_steps

# Keras 2.15 draws seeds with randint(1, 1e9), and uses what later Pythons deprecate.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def linear(dataset) -> keras.Model:
    images = keras.Input([8, 8, 3], dtype="uint8")
    logits = keras.layers.Dense(10)(keras.layers.Flatten()(Normalize.from_dataset(dataset)(images)))
    model = keras.Model(images, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, weighted_metrics=["accuracy"])
    return model


def test_the_layer_is_from_infeed_and_comes_back_from_its_config(digits_dataset):
    config = InputConfig.of(digits_dataset)
    images = np.random.default_rng(0).integers(0, 256, [4, 5, 6, 3], np.uint8)
    layer = Normalize.from_dataset(digits_dataset.path, name="pixels")
    expected = (images - np.array(config.mean)) / np.array(config.std)
    for normalize in (layer, Normalize.from_config(layer.get_config()), Normalize(config.mean, config.std)):
        actual = np.asarray(normalize(images))
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(layer(images), tpu_input.from_infeed(images, config))
    assert Normalize.from_config(layer.get_config()).name == "pixels"
    assert not layer.weights
    half = Normalize(config.mean, config.std, dtype="mixed_bfloat16")(images)
    assert str(half.dtype).endswith("bfloat16'>") or str(half.dtype) == "bfloat16"
    half = np.asarray(half).astype(np.float32)
    np.testing.assert_allclose(half, expected, rtol=1 / 128)  # rounded once, from float32


def test_evaluate_counts_every_example_once_and_no_padding(digits_dataset):
    model = linear(digits_dataset)
    one_batch = load(digits_dataset, "validation", image_size=8, batch_size=333)
    image, label, _ = next(one_batch.as_numpy_iterator())
    logits = model.predict(image, verbose=0).astype(float)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(333), label]
    for batch_size in (100, 400):
        metrics = model.evaluate(
            load(digits_dataset, "validation", image_size=8, batch_size=batch_size), verbose=0, return_dict=True
        )
        assert metrics["loss"] == pytest.approx(losses.mean(), rel=1e-5)
        assert metrics["accuracy"] == pytest.approx((logits.argmax(1) == label).mean(), abs=1e-6)
    static = load(digits_dataset, "validation", image_size=8, batch_size=100, static_batch=True)
    padded = model.evaluate(static, verbose=0, return_dict=True)
    assert padded["accuracy"] == pytest.approx((logits.argmax(1) == label).mean(), abs=1e-6)


def test_fit_ends_and_a_checkpoint_resumes_the_input(digits_dataset, tmp_path):
    path = tmp_path / "new" / "folder" / "checkpoint.keras"
    train = load(digits_dataset, image_size=8, batch_size=100, epochs=1)
    start = linear(digits_dataset)
    first = start.get_weights()
    start.fit(train, verbose=0, shuffle=False)  # ends by itself
    assert int(start.optimizer.iterations) == math.ceil(1464 / 100)

    model = linear(digits_dataset)
    model.set_weights(first)
    endless = load(digits_dataset, image_size=8, batch_size=100)
    fitting = {"steps_per_epoch": 4, "verbose": 0, "shuffle": False}
    model.fit(endless, epochs=2, callbacks=[Checkpoint(path, every_steps=3)], **fitting)
    model = keras.models.load_model(path)
    step = int(model.optimizer.iterations)
    assert step == 8
    rest = load(digits_dataset, image_size=8, batch_size=100, epochs=1, start_step=step)
    model.fit(rest, verbose=0, shuffle=False)
    for actual, expected in zip(model.get_weights(), start.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint.keras"]


def test_a_checkpoint_is_written_every_so_many_steps_over_epochs(digits_dataset, tmp_path):
    saved = []

    class Noted(Checkpoint):
        def _save(self) -> None:
            saved.append(int(self.model.optimizer.iterations))

    model = linear(digits_dataset)
    endless = load(digits_dataset, image_size=8, batch_size=10)
    for epochs in (2, 1):
        fitting = {"steps_per_epoch": 4, "verbose": 0, "shuffle": False}
        model.fit(endless, epochs=epochs, callbacks=[Noted(tmp_path / "a.keras", 3)], **fitting)
    assert saved == [3, 6, 8, 9, 12, 12]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(digits_dataset, tmp_path, monkeypatch):
    model, train = linear(digits_dataset), load(digits_dataset, image_size=8, batch_size=10)
    fitting = {"steps_per_epoch": 2, "verbose": 0, "shuffle": False, "callbacks": [Checkpoint(tmp_path / "a.keras")]}
    model.fit(train, **fitting)
    before = (tmp_path / "a.keras").read_bytes()

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        model.fit(train, **fitting)
    assert (tmp_path / "a.keras").read_bytes() == before


def test_fit_that_would_never_end_is_refused(digits_dataset, tmp_path):
    endless = load(digits_dataset, image_size=8, batch_size=10)
    with pytest.raises(ValueError, match=r"steps_per_epoch=|specify the number of steps"):  # Keras 2 says it itself
        linear(digits_dataset).fit(endless, verbose=0, shuffle=False, callbacks=[Checkpoint(tmp_path / "a.keras")])
    with pytest.raises(ValueError, match=r"must end in \.keras"):
        Checkpoint(tmp_path)
    with pytest.raises(ValueError, match="every_steps must be at least 1, got 0"):
        Checkpoint("a.keras", 0)


def test_the_layer_on_jax():
    pytest.importorskip("jax")
    code = """
import numpy as np, keras
from tpu_input.keras import Normalize
assert keras.backend.backend() == "jax"
images = np.arange(60, dtype=np.uint8).reshape(1, 4, 5, 3)
model = keras.Sequential([keras.Input([4, 5, 3], dtype="uint8"), Normalize([1, 2, 3], [4, 5, 6])])
np.testing.assert_allclose(model.predict(images, verbose=0), (images - np.array([1, 2, 3])) / [4, 5, 6], rtol=1e-5)
"""
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not hasattr(keras, "ops"), reason="gradient_accumulation_steps is in Keras 3")
def test_a_checkpoint_counts_batches_also_where_gradients_are_accumulated(digits_dataset, tmp_path):
    def compiled() -> keras.Model:
        keras.utils.set_random_seed(0)
        model = linear(digits_dataset)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, gradient_accumulation_steps=4), loss)
        return model

    path, fitting = tmp_path / "checkpoint.keras", {"verbose": 0, "shuffle": False}
    undisturbed = compiled()
    undisturbed.fit(load(digits_dataset, image_size=8, batch_size=100), steps_per_epoch=11, **fitting)
    endless = load(digits_dataset, image_size=8, batch_size=100)
    compiled().fit(endless, steps_per_epoch=6, callbacks=[Checkpoint(path, every_steps=3)], **fitting)
    model = keras.models.load_model(path)
    assert trained_steps(model) == 6  # two of them are accumulated, but not applied
    rest = load(digits_dataset, image_size=8, batch_size=100, start_step=trained_steps(model))
    model.fit(rest, steps_per_epoch=5, **fitting)
    for actual, expected in zip(model.get_weights(), undisturbed.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


def test_weights_of_classes_are_those_of_the_examples_and_padding_weighs_nothing(digits_dataset):
    weights = {0: 4.0, 3: 0.0, 9: 0.5}
    for more in ({"epochs": 1}, {"split": "validation", "static_batch": True}):
        unweighted = load(digits_dataset, image_size=8, batch_size=100, **more)
        weighted = load(digits_dataset, image_size=8, batch_size=100, class_weight=weights, **more)
        assert len(unweighted) == len(weighted)
        for (_, label, weight), (_, same, actual) in zip(*map(tpu_input.as_numpy, (unweighted, weighted)), strict=True):
            np.testing.assert_array_equal(label, same)
            np.testing.assert_allclose(actual, weight * [weights.get(int(number), 1.0) for number in label])
    linear(digits_dataset).fit(weighted, verbose=0, shuffle=False)
    for wrong, message in (
        ({10: 1.0}, "has 10; the classes have the numbers 0 to 9"),
        ({1: -1.0}, "least 0, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            load(digits_dataset, class_weight=wrong)
