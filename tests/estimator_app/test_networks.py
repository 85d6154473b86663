"""Networks: published sizes, any image size, one's own, bfloat16, and batch normalisation's statistics, which move."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.model.network_names import NAMES, PATCH
from estimator_app.model.networks import NETWORKS, cnn, find_network, make_model, resnet18, resnet50
from support.app_commands import without_progress
from support.app_fixtures import keras_warns

ROOT = Path(__file__).parents[2]
pytestmark = keras_warns
needs_estimator = pytest.mark.skipif(tf.__version__ >= "2.16", reason="TPUEstimator's graph ends with TensorFlow 2.15")


def test_the_names_that_a_config_may_have_are_those_of_the_networks():
    assert {*PATCH} <= {*NAMES} == {*NETWORKS}


@pytest.mark.parametrize("image_size", [1, 28, 32, 224])
def test_the_cnn_takes_any_image_size(image_size):
    model = make_model(cnn, image_size, 10)
    assert model.output.shape == (None, 10)
    assert model.count_params() == 289_642


# Trainable parameters as torchvision's documentation has them, for its own networks of these names.
@pytest.mark.parametrize(
    ("network", "parameters"),
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("vit_b16", 86_567_656),
    ],
)
def test_networks_have_the_published_number_of_parameters(network, parameters):
    model = make_model(NETWORKS[network], 224, 1000)
    assert sum(np.prod(weight.shape) for weight in model.trainable_weights) == parameters


def test_resnet50_halves_its_images_in_3_by_3_convolutions():
    halving = [layer for layer in make_model(resnet50, 64, 10).layers if getattr(layer, "strides", None) == (2, 2)]
    sizes = [layer.kernel_size for layer in halving if hasattr(layer, "kernel_size")]
    assert sorted(sizes) == [(1, 1)] * 3 + [(3, 3)] * 3 + [(7, 7)]  # 1 x 1: the shortcuts beside them


def test_a_residual_block_begins_as_the_identity():
    scales = [
        layer.gamma.numpy().max() for layer in make_model(resnet18, 32, 10).layers if hasattr(layer, "moving_mean")
    ]
    assert scales.count(0) == 8
    assert scales.count(1) == 20 - 8


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_arithmetic_is_of_the_precision_and_variables_and_logits_are_float32(precision):
    model = make_model(resnet18, 32, 10, precision)
    assert {tf.as_dtype(layer.output.dtype) for layer in model.layers if "conv" in layer.name} == {
        tf.as_dtype(precision)
    }
    assert {tf.as_dtype(weight.dtype) for weight in model.weights} == {tf.float32}
    assert model.output.dtype == "float32"
    assert make_model(cnn, 32, 10).layers[1].output.dtype == "float32"  # the policy was put back
    first = next(layer for layer in model.layers if hasattr(layer, "moving_mean"))
    before = first.moving_mean.numpy()
    images = np.random.default_rng(0).normal(1, 1, [4, 32, 32, 3]).astype(np.float32)
    model(images, training=False)
    np.testing.assert_array_equal(first.moving_mean.numpy(), before)
    model(images, training=True)
    assert np.abs(first.moving_mean.numpy() - before).min() > 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("training", "share"), [(True, 0.1), (False, 0.0)])
def test_batch_normalisation_moves_a_tenth_towards_the_batch_in_training_alone(training, share, precision):
    images = tf.constant(np.random.default_rng(0).normal(3, 2, [8, 16, 16, 3]), tf.float32)
    model = make_model(cnn, 16, 10, precision)
    convolved, normalised = model.layers[1], model.layers[2]
    values = tf.cast(tf.keras.Model(model.input, convolved.output)(images), tf.float32).numpy()
    model(images, training=training)
    # To float32's accuracy even of bfloat16's values: it is float32 that is summed.
    np.testing.assert_allclose(normalised.moving_mean.numpy(), share * values.mean((0, 1, 2)), atol=1e-5)
    expected = 1 - share + share * values.var((0, 1, 2))
    np.testing.assert_allclose(normalised.moving_variance.numpy(), expected, rtol=1e-2)


def windows(images, size, stride, filler):
    """Returns [N, rows, columns, C, size, size]: what a window of `size` sees at each place of padded images."""
    pad = (size - 1) // 2
    padded = np.pad(images, [(0, 0), (pad, pad), (pad, pad), (0, 0)], constant_values=filler)
    view = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))  # type: ignore[call-overload]
    return view[:, ::stride, ::stride]


def layer_weights(model, kind):
    """Returns the weights of all layers of a kind, in the order in which the network's code made them."""
    layers = [layer for layer in model.layers if isinstance(layer, kind)]
    # stem, stage1_block1_conv1, …conv2, …shortcut, stage1_block2_conv1, …
    layers.sort(key=lambda layer: (not layer.name.startswith("stem"), layer.name))
    return [layer.get_weights() for layer in layers]


