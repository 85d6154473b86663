"""Commands of the guides on conversion, on buckets and on preflight, one after another, on a few digits."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from estimator_app.config import default_trainer
from support.pages import ROOT, commands, ours, run_ours
from tpu_input.command_line.jpeg2tpu import COMMANDS
from tpu_input.dataset_format.manifest import Manifest

SMALL = ["--image_size=16", "--train_batch_size=8", "--train_steps=2", "--steps_per_eval=2"]


def read(dataset: Path) -> Manifest:
    return Manifest.from_json((dataset / "manifest.json").read_text(), str(dataset))


def index(dataset: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted((dataset / "index").iterdir())])


@pytest.mark.long
def test_the_commands_of_the_conversion_guide(few_digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide_commands = [words for words in commands("docs/conversion.md") if "train.jsonl" not in " ".join(words)]
    simple, featured, labelled, report, likely = (
        [word.replace("INPUT", "few") for word in words] for words in guide_commands
    )
    keys = [path.relative_to(tmp_path) for path in sorted(few_digits.glob("*/*.jpg"))]
    assert run_ours(simple, {}) == 0
    assert run_ours(report, {}) == 0
    assert (tmp_path / "DATASET" / "report.html").exists()

    keys_and_labels = index(tmp_path / "DATASET").select(["key", "label"]).to_pydict()
    classes = list(read(tmp_path / "DATASET").classes)
    # A model that is sure of another class than that of the label, for every record.
    shares = np.eye(len(classes), dtype=np.float32)[[(label + 1) % len(classes) for label in keys_and_labels["label"]]]
    probabilities = pa.FixedSizeListArray.from_arrays(pa.array(shares.ravel()), len(classes))
    predicted = pa.table({"key": keys_and_labels["key"], "probabilities": probabilities})
    metadata = {"jpeg2tpu.predictions": json.dumps({"classes": classes})}
    pq.write_table(predicted.replace_schema_metadata(metadata), "predictions.parquet")
    assert run_ours(likely, {}) == 0
    assert len(Path("DATASET/likely_wrong_labels.csv").read_text().splitlines()) == 1 + len(keys)

    shutil.rmtree("DATASET")
    lines = ["image,label,age,box,caption", *(f'{key},{key.parts[1]},1.5,"0 0 1 1",a digit' for key in keys)]
    Path("photos.csv").write_text("\n".join(lines) + "\n")
    assert run_ours(featured, {}) == 0
    assert read(tmp_path / "DATASET").options["features"] == {"age": "float", "box": "float[4]", "caption": "string"}

    shutil.rmtree("DATASET")
    lines = ["image,label", *(f"{key},{key.parts[1]};even" for key in keys)]
    Path("photos.csv").write_text("\n".join(lines) + "\n")
    assert run_ours(labelled, {}) == 0
    assert read(tmp_path / "DATASET").label_type == "classes"
    train = read(tmp_path / "DATASET").split("train")
    assert sum(train.class_counts) == 2 * train.num_examples


@pytest.mark.long
@pytest.mark.skipif(default_trainer() != "tpu_estimator", reason="builds the graph of TPUEstimator")
def test_the_networks_of_the_preflight_guide(digits_dataset, tmp_path):
    bad, good, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "preflight.md").read_text(), re.DOTALL)
    words_of_bad, words_of_good, *_ = [
        words for words in commands("docs/preflight.md") if "--network=mynets:wide" in words
    ]
    (tmp_path / "photos_tfrecords").symlink_to(digits_dataset.path)
    small = ["--image_size=32", "--train_batch_size=64", "--eval_batch_size=8"]
    results = []
    for code, words in ((bad, words_of_bad), (good, words_of_good)):
        (tmp_path / "mynets.py").write_text(code)
        command = [sys.executable, "-W", "ignore", "-m", "jpeg2tpu", *words[1:], *small]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        results.append((result.returncode, result.stdout))
    (code_of_bad, out_of_bad), (code_of_good, out_of_good) = results
    assert code_of_bad == 1
    assert "✗ training: TPUs do not support ScalarSummary, created at mynets.py:6" in out_of_bad
    assert "has a data-dependent size" in out_of_bad
    assert "(mynets.py:11)" in out_of_bad
    assert code_of_good == 0, out_of_good
    assert "nothing found that would fail on a TPU" in out_of_good


@pytest.mark.cloud
def test_the_commands_of_the_guide_on_buckets(few_digits, cloud, gs, monkeypatch, capsys):
    bucket = cloud.make_bucket()
    cloud.upload(few_digits, f"{bucket}/photos")
    cloud.upload(few_digits / "0", f"{bucket}/new")
    for words in filter(ours, commands("docs/cloud.md")):
        words = [word.replace("gs://bucket", bucket) for word in words]
        if COMMANDS[words[1]].package == "beam_pipelines":
            assert run_ours(words, {}) == 0, (words, capsys.readouterr())
        else:
            out = gs.does(*words[1:], *(SMALL if words[1] == "train" else ()))
    assert out.count('"file"') == len(list((few_digits / "0").iterdir()))


@pytest.mark.cloud
def test_a_bucket_on_this_machine_is_reached_with_what_make_bucket_prints(digits_dataset, cloud_server):
    command = [sys.executable, "-W", "ignore", "-m", "support.bucket"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    convert = f"-m jpeg2tpu convert --input={digits_dataset.path} --output=gs://bucket/copy".split()
    read = "import tpu_input as t; print(next(t.as_numpy(t.load('gs://bucket/copy', batch_size=4)))[1].shape)"
    variables = dict[str, str]()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as bucket:
        assert bucket.stdout
        for line in bucket.stdout:
            if line.startswith("#"):  # all has been said
                break
            name, _, value = line.removeprefix("export ").rstrip().partition("=")
            variables[name] = value
        for program in (convert, ["-c", read]):
            arguments = [sys.executable, "-W", "ignore", *program]
            result = subprocess.run(arguments, cwd=ROOT, env=environment | variables, capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
        bucket.terminate()
    assert result.stdout == "(4,)\n"
    assert bucket.returncode == 0
