"""`make soak`: that a run which differs in a file, a figure or a weight is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from estimator_app.train import run
from soak.__main__ import differences
from support.app_fixtures import configured, keras_warns

pytestmark = [pytest.mark.long, keras_warns]


@pytest.fixture(scope="module")
def finished(digits_dataset, tmp_path_factory) -> Path:
    model_dir = tmp_path_factory.mktemp("soak") / "run"
    config = configured(digits_dataset, train_steps=2, steps_per_eval=1, trainer="tf_distribute")
    run(digits_dataset, config, str(model_dir), f"{model_dir}/export", report=lambda line: None)
    return model_dir


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
