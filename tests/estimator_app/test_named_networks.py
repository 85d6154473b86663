"""ViT-S/16 beside NumPy and its paper; networks of keras.applications beside Keras itself; both in both trainers."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.training.networks import flops
from estimator_app.config import TrainConfig, default_trainer
from estimator_app.model.keras_applications import application, applications
from estimator_app.model.layer_names import variables_of
from estimator_app.model.networks import find_network, logits, make_model
from estimator_app.model.vit import encoded
from estimator_app.trainers.checks import make_weighted_model
from estimator_app.trainers.starting_weights import starting_weights
from support.app_fixtures import configured, keras_warns

training = importlib.import_module("estimator_app.train")

# Keras saves and loads tf.Variables through NumPy, which the newest NumPy deprecates.
numpy_warns = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
pytestmark = [keras_warns, numpy_warns]
ROOT = Path(__file__).parents[2]
TRAINERS = ["tf_distribute", *(["tpu_estimator"] if default_trainer() == "tpu_estimator" else [])]


# Those of timm's vit_small_patch16_224, whose weights are those of Steiner et al. 2022.
def test_vit_s16_has_the_published_parameters():
    assert make_model(find_network("vit_s16"), 224, 1000).count_params() == 22_050_664


# Of torchvision's documentation and timm; of MobileNet, MobileNetV2 and EfficientNet, of their papers.
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "published", "tolerance"),
    [
        ("resnet18", 1.81e9, 0.01),
        ("resnet50", 4.09e9, 0.01),
        ("vit_s16", 4.61e9, 0.01),
        ("keras:MobileNet", 569e6, 0.01),
        ("keras:MobileNetV2", 300e6, 0.01),
        ("keras:EfficientNetB0", 0.39e9, 0.02),
    ],
)
def test_networks_have_the_published_multiply_adds(name, published, tolerance):
    assert flops(name, 224, 1000) / 2 == pytest.approx(published, rel=tolerance)


def numpy_vit(images, weights, patch, width, depth, heads):
    """Returns the features of Dosovitskiy et al. 2021, equations 1 to 4, in NumPy."""

    def dense(inputs, name):
        return inputs @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    def normalised(inputs, name):
        centred = inputs - inputs.mean(-1, keepdims=True)
        deviation = np.sqrt(inputs.var(-1, keepdims=True) + 1e-6)
        return centred / deviation * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def split_heads(inputs):
        return inputs.reshape(*inputs.shape[:2], heads, width // heads)

    num, side = len(images), images.shape[1] // patch
    patches = images.reshape(num, side, patch, side, patch, 3).swapaxes(2, 3).reshape(num, side * side, -1)
    kernel = weights["patches/kernel"].reshape(-1, width)
    tokens = np.concatenate(
        [np.repeat(weights["positions/class_token"], num, 0), patches @ kernel + weights["patches/bias"]], 1
    )
    tokens = tokens + weights["positions/positions"]
    for block in (f"block{number}" for number in range(1, depth + 1)):
        inputs = normalised(tokens, f"{block}_attention_norm")
        query, key, value = (split_heads(dense(inputs, f"{block}_{part}")) for part in ("query", "key", "value"))
        scores = np.exp(np.einsum("nqhc,nkhc->nhqk", query, key) / np.sqrt(width // heads))
        attended = np.einsum("nhqk,nkhc->nqhc", scores / scores.sum(-1, keepdims=True), value)
        tokens = tokens + dense(attended.reshape(tokens.shape), f"{block}_projection")
        hidden = dense(normalised(tokens, f"{block}_mlp_norm"), f"{block}_mlp1")
        gelu = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / np.sqrt(2)))
        tokens = tokens + dense(gelu, f"{block}_mlp2")
    return normalised(tokens, "norm")[:, 0]


def small_vit():
    images = tf.keras.Input([8, 8, 3])
    return tf.keras.Model(images, encoded(images, patch=4, width=8, depth=2, heads=2, mlp_width=16))


def test_a_vision_transformer_computes_what_its_paper_says():
    random, model = np.random.default_rng(0), small_vit()
    weights = {}
    for name, (variable, _) in variables_of(model).items():
        weights[name] = random.normal(0.5, 0.5, variable.shape).astype("f")
        variable.assign(weights[name])
    images = random.normal(size=[3, 8, 8, 3]).astype("f")
    expected = numpy_vit(images.astype(np.float64), weights, patch=4, width=8, depth=2, heads=2)
    np.testing.assert_allclose(model(images), expected, rtol=1e-3, atol=1e-4)


def small_network(images, num_classes, training):
    return logits(encoded(images, patch=4, width=8, depth=2, heads=2, mlp_width=16), num_classes)


def test_bfloat16_leaves_variables_softmax_and_logits_of_a_vision_transformer_in_float32():
    model = make_model(small_network, 8, 10, "bfloat16")
    assert {tf.as_dtype(weight.dtype) for weight in model.weights} == {tf.float32}
    assert model.output.dtype == "float32"
    assert tf.as_dtype(model.get_layer("block1_mlp1").output.dtype) == tf.bfloat16

    attention, tokens = model.get_layer("block1_attention"), tf.TensorSpec([1, 5, 8], tf.bfloat16)
    graph = tf.function(attention.call).get_concrete_function([tokens] * 3).graph
    assert [op.outputs[0].dtype for op in graph.get_operations() if op.type == "Softmax"] == [tf.float32]
    random = np.random.default_rng(0)
    images = random.normal(size=[4, 8, 8, 3]).astype("f")
    exact = make_model(small_network, 8, 10)
    for weight, other in zip(exact.weights, model.weights, strict=True):
        weight.assign(random.normal(0, 0.5, weight.shape))
        other.assign(weight)
    actual, expected = (network(images, training=False) for network in (model, exact))
    np.testing.assert_allclose(actual, expected, atol=0.03 * np.abs(expected).max())


def test_images_that_cannot_be_cut_into_patches_are_refused_before_anything_is_made(digits_dataset):
    with pytest.raises(ValueError, match="image_size must be a multiple of 16 for vit_s16, got 50; use 48"):
        configured(digits_dataset, network="vit_s16", image_size=50)


# count_params() of the models in Keras' documentation, which rounds them: 4.3, 3.5, 7.2, 5.3, 25.6 and 28.6 million.
PUBLISHED = {
    "MobileNet": 4_253_864,
    **{"MobileNetV2": 3_538_984, "EfficientNetV2B0": 7_200_312, "EfficientNetB0": 5_330_571},
    **{"ResNet50": 25_636_712, "ConvNeXtTiny": 28_589_128},
}
ONE_BY_DEFAULT = [name if name == "MobileNet" else pytest.param(name, marks=pytest.mark.long) for name in PUBLISHED]


@pytest.mark.parametrize("name", ONE_BY_DEFAULT)
def test_networks_of_keras_have_the_published_number_of_parameters(name):
    model = make_model(find_network(f"keras:{name}"), 224, 1000, "bfloat16")
    assert model.count_params() == PUBLISHED[name]
    assert model.output.dtype == "float32"
    floating = {tf.as_dtype(weight.dtype) for weight in model.weights if tf.as_dtype(weight.dtype).is_floating}
    assert floating == {tf.float32}


@pytest.mark.parametrize("name", sorted({"RegNetX002", "MobileNet"} & set(applications())))  # Keras 3 has no RegNet
def test_a_network_of_keras_gets_pixels_whatever_the_images_were_divided_by(name):
    """RegNet and ConvNeXt of Keras 2 begin at the images, whatever comes before their input_tensor."""
    images = np.random.default_rng(0).integers(0, 256, [2, 32, 32, 3]).astype("f")
    networks = []
    for mean, std in ((0.0, 1.0), (100.0, 50.0)):
        inputs = tf.keras.Input([32, 32, 3])
        networks.append(tf.keras.Model(inputs, application(name, [mean] * 3, [std] * 3)(inputs, 10, None)))
    networks[1].set_weights(networks[0].get_weights())
    expected, actual = networks[0](images).numpy(), networks[1]((images - 100) / 50).numpy()
    assert np.std(expected, axis=0).max() > 1e-2 * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.filterwarnings("ignore:.*keras.initializers.serialize.* API should only be used for:UserWarning")
@pytest.mark.parametrize("name", ONE_BY_DEFAULT)
def test_the_weights_of_a_keras_file_give_keras_own_logits_for_the_same_pixels(digits_dataset, tmp_path, name):
    random, make = np.random.default_rng(0), getattr(tf.keras.applications, name)
    source = make(weights=None, classes=10, input_shape=(32, 32, 3), classifier_activation=None)
    pixels = random.integers(0, 256, [4, 32, 32, 3]).astype("f")
    preprocessed = sys.modules[make.__module__].preprocess_input(pixels.copy())
    for layer in source.layers:  # as after training: statistics are those of images, and what comes out depends on them
        if hasattr(layer, "moving_mean"):
            layer.momentum = 0.0
    source(preprocessed, training=True)
    source.save(tmp_path / "source.keras")

    config = configured(
        digits_dataset, network=f"keras:{name}", image_size=32, init_from=str(tmp_path / "source.keras")
    )
    weights = starting_weights(config)
    num = len(source.weights)
    assert str(weights) == f"{num} of {num} variables"

    normalised = (pixels - np.array(config.input.mean, "f")) / np.array(config.input.std, "f")
    outputs = make_weighted_model(config, weights.values)(normalised, training=False)
    expected = source(preprocessed, training=False)
    scale = np.abs(expected).max()
    assert np.std(expected, axis=0).max() > 0.01 * scale
    np.testing.assert_allclose(outputs, expected, atol=1e-3 * scale)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("EfficientNetV2", r"no 'EfficientNetV2'; did you mean keras:EfficientNetV2\w+ or keras:EfficientNetV2\w+ or"),
        ("resnet50", "did you mean keras:ResNet50 or "),
        ("", "no ''$"),
        ("__loader__", "no '__loader__'"),
        ("mobilenet.MobileNet", "no 'mobilenet.MobileNet'; did you mean keras:MobileNet"),
    ],
)
def test_a_network_that_keras_has_not_is_one_line_with_the_nearest_names(name, message):
    with pytest.raises(ValueError, match=message):
        find_network(f"keras:{name}")


def test_a_stranger_s_config_names_a_network_of_keras_and_makes_nothing(digits_dataset, monkeypatch):
    config = configured(digits_dataset, network="keras:MobileNet", image_size=32)
    monkeypatch.setattr(tf.keras.applications, "MobileNet", None)  # it would raise if called
    assert TrainConfig.from_json(config.to_json({}), "config.json") == config
    fields = json.loads(config.to_json({})) | {"network": "keras:os.system"}
    with pytest.raises(ValueError, match=r"is not a training run's config: network 'keras:os.system': keras.applic"):
        TrainConfig.from_json(json.dumps(fields), "config.json")
    assert {"MobileNet", "EfficientNetV2B0", "ResNet50"} < set(applications())


@pytest.mark.long
@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("network", ["vit_s16", "keras:MobileNet"])
def test_both_trainers_train_evaluate_export_and_fine_tune(digits_dataset, tmp_path, trainer, network):
    options = {"network": network, "image_size": 32, "precision": "bfloat16", "train_steps": 2, "steps_per_eval": 2}
    config = configured(digits_dataset, trainer=trainer, ema=0.9, **options)
    first = training.run(digits_dataset, config, f"{tmp_path}/first", f"{tmp_path}/export", report=lambda line: None)
    assert first.metrics.num_examples == digits_dataset.split("validation").num_examples
    classify = tf.saved_model.load(first.export).signatures["serving_default"]
    assert classify.structured_outputs["probabilities"].shape[1] == 10
    # All but the head stay as the first run left them.
    frozen = "(?!head|conv_preds).*"
    tuned = dataclasses.replace(config, init_from=f"{tmp_path}/first", freeze=frozen, ema=0.0)
    training.run(digits_dataset, tuned, f"{tmp_path}/second", f"{tmp_path}/export2", report=lambda line: None)
    source = starting_weights(dataclasses.replace(config, init_from=f"{tmp_path}/first")).values
    end = starting_weights(dataclasses.replace(config, init_from=f"{tmp_path}/second")).values
    moved = {name for name, value in end.items() if not np.array_equal(value, source[name])}
    assert moved == {name for name in source if name.startswith(("head/", "conv_preds/"))}


@pytest.mark.long
def test_the_commands_of_the_guide_run_as_they_stand(digits_dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dataset").symlink_to(digits_dataset.path)
    section = (ROOT / "docs" / "train.md").read_text().partition("\n### Networks of Keras\n")[2].partition("\n### ")[0]
    block = section.partition("```python\n")[2].partition("```")[0]
    exec(block.replace('weights="imagenet"', "weights=None"), {})
    lines = section.replace("\\\n", "").splitlines()
    commands = [line.strip() for line in lines if line.startswith("    jpeg2tpu ")]
    assert len(commands) == 2
    for command in commands:
        _, *argv = shlex.split(command.replace("--train_steps=20", "--train_steps=1"))
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        program = [sys.executable, "-W", "ignore", "-m", "jpeg2tpu"]
        process = subprocess.run([*program, *argv], capture_output=True, text=True, env=environment)
        assert process.returncode == 0, (command, process.stderr)
    assert "initial weights: 260 of 262 variables" in process.stdout
