"""Which checkpoint and which export is meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from estimator_app.model_dir.exports import KINDS, folder, new_number, prune_exports
from estimator_app.saved_model.find import find_checkpoint, find_export


@pytest.fixture
def model_dir(tmp_path) -> str:
    """Checkpoints of steps 0, 5 and 10."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("kernel", [2, 3])
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver()
        for step in (0, 5, 10):
            saver.save(session, f"{tmp_path}/model.ckpt", step)
    return str(tmp_path)


def test_a_checkpoint_is_found_by_step_by_path_or_as_the_last(model_dir):
    assert find_checkpoint(model_dir) == f"{model_dir}/model.ckpt-10"
    assert find_checkpoint(model_dir, step=0) == f"{model_dir}/model.ckpt-0"
    for ending in ("", ".index", ".meta", ".data-00000-of-00001"):
        path = f"{model_dir}/model.ckpt-5{ending}"
        assert find_checkpoint(model_dir, path=path) == f"{model_dir}/model.ckpt-5"


def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(model_dir, tmp_path):
    with pytest.raises(ValueError, match="holds no checkpoint of step 7; it has 0, 5, 10"):
        find_checkpoint(model_dir, step=7)
    with pytest.raises(ValueError, match="checkpoint 'elsewhere' does not exist"):
        find_checkpoint(model_dir, path="elsewhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no checkpoint yet; train first"):
        find_checkpoint(f"{model_dir}/empty")


def test_a_checkpoint_of_another_network_is_told_apart(model_dir, tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("kernel", [2, 4])
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, f"{tmp_path}/other/model.ckpt")
    with pytest.raises(
        ValueError, match=r"another network or has other classes than .* it has kernel with shape \[2, 4\]"
    ):
        find_checkpoint(model_dir, path=f"{tmp_path}/other/model.ckpt")


def test_the_newest_complete_export_is_taken(tmp_path):
    for name in ("999", "1763596800", "temp-1763596999"):
        (tmp_path / "export" / name).mkdir(parents=True)
        (tmp_path / "export" / name / "saved_model.pb").touch()
    (tmp_path / "export" / "1763599999").mkdir()
    newest = f"{tmp_path}/export/1763596800"
    for path in (f"{tmp_path}/export", f"{tmp_path}/export/", str(tmp_path), newest):
        assert find_export(path) == newest
    assert find_export(f"{tmp_path}/export/999") == f"{tmp_path}/export/999"


def test_of_exports_within_one_second_the_last_is_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1763596800.5)
    for kind in (*KINDS, *KINDS, "best"):
        parent = folder(str(tmp_path), kind)
        path = Path(parent) / str(new_number(parent))
        path.mkdir(parents=True)
        (path / "saved_model.pb").touch()
        assert find_export(str(tmp_path)) == str(path)


def test_the_best_export_counts_as_well_until_there_is_a_later_one(tmp_path):
    for name in ("best/5", "best/7"):
        (tmp_path / "export" / name).mkdir(parents=True)
        (tmp_path / "export" / name / "saved_model.pb").touch()
    places = (str(tmp_path), f"{tmp_path}/export")
    best = f"{tmp_path}/export/best/7"
    assert {find_export(path) for path in (*places, f"{tmp_path}/export/best")} == {best}
    for number, newest in ((6, best), (8, f"{tmp_path}/export/8")):
        (tmp_path / "export" / str(number)).mkdir()
        (tmp_path / "export" / str(number) / "saved_model.pb").touch()
        assert {find_export(path) for path in places} == {newest}
    assert find_export(f"{tmp_path}/export/best") == best


def test_the_exports_of_a_run_that_made_them_elsewhere_are_found_by_its_model_dir(tmp_path):
    elsewhere, model_dir = tmp_path / "elsewhere", str(tmp_path / "model")
    (tmp_path / "model").mkdir()
    for kind, name in (("last", "8"), ("best", "best/7")):
        (elsewhere / name).mkdir(parents=True)
        (elsewhere / name / "saved_model.pb").touch()
        prune_exports(model_dir, kind, step=1, parent=str(elsewhere), num=1, export=(elsewhere / name).as_posix)
    assert find_export(model_dir) == f"{elsewhere}/8"
    (elsewhere / "8" / "saved_model.pb").unlink()
    assert find_export(model_dir) == f"{elsewhere}/best/7"


def test_where_there_is_no_export_it_says_what_is_there_instead(tmp_path):
    with pytest.raises(ValueError, match="nowhere' does not exist; give a SavedModel"):
        find_export(f"{tmp_path}/nowhere")
    with pytest.raises(ValueError, match="holds no SavedModel; create one with: jpeg2tpu export"):
        find_export(str(tmp_path))
    (tmp_path / "config.json").touch()
    with pytest.raises(ValueError, match=f"a run without an export; export it with: .* --model_dir={tmp_path}"):
        find_export(str(tmp_path))
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "manifest.json").touch()
    with pytest.raises(ValueError, match="holds no SavedModel but a dataset"):
        find_export(f"{tmp_path}/shards")
