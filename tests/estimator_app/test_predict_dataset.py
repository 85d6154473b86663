"""predict --dataset: every record once and in order, whatever interrupts it; what is wrong is named."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from beam_pipelines.__main__ import main as convert
from estimator_app.predict_dataset import predict_dataset
from estimator_app.saved_model.classifier import load_classifier
from estimator_app.saved_model.find import find_checkpoint
from estimator_app.trainers.checks import make_weighted_model
from estimator_app.trainers.starting_weights import weights_of_run
from support.app_commands import refused, run
from support.app_fixtures import configured, keras_warns
from tpu_input import read_manifest
from tpu_input.dataset_format import records as record_format

pytestmark = keras_warns
ROOT = Path(__file__).parents[2]


def records_of(manifest, split="validation") -> list[tuple[str, int, record_format.Record]]:
    """Returns (shard, number, record), read without tpu_input's pipeline."""
    records = []
    for shard in manifest.split(split).shards:
        with open(f"{manifest.path}/{shard.name}", "rb") as file:
            payloads = [payload for _, payload in record_format.read_frames(file)]
        records += [(shard.name, number, record_format.decode(payload)) for number, payload in enumerate(payloads)]
    return records


def matrix(table, name: str) -> np.ndarray:
    return np.stack(table[name].to_numpy())


@pytest.fixture(scope="module")
def model_dir(finished) -> str:
    return str(Path(finished.export).parent.parent)


@pytest.fixture(scope="module")
def predictions(finished, digits_dataset, tmp_path_factory) -> Path:
    """The predictions of the validation split, in parts of 96 records; not to be changed."""
    path = tmp_path_factory.mktemp("whole") / "predictions.parquet"
    predict_dataset(digits_dataset, str(path), export_dir=finished.export, part_records=100)
    return path


def test_every_record_has_one_row_in_the_order_of_the_split(predictions, finished, digits_dataset):
    table, expected = pq.read_table(predictions), records_of(digits_dataset)
    rows = [(row["shard"], row["record"], row["key"], row["label"]) for row in table.to_pylist()]
    assert rows == [(shard, number, record.key, record.label) for shard, number, record in expected]
    probabilities = np.array(load_classifier(finished.export)([record.encoded for *_, record in expected]))
    np.testing.assert_allclose(matrix(table, "probabilities"), probabilities, atol=1e-5)
    best = matrix(table, "probabilities").argmax(axis=1)
    assert table["class"].to_pylist() == [digits_dataset.classes[label] for label in best]
    np.testing.assert_array_equal(table["probability"], matrix(table, "probabilities").max(axis=1))
    accuracy = np.mean(best == np.array([record.label for *_, record in expected]))
    assert accuracy == pytest.approx(finished.metrics.accuracy, abs=1e-6)
    assert [entry.name for entry in predictions.parent.iterdir()] == [predictions.name]


class Stop(Exception):
    """What ends a prediction after some parts."""


def stop_after(count: int):
    def report(line: str) -> None:
        nonlocal count
        count -= 1
        if not count:
            raise Stop

    return report


def test_a_prediction_that_was_interrupted_goes_on_and_gives_the_same_bytes(
    predictions, finished, digits_dataset, tmp_path
):
    output = str(tmp_path / "predictions.parquet")

    def predict(**options):
        predict_dataset(digits_dataset, output, export_dir=finished.export, part_records=100, **options)

    with pytest.raises(Stop):
        predict(report=stop_after(2))
    folder = tmp_path / "predictions.parquet.parts"
    assert sorted(entry.name for entry in folder.iterdir()) == ["part-00000.parquet", "part-00001.parquet"]
    (folder / "part-00000.parquet").write_bytes(b"")  # as a power failure leaves it
    (folder / f".part-00002.parquet.{'0' * 32}.tmp").write_bytes(b"PAR1")  # as a kill leaves it
    lines: list[str] = []
    predict(report=lines.append)
    total = len(records_of(digits_dataset))
    assert lines == [
        f"resuming: 96 of {total} records are predicted",
        *(f"{count} of {total} records predicted" for count in (96, 288, total)),
    ]
    assert (tmp_path / "predictions.parquet").read_bytes() == predictions.read_bytes()
    assert os.listdir(tmp_path) == ["predictions.parquet"]


def test_a_prediction_that_is_complete_is_left_as_it_is(predictions, finished, digits_dataset, tmp_path):
    output = tmp_path / "predictions.parquet"
    shutil.copy(predictions, output)
    before = output.stat().st_mtime_ns
    (tmp_path / "predictions.parquet.parts").mkdir()  # a kill after the file stood
    lines: list[str] = []
    predict_dataset(digits_dataset, str(output), export_dir=finished.export, part_records=100, report=lines.append)
    assert lines == []
    assert output.stat().st_mtime_ns == before
    assert os.listdir(tmp_path) == ["predictions.parquet"]


