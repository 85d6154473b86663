"""The signature over pixels: other runtimes convert it, and agree with the SavedModel and with its other signatures."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.export import export_model
from estimator_app.model_dir.array_files import write_arrays
from estimator_app.model_dir.run_files import read_config
from estimator_app.runtime.tensorflow_startup import has_estimator
from estimator_app.saved_model.find import find_checkpoint
from estimator_app.trainers.checks import make_weighted_model, named_weights
from estimator_app.trainers.starting_weights import weights_of_run
from support.app_fixtures import held_out_records, keras_warns
from tpu_input.predict import decode_files

pytestmark = [
    keras_warns,
    # LiteRT's own package has the same interpreter.
    pytest.mark.filterwarnings(r"ignore:\s*Warning. tf.lite.Interpreter is deprecated:UserWarning"),
]
SECTION = (Path(__file__).parents[2] / "docs" / "train.md").read_text().partition("### Other runtimes\n")[2]
BLOCKS = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
KERAS_3 = hasattr(tf.keras, "ops")
SAVED_MODELS = ("tpu_estimator", "tf_distribute")  # trainers whose own exports these are
BFLOAT16 = {"precision": "bfloat16", "ema": 0.9}
# All trainers; several labels an image; a network that was trained in bfloat16.
VARIANTS = [
    *((trainer, {}) for trainer in SAVED_MODELS),
    ("jax", {"ema": 0.9}),
    ("tf_distribute", {"label_type": "classes"}),
    ("tf_distribute", {"precision": "bfloat16"}),
    *(
        pytest.param((trainer, {"precision": "bfloat16", "ema": 0.9}), marks=pytest.mark.long)
        for trainer in SAVED_MODELS
    ),
]


@pytest.fixture(scope="module")
def pixels(finished, digits_dataset) -> np.ndarray:
    """Held-out digits as evaluation crops them."""
    config = read_config(str(Path(finished.export).parent.parent)).input
    files = [record.encoded for record in held_out_records(digits_dataset)[:20]]
    cropped = decode_files(tf.constant(files), dataclasses.replace(config, layout="NHWC"))
    return tf.cast(cropped, tf.float32).numpy()


@pytest.fixture(scope="module")
def exported(finished, tmp_path_factory, request) -> str:
    """An export of the finished run's weights, by a trainer and with other options."""
    trainer, options = request.param
    if trainer == "tpu_estimator" and not has_estimator():
        pytest.skip("TPUEstimator ends with TensorFlow 2.15")
    model_dir, folder = str(Path(finished.export).parent.parent), tmp_path_factory.mktemp("exported")
    config = read_config(model_dir)
    weights = weights_of_run(config, find_checkpoint(model_dir), model_dir)
    variables = named_weights(make_weighted_model(config, weights))
    checkpoint, step, is_ema = f"{folder}/model.ckpt-60", tf.constant(60, tf.int64), "ema" in options
    if trainer == "jax":
        averages = {f"ema/{path}": value for path, value in weights.items()}
        write_arrays(checkpoint, {"global_step": np.array(60, np.int64), **averages})
    elif trainer == "tf_distribute":
        saved = {"ema" if is_ema else "weights": variables}
        tf.train.Checkpoint(global_step=tf.Variable(step), **saved).write(checkpoint)
    else:
        values = {f"{'ema_' if is_ema else ''}{name}": tf.identity(variable) for name, variable in variables.items()}
        names = ["global_step", *values]
        tf.raw_ops.SaveV2(
            prefix=checkpoint, tensor_names=names, shape_and_slices=[""] * len(names), tensors=[step, *values.values()]
        )
    config = dataclasses.replace(config, trainer=trainer, **options)
    return export_model(config, model_dir, f"{folder}/export", checkpoint, format="saved_model")


