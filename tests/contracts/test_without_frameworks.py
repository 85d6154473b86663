"""What trainers share runs without TensorFlow, without Beam and without JAX: whoever trains with one needs no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from estimator_app.config import TrainConfig
from estimator_app.runtime import files
from support.pages import ROOT

# The modules that compute with TensorFlow: its trainers, SavedModels' exports, and what preflight lowers.
TENSORFLOW_MODULES = (
    "estimator_app.model.losses",
    "estimator_app.model.mixing",
    "estimator_app.model.optimizers",
    "estimator_app.model.tensorflow_metrics",
    "estimator_app.model.vit",  # its layers are made of the Keras that the process has chosen
    *(f"estimator_app.preflight.{name}" for name in ("graph", "specs", "step", "tensorflow_checks", "xla")),
    "estimator_app.runtime.tensorflow_files",
    "estimator_app.runtime.tensorflow_private",
    "estimator_app.trainers.jax",  # needs JAX
    "estimator_app.trainers.tf_distribute",
    "estimator_app.trainers.tpu_estimator",
)
_BLOCKED = "import sys\nfor name in ('tensorflow', 'keras', 'jax', 'apache_beam'): sys.modules[name] = None\n"


def run_blocked(program: str, *arguments: str, folder: Path = ROOT) -> str:
    """Returns what a program prints in a process that can import none of the frameworks."""
    command = [sys.executable, "-W", "ignore", "-c", _BLOCKED + program, *arguments]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_whatever_is_not_one_framework_s_is_imported_without_any():
    paths = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / "estimator_app").rglob("*.py"))
    modules = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    neutral = sorted(name for name in modules if not name.startswith(TENSORFLOW_MODULES))
    assert len(neutral) > 40
    run_blocked(f"import importlib\nfor name in {neutral}: importlib.import_module(name)")


_RUN = """
import json
import numpy as np
import tpu_input
from estimator_app.config import TrainConfig
from estimator_app.model.metrics import Metrics
from estimator_app.model_dir import checkpoints, history, lock, run_files
from estimator_app.model_dir.plots import draw_confusion, draw_curves
from estimator_app.runtime import files
from estimator_app.trainers.checks import check_evaluable, counted, read_dataset
from estimator_app.trainers.progress import Progress, TimeLeft

dataset, model_dir = sys.argv[1:]
manifest = tpu_input.read_manifest(dataset)
options = {"image_size": 8, "train_batch_size": 16, "train_steps": 4, "trainer": "tf_distribute"}
config = TrainConfig.of(manifest, options)
assert read_dataset(config).fingerprint == config.fingerprint
check_evaluable(manifest, config)
image = tpu_input.TrainSource(manifest, config.input, config.train_batch_size)[0]["image"]
progress = Progress.from_config(config, 0, 4, TimeLeft.from_config(config, 10))
for step in (1, 2):
    progress.add_step(step, 2.0 / step, 0.0, 0.0)
examples = manifest.split("validation").num_examples
confusion = np.diag([examples] + [0] * (len(config.classes) - 1))
found = {"global_step": 4, "num_examples": examples, "accuracy": 1.0, "cross_entropy": 0.5}
by_class = {"confusion_matrix": confusion, "recall": [1.0] + [np.nan] * (len(config.classes) - 1)}
metrics = counted(found | by_class, manifest, config)
with lock.locked(model_dir):
    files.write(f"{model_dir}/config.json", config.to_json({}))
    history.write_by_class(model_dir, metrics, config.classes)
    rows = history.with_row([], history.Row(4, "validation", {**metrics.scalars(), **progress.values()}))
    history.write_history(model_dir, rows)
    run_files.write_finished(model_dir, run_files.Finished(metrics, ""), config.classes)
    files.write(f"{model_dir}/curves.png", draw_curves(history.read_history(model_dir), "accuracy"))
    files.write(f"{model_dir}/confusion.png", draw_confusion(metrics, config.classes))
assert checkpoints.latest_step(model_dir) == 0
assert run_files.read_config(model_dir) == config
assert run_files.read_finished(model_dir).metrics == metrics
print(json.dumps([list(image.shape), history.read_history(model_dir)[0].values["train_loss"]]))
"""


def test_a_config_batches_and_the_files_of_a_run_need_no_framework(digits_dataset, tmp_path):
    shape, loss = json.loads(run_blocked(_RUN, digits_dataset.path, str(tmp_path)))
    assert shape == [8, 8, 3]
    assert loss == 1.5
    # What this process, which has TensorFlow, reads.
    config = TrainConfig.from_json(files.read_text(f"{tmp_path}/config.json"), "config.json")
    assert config == TrainConfig.of(
        digits_dataset, {"image_size": 8, "train_batch_size": 16, "train_steps": 4, "trainer": "tf_distribute"}
    )
    assert {"history.csv", "metrics.json", "curves.png", "by_class"} <= {*os.listdir(tmp_path)}


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.cloud)])
def place(request, tmp_path, monkeypatch) -> str:
    """A folder on this machine, and one in a bucket as a process without TensorFlow reaches it."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    if request.param == "folder":
        return str(tmp_path)
    return f"{request.getfixturevalue('cloud').make_bucket()}/run"


def test_files_are_the_same_wherever_they_are(place):
    assert files.names(place) == [] or "://" not in place
    files.make_folder(f"{place}/made")
    files.make_folder(f"{place}/made")
    assert files.is_folder(f"{place}/made")
    assert files.names(f"{place}/made") == []
    for text in ("first", "größer"):  # a file is replaced
        files.write(f"{place}/made/text", text)
    assert (files.read_text(f"{place}/made/text"), files.num_bytes(f"{place}/made/text")) == ("größer", 8)
    assert files.read_bytes(f"{place}/made/text", 1, 4) == "röß".encode()[:4]
    assert (files.exists(f"{place}/made/text"), files.is_folder(f"{place}/made/text")) == (True, False)
    files.write(f"{place}/made/inner/b.bin", b"b") if "://" in place else files.make_folder(f"{place}/made/inner")
    files.write(f"{place}/made/inner/b.bin", b"b")
    with files.writing(f"{place}/made/written", f"{place}/made") as file:
        file.write(b"in parts")
    assert files.names(f"{place}/made") == ["inner", "text", "written"]
    files.copy(f"{place}/made/text", f"{place}/copied")
    files.copy_folder(f"{place}/made", f"{place}/whole", last="text")
    assert files.names(f"{place}/whole") == ["inner", "text", "written"]
    assert files.read_bytes(f"{place}/whole/inner/b.bin") == b"b"
    assert files.matches(f"{place}/*/t?xt") == [f"{place}/made/text", f"{place}/whole/text"]
    files.remove(f"{place}/copied")
    files.remove_folder(f"{place}/whole")
    assert files.names(place) == ["made"]
    assert files.why_not_writable(f"{place}/later") == ""


def test_what_is_missing_is_a_file_not_found_wherever_it_is(place):
    for read in (files.read_text, files.read_bytes, files.num_bytes, files.remove):
        with pytest.raises(FileNotFoundError):
            read(f"{place}/nothing")
    assert not files.exists(f"{place}/nothing")
    assert not files.is_folder(f"{place}/nothing")
    assert files.names(f"{place}/nothing") == []


@pytest.mark.cloud
def test_a_file_is_copied_into_a_bucket_and_back(cloud, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    bucket = cloud.make_bucket()
    (tmp_path / "here").write_bytes(b"content")
    files.copy(f"{tmp_path}/here", f"{bucket}/there")
    files.copy(f"{bucket}/there", f"{tmp_path}/back")
    assert (tmp_path / "back").read_bytes() == b"content"