def test_predictions_of_another_origin_are_neither_joined_nor_replaced(predictions, finished, digits_dataset, tmp_path):
    output = tmp_path / "predictions.parquet"

    def predict(manifest=digits_dataset, **options):
        predict_dataset(manifest, str(output), **{"export_dir": finished.export, "part_records": 100} | options)

    shutil.copy(predictions, output)
    for options, difference in (({"split": "train"}, "split"), ({"batch_size": 50}, "batch_size and part_records")):
        with pytest.raises(
            ValueError, match=rf"has other predictions \(of another {difference}\); choose another --output"
        ):
            predict(**options)
    with pytest.raises(ValueError, match="of another dataset"):
        predict(dataclasses.replace(digits_dataset, first_label=1))
    other = shutil.copytree(finished.export, tmp_path / "1")
    (other / "assets" / "classes.txt").write_text("".join(f"d{label}\n" for label in range(10)))
    with pytest.raises(ValueError, match="of another model and classes"):
        predict(export_dir=str(other))
    assert output.read_bytes() == predictions.read_bytes()
    output.write_bytes(b"important")
    with pytest.raises(ValueError, match="exists already and is not a file of predictions; choose another --output"):
        predict()
    assert output.read_bytes() == b"important"
    output.unlink()
    with pytest.raises(Stop):
        predict(report=stop_after(1))
    with pytest.raises(ValueError, match=r"part-00000.parquet' has other predictions \(of another split\); remove"):
        predict(split="train")
    (tmp_path / "predictions.parquet.parts" / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"holds 'notes.txt', which is not a part of predictions"):
        predict()


def test_a_damaged_record_is_named_and_nothing_is_left_out(finished, dataset_copy, tmp_path, capsys):
    manifest = read_manifest(dataset_copy)
    shard = dataset_copy / manifest.split("validation").shards[1].name
    with open(shard, "rb") as file:
        payloads = [payload for _, payload in record_format.read_frames(file)]
    good = payloads[3]
    image = record_format.decode(good).encoded
    broken = {
        "cannot be decoded: the JPEG file is damaged": good.replace(image, b"\xff\xd8" + bytes(len(image) - 2)),
        "has label 10, which is out of range": record_format.encode(record_format.decode(good)._replace(label=10)),
        "has an image or a label that cannot be decoded": b"no Example",
    }
    command = ("predict", f"--export_dir={finished.export}", f"--dataset={dataset_copy}", "--split=validation")
    for message, payload in broken.items():
        shard.write_bytes(b"".join(map(record_format.frame, [*payloads[:3], payload, *payloads[4:]])))
        assert f"record 3 of '{shard}' {message}" in refused(capsys, *command, f"--output={tmp_path}/p.parquet")
        assert not (tmp_path / "p.parquet").exists()
    shard.write_bytes(shard.read_bytes()[:-10])
    assert "record 3 of" in refused(capsys, *command, f"--output={tmp_path}/p.parquet")


def test_the_dataset_may_have_other_classes_which_a_line_says(finished, digits, tmp_path, capsys):
    for label, name in (("3", "3"), ("4", "four")):
        (tmp_path / "in" / name).mkdir(parents=True)
        for path in sorted((digits / label).iterdir())[:8]:
            shutil.copy(path, tmp_path / "in" / name)
    assert convert(["convert", f"--input={tmp_path}/in", f"--output={tmp_path}/d", "--splits=all=100%"]) == 0
    capsys.readouterr()
    command = ("predict", f"--export_dir={finished.export}", f"--dataset={tmp_path}/d", "--split=all")
    code, out, err = run(capsys, *command, f"--output={tmp_path}/p.parquet")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "the dataset has other classes than the model: only the dataset has 'four'; only the model has '0', '1', '2' "
        "and 6 more",
        "16 of 16 records predicted",
        f"predictions: {tmp_path}/p.parquet",
    ]
    table = pq.read_table(tmp_path / "p.parquet")
    assert set(table["label"].to_pylist()) == {0, 1}  # in the dataset's own order
    names = {"3": "3", "f": "4"}
    expected = [names[record.key[0]] for *_, record in records_of(read_manifest(tmp_path / "d"), "all")]
    assert np.mean(np.array(table["class"].to_pylist()) == np.array(expected)) > 0.7


