"""Keras models as networks, in both trainers: their own weights, what is frozen, inner models, embeddings, ifs."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.config import default_trainer
from estimator_app.model_dir.checkpoints import VARIABLE_SUFFIX
from estimator_app.trainers.registry import find_trainer
from support.app_fixtures import configured, keras_warns
from tpu_input import make_train_input_fn

pytestmark = keras_warns
TRAINERS = ["tpu_estimator", "tf_distribute"] if default_trainer() == "tpu_estimator" else ["tf_distribute"]
layers = tf.keras.layers

# A rate that stays as it is, and no decay: what a plain Keras loop does.
SCHEDULE = {"warmup_steps": 0, "decay": "steps", "decay_steps": 10**6, "weight_decay": 0.0, "iterations_per_loop": 1}
RATE = 0.05


@pytest.fixture
def train(digits_dataset, tmp_path):
    """Returns train(loop, network, steps, **options): a run's variables at its last checkpoint, by number and kind."""

    def train(loop, network, steps, start_step=0, model_dir=None, **options):
        name = f"{__name__}:{network.__name__}"
        config = configured(digits_dataset, trainer=loop, network=name, learning_rate=RATE, **SCHEDULE, **options)
        model_dir = str(model_dir or tmp_path / f"{loop}_{network.__name__}")
        trainer = find_trainer(loop)
        state = trainer.make(config, model_dir, None)
        trainer.train(state, digits_dataset, config, start_step, steps, threading.Event())
        return saved(f"{model_dir}/model.ckpt-{steps}")

    return train


def saved(path):
    checkpoint = tf.train.load_checkpoint(path)
    variables = {}
    for name in checkpoint.get_variable_to_shape_map():
        place = name.removesuffix(VARIABLE_SUFFIX).removeprefix("weights/")
        if place[0].isdigit() and "/" not in place:  # neither the step nor an optimizer's
            variables[place] = checkpoint.get_tensor(name)
    return variables


def select_kind(variables, kind):
    """Returns the variables of a kind in the order of the network."""
    numbers = sorted(int(name.split("_")[0]) for name in variables if name.split("_", 1)[1] == kind)
    return [variables[f"{number}_{kind}"] for number in numbers]


def batches(manifest, image_size=16):
    """Yields the (images, labels) of each step, normalised here and now."""
    config = configured(manifest, image_size=image_size)
    mean, std = (np.array(values, np.float32) for values in (config.input.mean, config.input.std))
    for features, labels in make_train_input_fn(manifest, config.input)({"batch_size": 16}):
        yield (features["image"].numpy().astype(np.float32) - mean) / std, labels


def keras_loop(manifest, network, steps, image_size=16):
    """Returns the keras.Model after so many steps of the loop in Keras' guide to writing one's own."""
    tf.keras.utils.set_random_seed(0)
    inputs = tf.keras.Input([image_size, image_size, 3])
    model = tf.keras.Model(inputs, network(inputs, 10, None))
    optimizer = tf.keras.optimizers.SGD(RATE, momentum=0.9, nesterov=True)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _, (images, labels) in zip(range(steps), batches(manifest, image_size), strict=False):
        step(tf.constant(images), labels)
    return model


INITIAL_VALUES = {
    "kernel": np.random.default_rng(0).normal(size=[3, 3, 3, 4]).astype("f"),
    "gamma": np.array([1, 2, 3, 4], np.float32),
    "beta": np.array([0, 1, 0, 1], np.float32),
    "moving_mean": np.array([4, 3, 2, 1], np.float32),
    "moving_variance": np.array([1, 2, 1, 2], np.float32),
}
PRETRAINED: dict[str, str] = {}  # the path of its weights, in a test
HEAD = np.random.default_rng(1).normal(size=[4, 10]).astype("f")


def body(batch_normalisation_momentum=0.5):
    return tf.keras.Sequential(
        [
            tf.keras.Input([16, 16, 3]),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(momentum=batch_normalisation_momentum),
        ]
    )


def pretrained(images, num_classes, training):
    """A frozen body whose weights come from a file, as keras.applications' do, and a head that set_weights() fills."""
    frozen, head = body(), layers.Dense(num_classes, use_bias=False)
    frozen.load_weights(PRETRAINED["path"])
    frozen.trainable = False
    logits = head(layers.GlobalAveragePooling2D()(frozen(images, training=training)))
    head.set_weights([HEAD])
    return logits


@pytest.fixture
def weights_file(tmp_path):
    model = body()
    model.set_weights(list(INITIAL_VALUES.values()))
    PRETRAINED["path"] = str(tmp_path / "body.weights.h5")
    model.save_weights(PRETRAINED["path"])


# Keras 3's own, when it saves weights under NumPy 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize("loop", TRAINERS)
@pytest.mark.long
def test_a_network_begins_with_its_own_weights_keeps_the_frozen_and_goes_on_with_the_trained(
    train, tmp_path, weights_file, loop
):
    path = tmp_path / "run"
    half = train(loop, pretrained, 2, model_dir=path)
    first = saved(str(path / "model.ckpt-0"))
    for variables in (first, half, train(loop, pretrained, 4, start_step=2, model_dir=path)):
        assert len(variables) == 6
        (head,) = [kernel for kernel in select_kind(variables, "kernel") if kernel.ndim == 2]
        assert np.array_equal(head, HEAD) == (variables is first)
        for kind, initial in INITIAL_VALUES.items():
            matches = [value for value in select_kind(variables, kind) if value.shape == initial.shape]
            np.testing.assert_array_equal(matches, [initial], err_msg=kind)
    straight = train(loop, pretrained, 4, model_dir=tmp_path / "straight")
    for name, value in straight.items():
        np.testing.assert_array_equal(variables[name], value, err_msg=name)


