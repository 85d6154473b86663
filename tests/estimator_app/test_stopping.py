"""Runs that are stopped, killed or out of disk, in processes of their own, end with the same weights to the bit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ends with TensorFlow 2.15")

from estimator_app.model_dir.history import read_history
from support.app_fixtures import happening, keras_warns

pytestmark = keras_warns
ROOT = Path(__file__).parents[2]
FLAGS = (
    *("--image_size=16", "--train_batch_size=16", "--no_flip", "--learning_rate=0.05"),
    *("--steps_per_eval=10", "--save_steps=4"),
)


def command(digits_dataset, model_dir) -> list[str]:
    return ["train", f"--dataset={digits_dataset.path}", f"--model_dir={model_dir}", "--train_steps=20", *FLAGS]


def weights(model_dir) -> dict[str, np.ndarray]:
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    return {name: checkpoint.get_tensor(name) for name in checkpoint.get_variable_to_shape_map()}


def decisions(model_dir) -> list[tuple[int, float, float]]:
    return [(row.step, row.values["accuracy"], row.values["loss"]) for row in read_history(str(model_dir))]


@pytest.mark.long
def test_a_run_that_is_stopped_in_every_way_ends_with_the_same_weights(digits_dataset, tmp_path):
    straight, model_dir = tmp_path / "straight", tmp_path / "model"
    assert happening(command(digits_dataset, straight)).returncode == 0
    args = command(digits_dataset, model_dir)
    for event, step, code, saved in [
        ("SIGTERM", 5, 143, 6),
        ("SIGKILL", 9, -signal.SIGKILL, 8),
        ("FULL", 13, 2, 12),
        ("SIGINT", 17, 130, 18),
    ]:
        process = happening(args, event, step)
        assert process.returncode == code, (event, process.stderr)
        assert weights(model_dir)["global_step"] == saved, event
        if event.startswith("SIG") and event != "SIGKILL":
            go_on = f"resume with: jpeg2tpu {' '.join(args)}"
            assert process.stdout.splitlines()[-1] == f"stopped and saved at step {saved}/20; {go_on}"
            assert process.stderr == ""
        if event == "FULL":
            (line,) = process.stderr.splitlines()
            assert line.startswith(f"error: {model_dir}/model.ckpt-16")
            assert line.endswith(
                "File too large; raise the limit of file sizes (ulimit -f), or use a file system without it; then "
                "rerun the same command to resume from the last checkpoint"
            )
    assert happening(args).stdout.startswith("resuming cnn at step 18/20")
    expected, actual = weights(straight), weights(model_dir)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
    assert decisions(model_dir) == decisions(straight)


@pytest.mark.long
def test_a_training_whose_output_nobody_reads_any_more_goes_on_to_its_end(digits_dataset, tmp_path):
    arguments = [sys.executable, "-m", "estimator_app", *command(digits_dataset, tmp_path)]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as training:
        assert training.stdout
        assert training.stderr
        assert training.stdout.readline().startswith("training cnn at step 0/20")
        training.stdout.close()
        assert "error" not in training.stderr.read()
    assert training.returncode == 0
