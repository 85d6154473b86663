"""A run of --trainer=jax as a SavedModel, which TensorFlow writes: it says what StableHLO says, in every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import estimator_app
from estimator_app.evaluate import evaluate
from estimator_app.export import export
from estimator_app.predict_dataset import predict_dataset
from estimator_app.saved_model.classifier import load_classifier
from estimator_app.saved_model.find import find_export, read_origin
from estimator_app.trainers.registry import find_saver
from support.app_fixtures import OPTIONS
from support.jax_runs import command
from support.trainers import needs_jax

pytestmark = needs_jax
SMALL: dict[str, Any] = OPTIONS | {"image_size": 8, "train_steps": 4, "steps_per_eval": 4, "trainer": "jax", "ema": 0.9}


@pytest.fixture(scope="module")
def trained(digits_dataset, tmp_path_factory) -> Path:
    """A run of four steps, whose averages are evaluated and exported; not to be changed."""
    folder = tmp_path_factory.mktemp("jax") / "run"
    estimator_app.train(digits_dataset, str(folder), report=lambda line: None, **SMALL, precision="bfloat16")
    return folder


@pytest.fixture(scope="module")
def saved_model(trained, tmp_path_factory) -> str:
    """Its SavedModel, made by the command: this process has Keras on JAX."""
    folder = tmp_path_factory.mktemp("exports")
    arguments = ("export", f"--model_dir={trained}", f"--export_dir={folder}", "--format=saved_model")
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    process = subprocess.run(
        [sys.executable, "-m", "jpeg2tpu", *arguments], capture_output=True, text=True, env=environment
    )
    assert (process.returncode, process.stderr) == (0, "")
    return find_export(str(folder))


def test_it_says_what_stablehlo_says_and_records_the_same_options(trained, saved_model):
    import tensorflow as tf

    stablehlo = load_classifier(str(trained / "export"))
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3)).astype(np.float32)
    outputs = tf.saved_model.load(saved_model).signatures["pixels"](pixels=tf.constant(pixels))
    expected = stablehlo.run(pixels)
    for name in ("logits", "probabilities"):
        np.testing.assert_allclose(outputs[name], expected[name], atol=1e-5)
    assert np.ptp(expected["logits"]) > 0.1
    assert read_origin(saved_model) == read_origin(stablehlo.path)
    assert Path(saved_model, "assets/classes.txt").read_text() == Path(stablehlo.path, "assets/classes.txt").read_text()


def test_every_command_takes_it(digits_dataset, trained, saved_model, tmp_path):
    stablehlo_metrics = evaluate(export_dir=str(trained / "export")).metrics
    assert evaluate(export_dir=saved_model).metrics.loss == pytest.approx(stablehlo_metrics.loss, rel=1e-3)
    rows = predict_dataset(digits_dataset, str(tmp_path / "p.parquet"), export_dir=saved_model)
    assert pq.read_table(rows).num_rows == digits_dataset.split("validation").num_examples
    for name, source in (("saved", saved_model), ("own", str(trained / "export"))):
        options = SMALL | {"train_steps": 1, "init_from": source}
        estimator_app.train(digits_dataset, str(tmp_path / name), report=lambda line: None, **options)
    with np.load(tmp_path / "saved/model.ckpt-0.npz") as actual, np.load(tmp_path / "own/model.ckpt-0.npz") as expected:
        for name in expected.files:
            np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def test_what_a_process_or_a_trainer_cannot_write_is_refused_in_a_line(trained, tmp_path):
    arguments = f"--model_dir={trained}", f"--export_dir={tmp_path}/e", "--format=saved_model"
    process = command("export", *arguments)
    line = "error: TensorFlow is not installed; install it with: pip install 'jpeg2tpu[train]'\n"
    assert (process.returncode, process.stderr) == (2, line)
    with pytest.raises(ImportError, match="needs Keras on tensorflow, but this process has imported it on jax"):
        export(str(trained), f"{tmp_path}/e", format="saved_model")
    with pytest.raises(ValueError, match="--format=stablehlo is for runs of --trainer=jax; this run is of"):
        find_saver("tf_distribute", "stablehlo")
    assert not (tmp_path / "e").exists()