class Block(tf.keras.Model):
    """A subclassed model with what functional ones cannot have: arithmetic of its own, and Python's control flow."""

    def __init__(self):
        super().__init__()
        self.normalisation = layers.BatchNormalization(momentum=0.8)
        self.dense = layers.Dense(8, activation="relu")

    def call(self, images, training=None):
        for _ in range(2):
            images = self.normalisation(images, training=training)
        return self.dense(tf.reduce_mean(images, axis=[1, 2]))


def inner_models(images, num_classes, training):
    """A functional model, called twice, and a subclassed one."""
    inputs = tf.keras.Input([None, None, 3])
    inner = tf.keras.Model(inputs, layers.BatchNormalization(momentum=0.7)(layers.Conv2D(3, 3)(inputs)))
    images = inner(inner(images, training=training), training=training)
    return layers.Dense(num_classes)(Block()(images, training=training))


def mobilenet(images, num_classes, training):
    model = tf.keras.applications.MobileNetV2(
        images.shape[1:], alpha=0.35, include_top=False, weights=None, pooling="avg"
    )
    return layers.Dense(num_classes)(model(images, training=training))


def values(model, kind):
    """Returns the values of a keras.Model's weights of a kind, in its order."""
    return [weight.numpy() for weight in model.weights if weight.name.split("/")[-1].split(":")[0] == kind]


@pytest.mark.parametrize("loop", TRAINERS)
def test_inner_models_train_and_move_their_averages_as_in_a_loop_of_keras(train, digits_dataset, loop):
    variables, model = train(loop, inner_models, 3), keras_loop(digits_dataset, inner_models, 3)
    assert len(variables) == len(model.weights)
    for kind in ("moving_mean", "moving_variance", "kernel", "gamma"):
        expected = values(model, kind)
        assert len(expected) >= 2
        for one, other in zip(select_kind(variables, kind), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=kind)


@pytest.mark.long
def test_a_network_of_keras_applications_moves_its_averages_as_a_call_of_keras_does(train, digits_dataset):
    variables = train(TRAINERS[0], mobilenet, 1, image_size=32)
    model = keras_loop(digits_dataset, mobilenet, 0, 32)
    images, _ = next(batches(digits_dataset, 32))
    model(tf.constant(images), training=True)
    assert len(variables) == len(model.weights)
    for kind in ("moving_mean", "moving_variance"):
        expected = values(model, kind)
        assert len(expected) == 52
        for one, other in zip(select_kind(variables, kind), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4, err_msg=kind)
            assert not np.array_equal(one, np.full_like(one, kind == "moving_variance"))


TABLE = np.random.default_rng(2).normal(size=[32, 4]).astype("f")


class Levels(tf.keras.layers.Layer):
    """Numbers of images' levels of grey, of which the brightest never comes: [N, 256] int32 in [0, 31)."""

    def call(self, images):
        return tf.cast(tf.reshape(tf.clip_by_value(images[..., 0] * 8 + 8, 0, 30), [-1, 256]), tf.int32)

    def compute_output_shape(self, shape):
        return (shape[0], 256)


def looked_up(images, num_classes, training):
    embedding = layers.Embedding(32, 4, embeddings_initializer=tf.keras.initializers.Constant(TABLE))
    return layers.Dense(num_classes)(layers.GlobalAveragePooling1D()(embedding(Levels()(images))))


class OneHot(tf.keras.layers.Layer):
    def call(self, levels):
        return tf.one_hot(levels, 32)

    def compute_output_shape(self, shape):
        return (*shape, 32)


def multiplied(images, num_classes, training):
    """looked_up() as a product, whose gradient is dense."""
    kernel = layers.Dense(4, use_bias=False, kernel_initializer=tf.keras.initializers.Constant(TABLE))
    return layers.Dense(num_classes)(layers.GlobalAveragePooling1D()(kernel(OneHot()(Levels()(images)))))


@pytest.mark.parametrize("loop", TRAINERS)
@pytest.mark.long
def test_an_embedding_learns_as_the_product_with_one_hot_rows_that_it_is(train, loop):
    options = {"optimizer": "lars"}
    rows = select_kind(train(loop, looked_up, 3, **options), "embeddings")[0]
    product = next(
        kernel for kernel in select_kind(train(loop, multiplied, 3, **options), "kernel") if len(kernel) == 32
    )
    np.testing.assert_allclose(rows, product, rtol=1e-5, atol=1e-7)
    assert np.abs(rows - TABLE).max() > 1e-5


class Signed(tf.keras.layers.Layer):
    def call(self, images):
        if tf.reduce_sum(images) > 0:
            return images
        return -images


def conditional(images, num_classes, training):
    return layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(Signed()(images)))


@pytest.mark.skipif(tf.__version__ >= "2.16", reason="Keras 3 refuses such a layer by itself")
@pytest.mark.parametrize("loop", TRAINERS)
def test_an_if_over_tensors_inside_a_layer_is_understood_as_by_keras(train, digits_dataset, loop):
    variables = train(loop, conditional, 1)
    expected = keras_loop(digits_dataset, conditional, 1)
    np.testing.assert_allclose(select_kind(variables, "kernel")[0], expected.trainable_weights[0].numpy(), atol=1e-5)
