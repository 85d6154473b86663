"""train --record: TFRecords of other programs, such as tensorflow/tpu and TensorFlow Datasets, without a conversion."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.__main__ import main
from estimator_app.evaluate import evaluate
from estimator_app.train import train
from support.app_fixtures import keras_warns, records_of
from tpu_input.command_line.paths import absolute_patterns
from tpu_input.storage.foreign_shards import shard_patterns

pytestmark = keras_warns
OPTIONS: dict[str, Any] = {"image_size": 16, "train_batch_size": 16, "train_steps": 2, "trainer": "tf_distribute"}


def write(folder, manifest, image: str, label: str, first_label: int, name: str) -> dict[str, np.ndarray]:
    """Writes a dataset's images with these features, by TensorFlow's own writer; returns the labels of each split."""
    labels = {}
    for split in ("train", "validation"):
        records = records_of(manifest, split)
        for shard in range(2):
            with tf.io.TFRecordWriter(f"{folder}/{name.format(split=split, shard=shard)}") as writer:
                for record in records[shard::2]:
                    features = {
                        image: tf.train.Feature(bytes_list=tf.train.BytesList(value=[record.encoded])),
                        label: tf.train.Feature(int64_list=tf.train.Int64List(value=[record.label + first_label])),
                    }
                    example = tf.train.Example(features=tf.train.Features(feature=features))
                    writer.write(example.SerializeToString())
        labels[split] = np.bincount([record.label for record in records], minlength=10)
    return labels


@pytest.mark.parametrize(
    ("record", "image", "label", "first_label", "name"),
    [
        ("imagenet", "image/encoded", "image/class/label", 1, "{split}-{shard:05d}-of-00002"),
        pytest.param(
            "image=pixels,label=number,first_label=3", "pixels", "number", 3, "{split}{shard}", marks=pytest.mark.long
        ),
    ],
)
def test_a_run_reads_them_and_counts_every_example_of_each_class(
    digits_dataset, tmp_path, record, image, label, first_label, name
):
    counts = write(tmp_path, digits_dataset, image, label, first_label, name)
    pattern = f"{tmp_path}/{name.format(split='train', shard=0).replace('00000', '*').replace('train0', 'train*')}"
    finished = train(pattern, str(tmp_path / "model"), report=lambda line: None, classes=10, record=record, **OPTIONS)
    assert finished
    assert finished.metrics.num_examples == counts["validation"].sum()
    np.testing.assert_array_equal(np.sum(finished.metrics.confusion, axis=1), counts["validation"])
    metrics = evaluate(str(tmp_path / "model"), split="train").metrics  # config.json has all that it needs
    np.testing.assert_array_equal(np.sum(metrics.confusion, axis=1), counts["train"])
    other = evaluate(str(tmp_path / "model"), dataset=f"validation={pattern.replace('train', 'validation')}").metrics
    assert other == finished.metrics
    assert evaluate(export_dir=finished.export).metrics.num_examples == counts["validation"].sum()


@pytest.mark.long
def test_the_commands_take_them(digits_dataset, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, digits_dataset, "image/encoded", "image/class/label", 1, "{split}-{shard:05d}-of-00002")
    (tmp_path / "names.txt").write_text("".join(f"digit {number}\n" for number in range(10)))
    flags = [
        "--dataset=train-*",
        "--record=imagenet",
        "--classes=names.txt",
        "--image_size=16",
        "--train_batch_size=16",
    ]
    assert main(["train", "--model_dir=model", "--train_steps=1", *flags]) == 0
    out = capsys.readouterr().out
    assert "1464 images of 10 classes" in out
    fields = json.loads((tmp_path / "model/config.json").read_text())
    assert (fields["dataset"], fields["record"], fields["classes"][3]) == (f"{tmp_path}/train-*", "imagenet", "digit 3")
    assert main(["train", "--model_dir=model", "--train_steps=2", "--decay_steps=1", *flags]) == 0
    assert "resuming cnn at step 1/2" in capsys.readouterr().out
    assert main(["evaluate", "--model_dir=model"]) == 0


def test_what_is_no_glob_or_no_format_is_told_in_a_line(digits_dataset, tmp_path, capsys):
    flags = [f"--model_dir={tmp_path}/model", "--train_steps=1"]
    for more, message in (
        ([f"--dataset={digits_dataset.path}", "--record=imagenet"], "with --record, the dataset is a glob of shards"),
        (["--dataset=/nowhere/train-*", "--record=imagenet"], "no file matches '/nowhere/train-*'"),
        (["--dataset=/nowhere/train-*", "--record=imagnet"], "record must be imagenet, tfds, flowers, mnist, or pairs"),
        (
            ["--dataset=/nowhere/train-*", "--record=label=a,first_label=one"],
            "first_label of a record must be a number",
        ),
        ([f"--dataset={digits_dataset.path}", "--classes=10"], "--classes is for --record"),
        (["--dataset=/nowhere/*", "--record=tfds", "--classes=gone.txt"], "is neither a number nor a file of names"),
    ):
        assert main(["train", *flags, *more]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_the_validation_split_is_found_beside_the_training_split(tmp_path):
    for name in ("train-0-of-1", "validation-0-of-1", "training.txt"):
        (tmp_path / name).touch()
    assert shard_patterns(f"{tmp_path}/train-*") == {
        "train": f"{tmp_path}/train-*",
        "validation": f"{tmp_path}/validation-*",
    }
    assert shard_patterns(f"{tmp_path}/training*") == {"train": f"{tmp_path}/training*"}
    assert shard_patterns("/nowhere/date=2026/train-*") == {"train": "/nowhere/date=2026/train-*"}
    assert absolute_patterns("/a/date=2026/dataset") == "/a/date=2026/dataset"
    assert absolute_patterns("gs://b/date=2026/train-*") == "gs://b/date=2026/train-*"
    assert absolute_patterns("train=/a/t*,test=/b/../c/x*") == "train=/a/t*,test=/c/x*"
    assert shard_patterns("train=/a/t*,test=/b/x*") == {"train": "/a/t*", "test": "/b/x*"}


@pytest.mark.long
def test_the_command_of_the_guide_runs_as_it_stands_and_preflight_takes_its_flags(
    digits_dataset, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet").mkdir()
    write(
        tmp_path / "imagenet", digits_dataset, "image/encoded", "image/class/label", 1, "{split}-{shard:05d}-of-00002"
    )
    text = (Path(__file__).parents[2] / "docs" / "train.md").read_text().replace("\\\n", "")
    section = text.partition("\n## TFRecords of other programs\n")[2]
    (command,) = re.findall(r"^    jpeg2tpu (.*)", section.partition("\n## ")[0], re.MULTILINE)
    small = ["--image_size=16", "--train_batch_size=8"]
    argv = [word for word in shlex.split(command) if not word.startswith(("--image_size", "--epochs"))]
    assert main([*argv, *small, "--train_steps=1"]) == 0
    out = capsys.readouterr().out
    assert "1464 images of 1000 classes" in out
    flags = [word for word in argv[1:] if not word.startswith("--model_dir")]
    assert main(["preflight", "--topology=v5e:1x1", *flags, *small]) == 0
    assert "cnn by" in capsys.readouterr().out