def numpy_resnet(model, images, bottleneck, depths):
    """Returns the logits of torchvision's models/resnet.py, whose padding is (size - 1) / 2 at any stride, in NumPy."""
    kernels = iter(layer_weights(model, tf.keras.layers.Conv2D))
    norms = iter(layer_weights(model, tf.keras.layers.BatchNormalization))
    ((weight, bias),) = layer_weights(model, tf.keras.layers.Dense)

    def convolved(images, stride):
        (kernel,) = next(kernels)
        patches = windows(images, len(kernel), stride, 0)
        scale, offset, mean, variance = next(norms)
        return (np.einsum("nrcihw,hwio->nrco", patches, kernel, optimize=True) - mean) * scale / np.sqrt(
            variance + 1e-5
        ) + offset

    relu = functools.partial(np.maximum, 0)
    images = windows(relu(convolved(images, 2)), 3, 2, -np.inf).max((-1, -2))
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            strides = (1, stride, 1) if bottleneck else (stride, 1)
            residual = images
            for number, conv_stride in enumerate(strides, 1):
                residual = convolved(residual, conv_stride)
                residual = relu(residual) if number < len(strides) else residual
            if residual.shape != images.shape:
                images = convolved(images, stride)
            images = relu(images + residual)
    return images.mean((1, 2)) @ weight + bias


@pytest.mark.parametrize(
    ("network", "bottleneck", "depths", "image_size"),
    [(resnet18, False, (2, 2, 2, 2), 64), (resnet18, False, (2, 2, 2, 2), 49), (resnet50, True, (3, 4, 6, 3), 64)],
)
def test_logits_of_residual_networks_are_those_of_the_published_padding(network, bottleneck, depths, image_size):
    random = np.random.default_rng(0)
    model = make_model(network, image_size, 10)
    for weight in model.weights:  # as after training: no scale is zero, no statistics are those of the first step
        if len(weight.shape) == 1:
            weight.assign(random.uniform(0.5, 1.5, weight.shape))
    images = random.normal(size=[2, image_size, image_size, 3]).astype("f")
    expected = numpy_resnet(model, images, bottleneck, depths)
    logits = model(images, training=False).numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


NETWORKS_MODULE = """
import tensorflow as tf
import json

def good(images, num_classes, training):
    return tf.keras.layers.Dense(num_classes)(tf.keras.layers.Flatten()(images))

def transposed(images, num_classes, training):
    return tf.keras.layers.Dense(num_classes + 1)(tf.keras.layers.Flatten()(images))

def nothing(images, num_classes, training):
    pass

def softmax(images, num_classes, training):
    return tf.keras.layers.Dense(num_classes, activation="softmax")(tf.keras.layers.Flatten()(images))

def weightless(images, num_classes, training):
    return tf.keras.layers.Flatten()(images)[:, :num_classes]

def exiting(images, num_classes, training):
    raise SystemExit(0)

def nested(images, num_classes, training):
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Flatten(), layers.Dense(num_classes), layers.Softmax()])(images)

def short(images, training):
    pass

number = 3
"""


