"""`make soak`: that a run which differs in a file, a figure or a weight is noticed."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from estimator_app.train import run
from soak.__main__ import Soak, differences
from support.app_fixtures import configured, keras_warns
from support.gs import Gs

pytestmark = [pytest.mark.long, keras_warns]


@pytest.fixture(scope="module")
def finished(digits_dataset, tmp_path_factory) -> Path:
    model_dir = tmp_path_factory.mktemp("soak") / "run"
    config = configured(digits_dataset, train_steps=2, steps_per_eval=1, trainer="tf_distribute")
    run(digits_dataset, config, str(model_dir), f"{model_dir}/export", report=lambda line: None)
    return model_dir


@pytest.mark.parametrize(
    ("code", "words", "expected", "problems"),
    [
        (0, "step 5/9: 00:02 left, loss 0.1\n", 0, 0),
        (2, "step 5/9: 00:02 left, loss 0.1\nerror: the disk is full\n", 2, 0),
        (1, "", 0, 1),
        (0, "Traceback\n", 0, 1),
        (2, "", 2, 1),
        (2, "error: the disk is full\nerror: another\n", 2, 1),
    ],
)
def test_a_command_may_print_its_progress_and_one_line_of_error(tmp_path, code, words, expected, problems):
    soak = Soak(Gs.__new__(Gs), tmp_path, (), random.Random(0))
    program = f"import sys; sys.stderr.write({words!r}); sys.exit({code})"
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    process.wait()
    soak._check(process, expected)
    assert len(soak.problems) == problems


def test_a_copy_of_a_run_does_not_differ(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    assert differences(finished, tmp_path / "copy") == []


def test_another_figure_file_or_weight_is_noticed(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    history = (copy / "history.csv").read_text().splitlines()
    column = history[0].split(",").index("accuracy")
    values = history[2].split(",")
    values[column] = "0.125"
    (copy / "history.csv").write_text("\n".join([*history[:2], ",".join(values), ""]))
    (copy / "left.tmp").write_text("")
    assert differences(finished, copy) == ["files: left.tmp differs", "history: accuracy of row 1 differs"]
    for path in copy.glob("model.ckpt-2.*"):
        path.unlink()
    changed = tf.train.Checkpoint(model=tf.train.Checkpoint(kernel=tf.Variable([1.0])))
    changed.write(f"{copy}/model.ckpt-2")
    assert "weights: model/kernel/.ATTRIBUTES/VARIABLE_VALUE differs" in differences(finished, copy)
