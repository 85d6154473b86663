"""The trainer of a new run for which none is named: by what is installed, and by Keras' backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata, util

import pytest

from estimator_app import config
from estimator_app.config import default_trainer
from support.app_commands import run

KERAS_ON_JAX = ("jax", "optax", "keras")


@pytest.mark.parametrize(
    ("tensorflow", "packages", "backend", "expected"),
    [
        ("2.15.1", (), "", "tpu_estimator"),
        ("2.15.1", KERAS_ON_JAX, "", "tpu_estimator"),
        ("2.15.1", KERAS_ON_JAX, "jax", "jax"),
        ("2.21.0", ("keras",), "", "tf_distribute"),
        ("2.21.0", ("keras", "jax"), "", "tf_distribute"),  # JAX is there for something else: optax is missing
        ("2.21.0", KERAS_ON_JAX, "", "jax"),
        ("2.21.0", KERAS_ON_JAX, "torch", "jax"),
        ("2.21.0", KERAS_ON_JAX, "tensorflow", "tf_distribute"),
        ("", KERAS_ON_JAX, "", "jax"),
        ("", KERAS_ON_JAX, "tensorflow", "jax"),
        ("", (), "", "tpu_estimator"),  # the command then asks for TensorFlow
    ],
)
def test_the_default_follows_what_is_installed(monkeypatch, tensorflow, packages, backend, expected):
    def version(name: str) -> str:
        if name != "tensorflow" or not tensorflow:
            raise metadata.PackageNotFoundError
        return tensorflow

    installed = {*packages, *(["tensorflow"] if tensorflow else [])}
    monkeypatch.setattr(util, "find_spec", lambda name: name if name in installed else None)
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(config, "chosen_backend", lambda: backend or None)
    assert default_trainer() == expected


@pytest.mark.skipif(
    not all(map(util.find_spec, KERAS_ON_JAX)), reason="needs JAX, which is beside the newest TensorFlow"
)
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_run_keeps_its_trainer_where_another_is_the_default(capsys, digits_dataset, tmp_path, has_checkpoint):
    flags = [f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}", "--image_size=8", "--train_batch_size=8"]
    code, *_ = run(capsys, "train", *flags, "--trainer=tf_distribute", "--train_steps=1", "--decay_steps=1")
    assert code == 0
    for path in [] if has_checkpoint else [*tmp_path.glob("model.ckpt*"), tmp_path / "checkpoint"]:
        path.unlink()
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    command = [sys.executable, "-W", "ignore", "-m", "jpeg2tpu", "train", *flags, "--train_steps=2", "--decay_steps=1"]
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    assert json.loads((tmp_path / "config.json").read_text())["trainer"] == "tf_distribute"
    assert (tmp_path / "model.ckpt-2.index").exists()