def run_saved_model(export: str, pixels: np.ndarray) -> dict[str, np.ndarray]:
    outputs = tf.saved_model.load(export).signatures["pixels"](pixels=tf.constant(pixels))
    return {name: value.numpy() for name, value in outputs.items()}


def check_equal(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys() == {"logits", "probabilities"}
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, atol=1e-4)


def run_onnx(path: Path, pixels: np.ndarray) -> dict[str, np.ndarray]:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"pixels": pixels}), strict=True))


def test_pixels_say_what_files_say(finished, digits_dataset, pixels):
    signatures = tf.saved_model.load(finished.export).signatures
    files = tf.constant([record.encoded for record in held_out_records(digits_dataset)[: len(pixels)]])
    expected = {
        "logits": signatures["logits"](image_bytes=files)["logits"].numpy(),
        "probabilities": signatures["serving_default"](image_bytes=files)["probabilities"].numpy(),
    }
    assert np.ptp(expected["logits"]) > 1
    check_equal(run_saved_model(finished.export, pixels), expected)
    (spec,) = signatures["pixels"].structured_input_signature[1].values()
    assert (spec.shape.as_list(), spec.dtype) == ([None, 16, 16, 3], tf.float32)


@pytest.mark.parametrize("exported", VARIANTS, indirect=True, ids=str)
def test_tflite_agrees(exported, finished, pixels):
    converter = tf.lite.TFLiteConverter.from_saved_model(exported, signature_keys=["pixels"])
    run = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner("pixels")
    expected = run_saved_model(exported, pixels)
    check_equal(run(pixels=pixels), expected)
    np.testing.assert_allclose(expected["logits"], run_saved_model(finished.export, pixels)["logits"], atol=1e-4)


@pytest.mark.parametrize(
    "exported",
    [VARIANTS[0], *(pytest.param(variant, marks=pytest.mark.long) for variant in VARIANTS[1:5])],
    indirect=True,
    ids=str,
)
def test_onnx_runtime_agrees(exported, pixels, tmp_path):
    pytest.importorskip("tf2onnx", reason="of the environment with TensorFlow 2.15")
    options = ["--saved-model", exported, "--tag", "serve", "--signature_def", "pixels", "--output", "model.onnx"]
    command = [sys.executable, "-W", "ignore", "-m", "tf2onnx.convert", *options]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    check_equal(run_onnx(tmp_path / "model.onnx", pixels), run_saved_model(exported, pixels))


def test_the_guide_s_tflite(finished, pixels, capsys):
    exec(BLOCKS[0], {"EXPORT": finished.export, "IMAGES": pixels})
    expected = run_saved_model(finished.export, pixels)["probabilities"].argmax(axis=1)
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.long
def test_the_guide_s_onnx(finished, pixels, tmp_path, monkeypatch, capsys):
    pytest.importorskip("tf2onnx", reason="of the environment with TensorFlow 2.15")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    (tmp_path / "model").symlink_to(Path(finished.export).parent.parent)
    (commands,) = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
    process = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    exec(BLOCKS[1], {"IMAGES": pixels})
    expected = run_saved_model(finished.export, pixels)["probabilities"].argmax(axis=1)
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.skipif(not KERAS_3, reason="TFSMLayer is in Keras 3")
def test_the_guide_s_keras_3(finished, pixels, capsys):
    names = {"EXPORT": finished.export, "IMAGES": pixels}
    exec(BLOCKS[2], names)
    expected = run_saved_model(finished.export, pixels)
    assert capsys.readouterr().out == f"{expected['probabilities'].argmax(axis=1)}\n"
    by_keyword = names["classify"](inputs=pixels)["probabilities"]
    np.testing.assert_allclose(by_keyword, expected["probabilities"], atol=1e-4)
    keras = names["keras"]
    inputs = keras.Input(pixels.shape[1:])
    model = keras.Model(inputs, names["classify"](inputs)["logits"])
    np.testing.assert_allclose(model.predict(pixels, verbose=0), expected["logits"], atol=1e-4)