@pytest.fixture
def networks_folder(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(NETWORKS_MODULE)
    (tmp_path / "broken_network.py").write_text("import no_such_module\n")
    (tmp_path / "exiting_network.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "raising_network.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_networks", None)


def test_ones_own_function_is_a_network(networks_folder):
    assert make_model(find_network("own_networks:good"), 8, 3).output.shape == (None, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet9000", "one of cnn, .*, vit_s16, vit_b16, keras:NAME, package.module:function, got 'resnet9000'"),
        ("resent50", "got 'resent50'; did you mean resnet50?"),
        ("no_such:good", "'no_such:good': no module 'no_such' in the working directory or among the installed"),
        ("broken_network:good", "'broken_network:good': no module 'no_such_module' in the working"),
        ("raising_network:good", r"raising_network cannot be imported: RuntimeError\('no licence'\)"),
        ("exiting_network:good", r"exiting_network cannot be imported: SystemExit\(0\)"),
        ("own_networks:bad", "'own_networks:bad': module 'own_networks' has no attribute 'bad'"),
        ("own_networks:short", r"must take \(images, num_classes, training\): too many positional arguments"),
        ("own_networks:number", "must take .*: 3 is not a callable object"),
        (":good", "':good' does not name a function"),
        ("own_networks:", "'own_networks:' does not name a function"),
    ],
)
def test_a_network_that_is_not_there_is_refused_and_the_known_are_named(networks_folder, name, message):
    with pytest.raises(ValueError, match=message):
        find_network(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("transposed", r"'transposed' must return logits of shape \(None, 3\), .*, got shape \(None, 4\)"),
        ("nothing", r"'nothing' must return logits of shape \(None, 3\), .*, got None"),
        ("softmax", "'softmax' ends in a softmax, but must return logits"),
        ("weightless", "'weightless' has no weights to train"),
        ("exiting", r"'exiting' raises SystemExit: SystemExit\(0\) \(.*own_networks\.py:\d+\)"),
        ("nested", "'nested' ends in a softmax, but must return logits"),
    ],
)
def test_what_are_no_logits_is_refused(networks_folder, name, message):
    with pytest.raises(ValueError, match=message):
        make_model(find_network(f"own_networks:{name}"), 8, 3)


def test_a_network_in_the_current_folder_is_found_from_a_script_after_what_is_installed(tmp_path, monkeypatch):
    (tmp_path / "beside_the_user.py").write_text("def good(images, num_classes, training): ...")
    (tmp_path / "colorsys.py").write_text("def good(images, num_classes, training): ...")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])  # a script has no current folder here
    assert find_network("beside_the_user:good").__module__ == "beside_the_user"
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(ValueError, match="module 'colorsys' has no attribute 'good'"):  # the standard library's
        find_network("colorsys:good")


@needs_estimator
@pytest.mark.long
@pytest.mark.parametrize("way", ["script", "module"])
def test_the_command_finds_a_network_in_the_working_directory(networks_folder, digits_dataset, tmp_path_factory, way):
    options = [f"--dataset={digits_dataset.path}", "--model_dir=model", "--image_size=16", "--train_steps=2"]
    (script := tmp_path_factory.mktemp("bin") / "jpeg2tpu").write_text(
        "import sys; from tpu_input.command_line.jpeg2tpu import main; sys.exit(main())"
    )
    program = [sys.executable, *{"script": [str(script)], "module": ["-m", "jpeg2tpu"]}[way]]
    command = [*program, "train", *options, "--network=own_networks:good"]
    process = subprocess.run(
        command, cwd=networks_folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (process.returncode, without_progress(process.stderr)) == (0, "")
    assert process.stdout.startswith("training own_networks:good at step 0/2")