@pytest.mark.parametrize("kind", ["classes", "none"])
def test_labels_are_written_as_the_dataset_has_them(finished, digits, tmp_path, kind):
    paths = [path for label in "0123" for path in sorted((digits / label).iterdir())[:5]]
    if kind == "classes":
        names = {"0": "", "1": "odd", "2": "large", "3": "large;odd"}
        with (tmp_path / "list.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("image", "label"), *((path, names[path.parent.name]) for path in paths)])
        flags = [f"--input={tmp_path}/list.csv", "--label_type=classes"]
    else:
        (tmp_path / "in").mkdir()
        for number, path in enumerate(paths):
            shutil.copy(path, tmp_path / "in" / f"{number}.jpg")
        flags = [f"--input=all={tmp_path}/in", "--unlabelled"]
    splits = ["--splits=all=100%"] * (kind == "classes")
    assert convert(["convert", f"--output={tmp_path}/d", *flags, *splits]) == 0
    manifest = read_manifest(tmp_path / "d")
    predict_dataset(manifest, f"{tmp_path}/p.parquet", export_dir=finished.export, split="all")
    table = pq.read_table(tmp_path / "p.parquet")
    expected = records_of(manifest, "all")
    assert table["key"].to_pylist() == [record.key for *_, record in expected]
    assert len(table) == 20
    if kind == "none":
        assert table["label"].null_count == 20
    else:
        assert table["label"].to_pylist() == [list(record.label) for *_, record in expected]
        assert [] in table["label"].to_pylist()


def test_features_are_the_output_of_the_layer(predictions, model_dir, digits_dataset, tmp_path):
    for layer in ("global_average_pooling2d", "head"):
        output = f"{tmp_path}/{layer}.parquet"
        predict_dataset(digits_dataset, output, model_dir=model_dir, features=layer)
    pooled, head = (matrix(pq.read_table(path), "features") for path in sorted(tmp_path.iterdir()))
    config = configured(digits_dataset, layout="HWCN")
    weights = weights_of_run(config, find_checkpoint(model_dir), "the run")
    np.testing.assert_allclose(pooled @ weights["head/kernel"] + weights["head/bias"], head, atol=1e-3)
    exponents = np.exp(head - head.max(axis=1, keepdims=True))
    expected = matrix(pq.read_table(predictions), "probabilities")
    np.testing.assert_allclose(exponents / exponents.sum(axis=1, keepdims=True), expected, atol=1e-4)
    assert pooled.shape == (len(expected), make_weighted_model(config).get_layer("head").input.shape[-1])


# A processor divided into two stands in for a TPU's cores; TensorFlow divides it only before its first use.
ON_TPU = """
import sys
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.tpu.experimental.initialize_tpu_system = lambda cluster: None
tf.distribute.TPUStrategy = lambda cluster: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
from estimator_app.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_a_tpu_s_cores_share_the_batches(predictions, model_dir, digits_dataset, tmp_path):
    output = tmp_path / "predictions.parquet"
    flags = [f"--model_dir={model_dir}", f"--dataset={digits_dataset.path}", "--use_tpu", "--tpu=local"]

    def process(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "ignore", "-c", ON_TPU, "predict", *flags, f"--output={output}", *more]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    assert "--batch_size must be a multiple of the TPU's 2 cores, got 31" in process("--batch_size=31").stderr
    result = process()
    assert result.returncode == 0, result.stderr
    table, expected = pq.read_table(output), pq.read_table(predictions)
    columns = ["key", "shard", "record", "label"]
    assert table.select(columns) == expected.select(columns)
    np.testing.assert_allclose(matrix(table, "probabilities"), matrix(expected, "probabilities"), atol=1e-5)
    assert process().stdout == f"predictions: {output}\n"  # there is nothing left to do
    # What a TPU has computed is not mixed with what a processor has.
    with pytest.raises(ValueError, match=r"of another .*device"):
        predict_dataset(digits_dataset, str(output), model_dir=model_dir)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dataset=DATA", "--output=p", "--export_dir=MODEL", "--use_tpu"), "--use_tpu needs --model_dir"),
        (("--export_dir=MODEL", "--model_dir=MODEL", "x.jpg"), "predict takes --export_dir or --model_dir, got both"),
        (("x.jpg",), "the following arguments are required: --export_dir or --model_dir"),
        (("--export_dir=MODEL", "x.jpg", "--use_tpu"), "--use_tpu can be used only with --dataset"),
        (("--dataset=DATA", "--export_dir=MODEL"), "the following arguments are required: --output"),
        (("--dataset=DATA", "--output=p"), "the following arguments are required: --export_dir or --model_dir"),
        (("--dataset=DATA", "--output=p", "--export_dir=MODEL", "x.jpg"), "FILE cannot be used with --dataset"),
        (("--dataset=DATA", "--output=p", "--export_dir=MODEL", "--top=3"), "--top cannot be used with --dataset"),
        (("--dataset=DATA", "--output=p", "--export_dir=MODEL", "--model_dir=MODEL"), "got both"),
        (("--dataset=DATA", "--output=p", "--export_dir=MODEL", "--features=head"), "--features needs --model_dir"),
        (("--output=p", "--export_dir=MODEL", "x.jpg"), "--output can be used only with --dataset"),
        (("--dataset=DATA", "--output=p", "--export_dir=MODEL", "--split=nope"), "has no split 'nope'"),
        (("--dataset=DATA", "--output=p", "--export_dir=MODEL", "--batch_size=0"), "must be at least 1, got 0"),
        (("--dataset=DATA", "--output=/proc/x/p", "--export_dir=MODEL"), "/proc/x"),
        (("--dataset=DATA", "--output=DATA", "--export_dir=MODEL"), "is a folder; choose another --output"),
        (
            ("--dataset=DATA", "--output=p", "--model_dir=MODEL", "--features=x"),
            "is not a layer of the network; it has stage1",
        ),
    ],
)
def test_mistakes_are_answered_in_a_line(capsys, model_dir, digits_dataset, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    paths = {"MODEL": model_dir, "DATA": digits_dataset.path}
    words = [re.sub("MODEL|DATA", lambda match: paths[match[0]], word) for word in arguments]
    assert message in refused(capsys, "predict", *words)
    assert list(tmp_path.iterdir()) == []


def test_the_commands_of_the_guide_run_as_they_stand(capsys, model_dir, digits_dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model_dir)
    (tmp_path / "dataset").symlink_to(digits_dataset.path)
    section = (ROOT / "docs" / "train.md").read_text().partition("### Predict a dataset\n")[2].partition("\n### ")[0]
    commands = re.findall(r"^    jpeg2tpu (.*)$", section, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        code, _, err = run(capsys, *command.split())
        assert (code, err) == (0, "")
    names: dict[str, object] = {}
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(block, names)
    assert capsys.readouterr().out.strip() == f"{len(records_of(digits_dataset))} rows"


# Kills the process before or after the N-th time that it renames or removes a file.
KILLED = """
import os, signal, sys
from estimator_app.runtime.tensorflow_startup import import_tensorflow
import_tensorflow(verbose=False)
from estimator_app.predict_dataset import predict_dataset
place, dataset, output, export = int(sys.argv[1]), *sys.argv[2:]
moments = 0
def counted(function):
    def call(*args, **options):
        global moments
        for after in (False, True):
            if moments == place:
                os.kill(os.getpid(), signal.SIGKILL)
            moments += 1
            if not after:
                result = function(*args, **options)
        return result
    return call
import tensorflow as tf
os.replace = counted(os.replace)
tf.io.gfile.remove = counted(tf.io.gfile.remove)
predict_dataset(dataset, output, export_dir=export, part_records=100)
"""


@pytest.mark.long
@pytest.mark.parametrize("place", [1, 5, 8, 11, 12])
def test_a_prediction_that_is_killed_anywhere_goes_on_to_the_same_bytes(
    predictions, finished, digits_dataset, tmp_path, place
):
    output = tmp_path / "predictions.parquet"
    arguments = [digits_dataset.path, str(output), finished.export]

    def process(moment: int) -> int:
        command = [sys.executable, "-W", "ignore", "-c", KILLED, str(moment), *arguments]
        return subprocess.run(command, capture_output=True, cwd=ROOT).returncode

    assert process(place) == -signal.SIGKILL
    assert process(-1) == 0
    assert hashlib.sha256(output.read_bytes()).hexdigest() == hashlib.sha256(predictions.read_bytes()).hexdigest()
    assert os.listdir(tmp_path) == ["predictions.parquet"]


@pytest.mark.cloud
def test_predictions_in_a_bucket_are_those_in_a_folder(gs_session, predictions, finished, digits_dataset):
    gs_session.take(digits_dataset.path)
    bucket = gs_session.cloud.make_bucket()
    gs_session.cloud.upload(finished.export, f"{bucket}/export/1")
    flags = (f"--export_dir={bucket}/export", f"--dataset={gs_session.dataset}", "--split=validation")
    for _ in range(2):
        output = gs_session.does("predict", *flags, f"--output={bucket}/predictions.parquet")
        assert output.splitlines()[-1] == f"predictions: {bucket}/predictions.parquet"
    assert not [name for name in gs_session.cloud.files(bucket) if ".parts" in name or name.endswith(".tmp")]
    (bucket_path := predictions.parent / "of_bucket.parquet").write_bytes(
        gs_session.cloud.get(f"{bucket}/predictions.parquet")
    )
    table, expected = pq.read_table(bucket_path), pq.read_table(predictions)
    bucket_path.unlink()
    assert table["key"].equals(expected["key"])
    np.testing.assert_allclose(matrix(table, "probabilities"), matrix(expected, "probabilities"), atol=1e-5)
