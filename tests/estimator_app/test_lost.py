"""Either loop, when its TPU is lost or its folder cannot be written; a full disk is in each loop's own tests."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.__main__ import main
from estimator_app.model_dir.lock import LOCK_NAME
from estimator_app.runtime.tensorflow_startup import one_line
from estimator_app.runtime.tpu import Tpu
from estimator_app.trainers.interruption import Moved
from estimator_app.trainers.progress import Progress
from support.app_fixtures import configured, keras_warns
from support.trainers import RUNNABLE

training = importlib.import_module("estimator_app.train")

pytestmark = keras_warns
TESTS = Path(__file__).parents[1]
OPTIONS = {"train_steps": 6, "save_steps": 2, "steps_per_eval": 6}


@pytest.fixture(scope="module", params=RUNNABLE)
def by(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def straight(by, digits_dataset, tmp_path_factory) -> Path:
    """The model_dir of a run that lost nothing; not to be changed."""
    model_dir = tmp_path_factory.mktemp("straight")
    config = configured(digits_dataset, trainer=by, **OPTIONS)
    training.run(digits_dataset, config, str(model_dir), f"{model_dir}/export", report=lambda line: None)
    return model_dir


@pytest.mark.parametrize(
    "added", ["", " [Op:ReadVariableOp]", " [Op:ReadVariableOp] name: ", " [Op:SaveV2] name: save"]
)
def test_what_eager_execution_adds_to_an_error_is_not_said(added):
    assert one_line(tf.errors.UnavailableError(None, None, f"Socket closed{added}")) == "Socket closed"


def assert_same_weights(model_dir, other) -> None:
    actual, expected = (tf.train.load_checkpoint(tf.train.latest_checkpoint(str(path))) for path in (model_dir, other))
    names = expected.get_variable_to_shape_map().keys()
    assert actual.get_variable_to_shape_map().keys() == names
    for name in names:
        if "save_counter" not in name and "OBJECT_GRAPH" not in name:  # what TensorFlow counts for itself
            np.testing.assert_array_equal(actual.get_tensor(name), expected.get_tensor(name), err_msg=name)


@pytest.mark.long
def test_a_lost_tpu_is_left_and_found_again_at_the_checkpoint(by, digits_dataset, straight, tmp_path, monkeypatch):
    """On this machine's processor: what is lost is a session, and what a Tpu connects to is nothing."""
    original, failure_steps, waited = Progress.add_step, [5, 5], list[float | None]()

    def lose(self, *args):
        original(self, *args)
        if failure_steps and self.step == failure_steps[0]:
            raise tf.errors.UnavailableError(None, None, f"lost at step {failure_steps.pop()}")

    class Nothing(Tpu):
        def connect(self) -> None:
            return None

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return False

    monkeypatch.setattr(Progress, "add_step", lose)
    config = configured(digits_dataset, trainer=by, **OPTIONS)
    lines: list[str] = []
    training.run(digits_dataset, config, str(tmp_path), f"{tmp_path}/export", Nothing(), lines.append, Stop())
    assert len(waited) == 2
    assert lines[1].startswith("TPU unavailable (lost at step 5); retrying from step 4 in ")
    assert lines[2].startswith("resuming cnn at step 4/6")
    assert_same_weights(tmp_path, straight)


@pytest.mark.parametrize("by", ["tf_distribute"], indirect=True)
@pytest.mark.long
def test_a_worker_that_is_killed_and_comes_back_here_or_elsewhere_is_found(by, digits_dataset, straight, tmp_path):
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(TESTS / "support" / "lost_worker.py"),
        digits_dataset.path,
        str(tmp_path),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    for line, step in ((lines[1], 2), (lines[3], 4)):
        assert line.startswith("TPU unavailable (")
        assert f"); retrying from step {step} in " in line
        assert "[Op:" not in line
    assert lines[2].startswith("resuming cnn at step 2/6")
    assert lines[4].startswith("moved: the address of the TPU has changed to grpc://127.0.0.1:")
    config = configured(digits_dataset, trainer=by, **OPTIONS | {"iterations_per_loop": 1})
    training.run(digits_dataset, config, str(tmp_path), f"{tmp_path}/export", report=lines.append)
    assert lines[5].startswith("resuming cnn at step 4/6")
    assert_same_weights(tmp_path, straight)


def test_a_tpu_at_another_address_is_gone_on_with_by_the_same_command(digits_dataset, tmp_path, monkeypatch, capsys):
    def moved(*args):
        raise Moved("the address of the TPU has changed to grpc://10.0.0.3:8470")

    executed: list[list[str]] = []
    monkeypatch.setattr(training, "run", moved)
    monkeypatch.setattr(os, "execv", lambda path, command: executed.append(command))
    command = ["train", f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/model"]
    assert main(command) == 0
    assert executed == [[sys.executable, "-m", "jpeg2tpu", *command]]
    assert capsys.readouterr().out.endswith("grpc://10.0.0.3:8470; resuming in a new process\n")


def test_a_model_dir_in_which_nothing_can_be_written_is_said_before_training(by, digits_dataset, tmp_path):
    (tmp_path / LOCK_NAME).mkdir()  # root, as which tests may run, may write anywhere else
    config = configured(digits_dataset, trainer=by)
    with pytest.raises(OSError, match=f"cannot write to '{tmp_path}': Is a directory; use another --model_dir"):
        training.run(digits_dataset, config, str(tmp_path), f"{tmp_path}/export", report=lambda line: None)
