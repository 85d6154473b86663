"""folds: each record is predicted once, by a model that has not seen it, whatever interrupts the command."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from beam_pipelines.__main__ import main as beam_pipelines
from estimator_app.model_dir.run_files import read_config
from estimator_app.predict_dataset import predict_folds
from estimator_app.saved_model.classifier import load_classifier
from estimator_app.trainers.checks import read_dataset
from estimator_app.trainers.interruption import Stopped
from support import small_network
from support.app_commands import refused, run
from support.app_fixtures import OPTIONS, keras_warns, records_of
from tpu_input import read_manifest
from tpu_input.dataset_format.manifest import Manifest

pytestmark = keras_warns
FOLDS = ("fold1", "fold2", "fold3")
SHORT: dict[str, Any] = {name: value for name, value in OPTIONS.items() if name != "split"}
SHORT |= {"train_steps": 4, "eval": "none", "trainer": "tf_distribute", "network": small_network.NAME}


@pytest.fixture(scope="module")
def folds(digits_dataset, tmp_path_factory) -> Manifest:
    """The digits in three folds; not to be changed."""
    path = tmp_path_factory.mktemp("folds") / "folds"
    assert beam_pipelines(["split", digits_dataset.path, "--folds=3", f"--output={path}", "--shard_size=100KB"]) == 0
    return read_manifest(path)


@pytest.fixture(scope="module")
def predicted(folds, tmp_path_factory) -> Path:
    """The folder of an uninterrupted command: models/, predictions.parquet; not to be changed."""
    path = tmp_path_factory.mktemp("predicted")
    predict_folds(folds, f"{path}/predictions.parquet", f"{path}/models", **SHORT)
    return path


def test_folds_have_equal_shares_of_all_records(folds, digits_dataset):
    assert tuple(folds.splits) == FOLDS
    keys = [record.key for fold in FOLDS for record in records_of(folds, fold)]
    expected = [record.key for split in digits_dataset.splits for record in records_of(digits_dataset, split)]
    assert sorted(keys) == sorted(expected)
    third = len(keys) / 3
    assert all(abs(folds.split(fold).num_examples - third) < 4 * (third * 2 / 3) ** 0.5 for fold in FOLDS)


def test_a_held_out_split_is_not_in_training_and_the_statistics_are_those_of_the_rest(folds):
    held_out = folds.held_out("fold2")
    assert set(held_out.splits) == {"train", "fold2"}
    assert held_out.split("fold2") == folds.split("fold2")
    train, records = held_out.split("train"), records_of(held_out, "train")
    expected = [record for fold in ("fold1", "fold3") for record in records_of(folds, fold)]
    assert [record.key for record in records] == [record.key for record in expected]
    images = [np.asarray(Image.open(io.BytesIO(record.encoded)).convert("RGB")) for record in records]
    pixels = np.concatenate(images).reshape(-1, 3)
    np.testing.assert_allclose(train.channel_mean, pixels.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(train.channel_std, pixels.std(axis=0), atol=0.01)
    assert train.class_counts == tuple(np.bincount([record.label for record in records]))
    assert train.height == train.width == (32, 32.0, 32)


def test_each_record_is_predicted_once_by_the_model_that_has_not_seen_it(predicted, folds):
    table = pq.read_table(predicted / "predictions.parquet")
    records = {fold: records_of(folds, fold) for fold in FOLDS}
    assert table["key"].to_pylist() == [record.key for fold in FOLDS for record in records[fold]]
    assert table["label"].to_pylist() == [record.label for fold in FOLDS for record in records[fold]]
    start = 0
    for fold in FOLDS:
        config = read_config(f"{predicted}/models/{fold}")
        assert (config.hold_out, config.split) == (fold, fold)
        assert config.train_examples == sum(len(records[other]) for other in FOLDS if other != fold)
        assert read_dataset(config).split("train").shards == folds.held_out(fold).split("train").shards
        model = load_classifier(f"{predicted}/models/{fold}")
        expected = np.array(model([record.encoded for record in records[fold]]))
        rows = np.stack(table["probabilities"][start : start + len(expected)].to_numpy())
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        start += len(expected)


@pytest.mark.long
def test_a_command_that_is_stopped_goes_on_and_gives_the_same_file(predicted, folds, tmp_path):
    lines, stop = list[str](), threading.Event()

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("fold2: training"):
            stop.set()

    shutil.copytree(predicted / "models" / "fold1", tmp_path / "models" / "fold1")
    places = (folds, f"{tmp_path}/predictions.parquet", f"{tmp_path}/models")
    with pytest.raises(Stopped):
        predict_folds(*places, report=report, stop=stop, **SHORT)
    assert sorted(os.listdir(tmp_path / "models")) == ["fold1", "fold1.parquet", "fold2"]
    for _ in range(2):
        lines.clear()
        predict_folds(*places, report=lines.append, **SHORT)
    assert [line.partition(" is done")[0] for line in lines if "nothing" in line] == [
        f"{fold}: nothing to train: step 4" for fold in FOLDS
    ]
    assert not [line for line in lines if "predicted" in line]
    table, expected = (pq.read_table(folder / "predictions.parquet") for folder in (tmp_path, predicted))
    assert table.drop_columns(["probability", "probabilities"]) == expected.drop_columns(
        ["probability", "probabilities"]
    )
    np.testing.assert_allclose(
        np.stack(table["probabilities"].to_numpy()), np.stack(expected["probabilities"].to_numpy()), atol=1e-6
    )
    assert sorted(os.listdir(tmp_path)) == ["models", "predictions.parquet"]


def test_a_run_keeps_what_it_holds_out(predicted, folds, capsys):
    run_flags = f"--model_dir={predicted}/models/fold1", f"--network={small_network.NAME}"
    code, out, err = run(capsys, "evaluate", *run_flags)
    assert (code, err) == (0, "")
    assert f"on {folds.split('fold1').num_examples} fold1 images" in out
    message = refused(
        capsys,
        "train",
        f"--dataset={folds.path}",
        *run_flags,
        "--hold_out=fold2",
        "--train_steps=4",
        "--trainer=tf_distribute",
    )
    assert "its --hold_out is 'fold1', not 'fold2'" in message


@pytest.mark.parametrize(("flag", "is_quiet"), [("--json", False), ("--quiet", True)])
def test_the_command_prints_as_the_others_do(predicted, folds, tmp_path, capsys, flag, is_quiet):
    shutil.copytree(predicted, tmp_path / "copy")
    output = tmp_path / "copy/predictions.parquet"
    recipe = json.loads((predicted / "models/fold1/config.json").read_text())
    (tmp_path / "recipe.json").write_text(json.dumps(recipe | {"hold_out": None, "split": None}))
    flags = [f"--config={tmp_path}/recipe.json", f"--network={small_network.NAME}"]
    places = [f"--dataset={folds.path}", f"--model_dir={tmp_path}/copy/models", f"--output={output}"]
    code, out, err = run(capsys, "folds", *places, *flags, flag)
    assert code == 0, err
    assert out == (f"predictions: {output}\n" if is_quiet else f'{{"predictions": "{output}"}}\n')
    assert not (is_quiet and err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("folds", "--dataset=DIGITS"),
            "are not folds; make some with: jpeg2tpu split DIGITS --folds=5",
        ),
        (("folds", "--dataset=FOLDS", "--eval=watch"), "eval='watch' cannot be used with folds"),
        (("folds", "--dataset=FOLDS", "--split=fold1"), "split cannot be used with folds"),
        (("train", "--dataset=FOLDS", "--hold_out=fold9"), "has no split 'fold9'; it has 'fold1', 'fold2', 'fold3'"),
        (("train", "--dataset=DIGITS", "--hold_out=train"), "cannot be held out: nothing would be left to train on"),
    ],
)
def test_mistakes_are_answered_in_a_line(folds, digits_dataset, tmp_path, capsys, words, message):
    def insert_paths(text: str) -> str:
        return text.replace("DIGITS", digits_dataset.path).replace("FOLDS", folds.path)

    output = ["--output=p"] if words[0] == "folds" else []
    assert insert_paths(message) in refused(capsys, *map(insert_paths, words), f"--model_dir={tmp_path}/m", *output)
    assert not list(tmp_path.iterdir())


def test_split_takes_shares_or_a_number_of_folds(digits_dataset, tmp_path, capsys):
    for flags in ([], ["--folds=2", "--splits=a=50%,b=50%"]):
        assert beam_pipelines(["split", digits_dataset.path, f"--output={tmp_path}/o", *flags]) == 2
        assert "split needs either --splits" in capsys.readouterr().err
