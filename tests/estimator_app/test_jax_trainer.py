"""Runs of the trainer on JAX: they resume exactly, on any number of devices, and need no TensorFlow."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import estimator_app
from estimator_app.trainers.interruption import Stopped
from support.app_commands import refused
from support.app_fixtures import OPTIONS, RECIPE, configured
from support.jax_runs import ROOT, command
from support.pages import trainer_table
from support.trainers import needs_jax

pytestmark = needs_jax
SMALL: dict[str, Any] = OPTIONS | {"image_size": 8, "train_batch_size": 8, "trainer": "jax", "save_seconds": 0}


def tiny(images: Any, num_classes: int, training: bool | None) -> Any:
    from keras import layers

    return layers.Dense(num_classes)(layers.Flatten()(images))


def quiet(line: str) -> None:
    pass


class Losses(estimator_app.Callback):
    def __init__(self) -> None:
        self.by_step: dict[int, float] = {}

    def on_step(self, step: int, loss: float) -> None:
        self.by_step[step] = loss


def train(dataset: Any, folder: Path, **options: Any) -> dict[int, float]:
    losses = Losses()
    estimator_app.train(dataset, str(folder), report=quiet, callbacks=[losses], **SMALL | options)
    return losses.by_step


def arrays(folder: Path, step: int) -> dict[str, np.ndarray]:
    with np.load(folder / f"model.ckpt-{step}.npz") as file:
        return {name: file[name] for name in file.files}


def losses(folder: Path) -> list[float]:
    """Returns the losses of TensorBoard's curve."""
    from estimator_app.model_dir.events import read_scalars

    scalars = (scalar for path in sorted(folder.glob("events.*")) for scalar in read_scalars(path.read_bytes()))
    return [value for name, _, value in scalars if name == "train/loss"]


@pytest.fixture(scope="module")
def trained(digits_dataset, tmp_path_factory) -> Path:
    """A run of four steps with every part of a recipe; not to be changed."""
    folder = tmp_path_factory.mktemp("jax") / "run"
    train(digits_dataset, folder, **RECIPE | {"augment": "none"}, train_steps=4, steps_per_eval=2)
    return folder


def test_a_run_that_was_stopped_ends_as_one_that_was_not(digits_dataset, tmp_path, trained):
    class Stops(estimator_app.Callback):
        def __init__(self) -> None:
            self.event = threading.Event()

        def on_step(self, step: int, loss: float) -> None:
            if step == 3:
                self.event.set()

    stops, recipe = Stops(), RECIPE | {"augment": "none"}
    options = SMALL | recipe | {"train_steps": 4, "steps_per_eval": 2}
    with pytest.raises(Stopped):
        estimator_app.train(
            digits_dataset, str(tmp_path / "m"), report=quiet, callbacks=[stops], stop=stops.event, **options
        )
    assert (tmp_path / "m/model.ckpt-3.npz").exists()
    train(digits_dataset, tmp_path / "m", **recipe, train_steps=4, steps_per_eval=2)
    actual, expected = arrays(tmp_path / "m", 4), arrays(trained, 4)
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)
    parts = {"weights", "fixed", "optimizer", "ema", "global_step", "position"}
    assert {name.partition("/")[0] for name in actual} == parts


def test_a_cache_changes_no_example_and_resumes_exactly(digits_dataset, tmp_path):
    """Records of a small split come in the order of training; images that are decoded whole, in one of their own."""
    options = {"train_steps": 4, "steps_per_eval": 4, "scaled_decode": False}
    without = train(digits_dataset, tmp_path / "without", **options)
    assert train(digits_dataset, tmp_path / "records", **options, cache="records") == without
    decoded = train(digits_dataset, tmp_path / "decoded", **options, cache="decoded")
    parts = train(digits_dataset, tmp_path / "parts", **options | {"steps_per_eval": 3}, cache="decoded")
    assert parts == decoded
    assert decoded.keys() == without.keys()


def test_a_cache_that_does_not_fit_is_refused_before_anything_is_written(digits_dataset, tmp_path, monkeypatch):
    from tpu_input.pipeline import caching

    monkeypatch.setattr(caching, "available_bytes", lambda: 1000)
    with pytest.raises(ValueError, match='cache="decoded" needs'):
        train(digits_dataset, tmp_path / "m", cache="decoded")
    assert not (tmp_path / "m").exists()


def test_a_run_says_on_which_devices(digits_dataset, tmp_path):
    import jax

    lines: list[str] = []
    estimator_app.train(digits_dataset, str(tmp_path / "m"), report=lines.append, **SMALL | {"train_steps": 1})
    assert lines[0].endswith(f" classes, on {jax.device_count()} {jax.devices()[0].device_kind}")


def test_each_function_is_compiled_once_in_a_run(digits_dataset, tmp_path):
    from estimator_app.trainers.jax.state import make_run
    from estimator_app.trainers.jax.train import evaluate, train as train_stretch

    config = configured(digits_dataset, **SMALL | RECIPE | {"augment": "none", "train_steps": 4})
    run = make_run(config, str(tmp_path))
    compiled: list[Any] = [run.train_step, run.eval_step]
    for first, last in ((0, 2), (2, 4)):
        train_stretch(run, digits_dataset, config, first, last, threading.Event())
        assert evaluate(run, digits_dataset, config).num_examples == digits_dataset.split("validation").num_examples
    assert [step._cache_size() for step in compiled] == [1, 1]


def test_an_export_gives_what_the_checkpoint_gives(digits_dataset, trained):
    from estimator_app.evaluate import evaluate

    run_metrics = evaluate(str(trained)).metrics
    export_metrics = evaluate(export_dir=str(trained / "export")).metrics
    assert export_metrics.loss == pytest.approx(run_metrics.loss, rel=1e-5)
    assert (export_metrics.confusion, export_metrics.step) == (run_metrics.confusion, run_metrics.step)


def test_an_export_runs_with_jax_alone(digits_dataset, trained):
    from jax import export as jax_export

    (path,) = (path for path in (trained / "export").iterdir() if path.name.isdigit())
    program = jax_export.deserialize(bytearray((path / "model.stablehlo").read_bytes()))
    assert set(program.platforms) == {"cpu", "cuda", "tpu"}
    with np.load(path / "weights.npz") as weights:
        pixels = np.zeros((3, 8, 8, 3), np.float32)
        outputs = program.call({name: weights[name] for name in weights.files}, pixels)
    assert np.asarray(outputs["probabilities"]).sum(axis=1) == pytest.approx(1)
    assert outputs["logits"].shape == (3, 10)


def test_any_flipped_bit_and_any_cut_of_a_checkpoint_is_harmless_or_a_value_error(tmp_path):
    from estimator_app.model_dir.array_files import ArrayReader, write_arrays

    arrays = {"a/b": np.arange(20.0), "global_step": np.array(3, np.int64)}
    write_arrays(f"{tmp_path}/whole", arrays)
    intact = (tmp_path / "whole.npz").read_bytes()
    damaged = [intact[:place] + bytes([intact[place] ^ 1]) + intact[place + 1 :] for place in range(len(intact))]
    num_refused = 0
    for content in [*damaged, *(intact[:length] for length in range(0, len(intact), 7))]:
        (tmp_path / "other.npz").write_bytes(content)
        try:
            reader = ArrayReader(f"{tmp_path}/other")
            for name in reader.get_variable_to_shape_map():
                np.testing.assert_array_equal(reader.get_tensor(name), arrays[name])
        except (ValueError, KeyError):
            num_refused += 1
    assert num_refused > len(intact) // 2


@pytest.mark.parametrize("damage", ["flipped", "cut", "compressed"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(digits_dataset, tmp_path, damage):
    from estimator_app.model_dir.checkpoints import newest_whole

    train(digits_dataset, tmp_path / "m", train_steps=2, steps_per_eval=1)
    path = tmp_path / "m/model.ckpt-2.npz"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    elif damage == "cut":
        content = content[: len(content) // 2]
    else:
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays(tmp_path / "m", 2))
        content = bytearray(packed.getvalue())
        assert zipfile.ZipFile(packed).infolist()[0].compress_type != zipfile.ZIP_STORED
    path.write_bytes(content)
    newest, message = newest_whole(str(tmp_path / "m"))
    assert newest == str(tmp_path / "m/model.ckpt-1")
    assert message.startswith(f"a checkpoint cannot be read: {str(path)!r} (")
    assert "\n" not in message


def test_the_checkpoint_of_another_network_is_refused(digits_dataset, trained, tmp_path):
    from estimator_app.evaluate import evaluate

    train(digits_dataset, tmp_path / "m", train_steps=1, network=f"{__name__}:tiny")
    with pytest.raises(ValueError, match="is of another network or has other classes"):
        evaluate(str(trained), checkpoint=str(tmp_path / "m/model.ckpt-1"))
    with pytest.raises(ValueError, match="holds another run: its --network is 'cnn'"):
        train(digits_dataset, trained, train_steps=5, network=f"{__name__}:tiny")


def test_the_checkpoint_of_another_trainer_is_refused(digits_dataset, trained):
    """By a command, whose process has the other trainer's Keras."""
    flags = [f"--dataset={digits_dataset.path}", f"--model_dir={trained}", "--trainer=tf_distribute", "--image_size=8"]
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    command = [sys.executable, "-W", "ignore", "-m", "jpeg2tpu", "train", *flags]
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert "holds another run" in line
    assert "--trainer is 'jax', not 'tf_distribute'" in line


def test_a_checkpoint_that_is_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    from estimator_app.model_dir.checkpoints import damage, shapes

    os.mkfifo(tmp_path / "model.ckpt-1.npz")
    with pytest.raises(ValueError, match=r"model\.ckpt-1\.npz' is a named pipe"):
        shapes(str(tmp_path / "model.ckpt-1"))
    assert "is a named pipe" in damage(str(tmp_path / "model.ckpt-1"))


def test_what_the_table_of_trainers_lacks_is_refused_in_a_line(capsys, digits_dataset, trained, tmp_path):
    """What is not an option of a run; tests/contracts/test_trainer_table.py has those."""
    dataset, rows = f"--dataset={digits_dataset.path}", trainer_table()
    flags = (f"--model_dir={trained}", f"--output={tmp_path}/p", "--features=head")
    assert "--trainer=jax has no --features" in refused(capsys, "predict", dataset, *flags)
    assert rows["`predict --features`"]["jax"] == "no"


def test_the_tab_of_hyperparameters_is_empty_as_the_table_says(trained):
    events = b"".join(path.read_bytes() for path in trained.rglob("*tfevents*"))
    assert events
    assert (b"hparams" in events) == (trainer_table()["TensorBoard: tab of hyperparameters"]["jax"] == "yes")


def test_a_run_starts_from_the_weights_of_another(digits_dataset, trained, tmp_path):
    for number, source in enumerate((trained, trained / "model.ckpt-4", trained / "export")):
        train(digits_dataset, tmp_path / str(number), train_steps=1, init_from=str(source))
        actual, expected = arrays(tmp_path / str(number), 0), arrays(trained, 4)
        for name in (name for name in actual if name.startswith(("weights/", "fixed/"))):
            average = expected[f"ema/{name.partition('/')[2]}"]
            np.testing.assert_array_equal(actual[name], average, err_msg=name)


def test_frozen_layers_keep_their_weights(digits_dataset, tmp_path):
    train(digits_dataset, tmp_path / "m", train_steps=2, freeze="stage[12]_.*")
    before, after = arrays(tmp_path / "m", 0), arrays(tmp_path / "m", 2)
    for name in (name for name in before if name.startswith(("weights/", "fixed/"))):
        is_same = np.array_equal(before[name], after[name])
        assert is_same == ("stage1_" in name or "stage2_" in name), name


def with_tensorflow(images: Any, num_classes: int, training: bool | None) -> Any:
    import tensorflow as tf
    from keras import layers

    return layers.Dense(num_classes)(layers.Flatten()(tf.nn.relu(images)))


def test_a_network_with_operations_of_tensorflow_is_refused_in_a_line(digits_dataset, tmp_path):
    with pytest.raises(ValueError, match="'with_tensorflow' cannot be built by Keras on JAX") as raised:
        train(digits_dataset, tmp_path / "m", network=f"{__name__}:with_tensorflow")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            "RESOURCE_EXHAUSTED: Out of memory.\nMore",
            "too little memory on the device; use a smaller --train_batch_size",
        ),
        ("INTERNAL: broken\nMore", "JAX cannot run on the device: INTERNAL: broken$"),
    ],
)
def test_an_error_of_the_device_is_one_line(error, line):
    import jax

    from estimator_app.trainers.jax.batches import device_errors

    with pytest.raises(ValueError, match=line), device_errors("--train_batch_size"):
        raise jax.errors.JaxRuntimeError(error)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2.25MiB.\nMore",
            r"too little memory on the device; end other processes that use it, .*\(RESOURCE_EXHAUSTED: .*MiB\.\)$",
        ),
        (
            "FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above.\nMore",
            "JAX cannot run on the device: FAILED_PRECONDITION: DNN library initialization failed",
        ),
        (
            "INTERNAL: CUDA driver version is insufficient for CUDA runtime version",
            "JAX cannot run on the device: INTERNAL: CUDA driver version is insufficient",
        ),
    ],
)
def test_a_device_that_cannot_hold_the_network_is_one_line_before_the_first_step(
    digits_dataset, tmp_path, monkeypatch, error, line
):
    """A full device, or a CUDA that does not fit the plugin, is seen by the first program: initial weights."""
    import jax

    def broken(*args: Any, **options: Any) -> None:
        raise jax.errors.JaxRuntimeError(error)

    monkeypatch.setattr(jax.random, "truncated_normal", broken)
    with pytest.raises(ValueError, match=line) as raised:
        train(digits_dataset, tmp_path / "m", train_steps=1)
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "m").glob("model.ckpt*"))


@pytest.mark.parametrize(
    "error",
    [
        "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 4711. Not "
        "attempting to load libtpu.so in this process.",
        "Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.",
        "Unable to initialize backend 'cuda': INTERNAL: CUDA error: Failed call to cuInit: CUDA_ERROR_NO_DEVICE",
    ],
)
def test_a_machine_without_a_device_is_one_line(monkeypatch, error):
    import jax

    from estimator_app.trainers.jax.batches import make_mesh

    def none() -> None:
        raise RuntimeError(f"{error}\nMore")

    monkeypatch.setattr(jax, "devices", none)
    with pytest.raises(ValueError, match=f"^JAX finds no device: {re.escape(error)}; JAX_PLATFORMS=cpu runs on"):
        make_mesh()


@pytest.mark.long
@pytest.mark.core
@pytest.mark.parametrize("platform", ["cuda", "nonsense"])
def test_a_plugin_that_is_not_installed_is_one_line(digits_dataset, tmp_path, monkeypatch, platform):
    if platform == "cuda" and find_spec("jax_cuda12_plugin"):
        pytest.skip("the plugin is installed")
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    flags = f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/m", *FLAGS, "--train_steps=1"
    process = command("train", "--trainer=jax", *flags)
    assert process.returncode == 2, process.stderr
    assert "Traceback" not in process.stderr
    last = process.stderr.splitlines()[-1]
    assert last.startswith("error: JAX finds no device: ")
    assert repr(platform) in last or f"JAX_PLATFORMS={platform} is" in last
    assert not list((tmp_path / "m").glob("model.ckpt*"))


def test_weights_and_checkpoints_of_others_are_refused_in_a_line_before_the_first_step(digits_dataset, tmp_path):
    train(digits_dataset, tmp_path / "tiny", train_steps=1, network=f"{__name__}:tiny")
    with pytest.raises(ValueError, match=r"tiny/model\.ckpt-1") as raised:
        train(digits_dataset, tmp_path / "cnn", train_steps=1, init_from=str(tmp_path / "tiny/model.ckpt-1"))
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "cnn").glob("model.ckpt*"))


def test_a_checkpoint_of_tensorflow_is_refused_in_a_line(digits_dataset, tmp_path):
    from estimator_app.trainers.jax.checkpoints import restore
    from estimator_app.trainers.jax.state import make_run

    for suffix in ("index", "data-00000-of-00001"):
        (tmp_path / f"model.ckpt-3.{suffix}").write_bytes(b"of TensorFlow")
    run = make_run(configured(digits_dataset, **SMALL), str(tmp_path))
    with pytest.raises(ValueError, match=r"model\.ckpt-3' is not one of --trainer=jax; start from its weights with"):
        restore(run, str(tmp_path / "model.ckpt-3"))


def test_a_record_that_cannot_be_decoded_is_named(dataset_copy, tmp_path):
    from tpu_input import RecordSource, read_manifest

    manifest = read_manifest(str(dataset_copy))
    record = RecordSource(manifest, "train")[0]
    (path,) = (path for path in dataset_copy.glob("train-*") if record.encoded in path.read_bytes())
    payload = replaced(path, record.encoded, record.encoded[:20] + bytes(len(record.encoded) - 20))
    path.write_bytes(payload)
    with pytest.raises(ValueError, match="find all such records with: jpeg2tpu verify") as raised:
        train(str(dataset_copy), tmp_path / "m", train_steps=200)
    assert repr(record.key) in str(raised.value)


def replaced(path: Path, old: bytes, new: bytes) -> bytes:
    """Returns the content of a shard with an image replaced, and checksums that agree."""
    from tpu_input.dataset_format.tfrecord import frame, read_frames

    with path.open("rb") as file:
        return b"".join(frame(payload.replace(old, new)) for _, payload in read_frames(file))


FLAGS = ("--image_size=8", "--train_batch_size=8", "--eval_batch_size=100", "--no_flip", "--learning_rate=0.05")


@pytest.mark.long
@pytest.mark.core
def test_every_command_runs_where_tensorflow_and_beam_cannot_be_imported(digits, digits_dataset, tmp_path):
    flags = f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/m", *FLAGS, "--train_steps=2"
    process = command("train", "--trainer=jax", *flags, "--steps_per_eval=1", "--wrong_images=4", "--profile=1,2")
    assert process.returncode == 0, process.stderr
    assert list((tmp_path / "m/plugins/profile").glob("*/*.xplane.pb"))
    for arguments in (
        ("evaluate", f"--model_dir={tmp_path}/m", "--step=1"),
        ("evaluate", f"--export_dir={tmp_path}/m/export"),
        ("export", f"--model_dir={tmp_path}/m", f"--export_dir={tmp_path}/e"),
        ("predict", f"--model_dir={tmp_path}/m", str(min((digits / "3").iterdir()))),
        ("predict", f"--model_dir={tmp_path}/m", f"--dataset={digits_dataset.path}", f"--output={tmp_path}/p.parquet"),
    ):
        process = command(*arguments)
        assert process.returncode == 0, (arguments, process.stderr)


@pytest.mark.long
@pytest.mark.core
def test_a_newer_tensorflow_is_left_alone(digits, digits_dataset, tmp_path):
    """Where it is installed, JAX is the default all the same, and neither slows it down nor prints."""
    program = (
        "import sys\nfrom estimator_app.__main__ import main\nprint(main(sys.argv[1:]), 'tensorflow' in sys.modules)"
    )
    flags = f"--dataset={digits_dataset.path}", *FLAGS, "--train_steps=1", "--wrong_images=4"
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    for arguments in (
        ("train", f"--model_dir={tmp_path}/m", *flags),
        ("evaluate", f"--model_dir={tmp_path}/m"),
        ("evaluate", f"--export_dir={tmp_path}/m/export"),
        ("export", f"--model_dir={tmp_path}/m", f"--export_dir={tmp_path}/e"),
        ("predict", f"--model_dir={tmp_path}/m", str(min((digits / "3").iterdir()))),
        ("predict", f"--model_dir={tmp_path}/m", f"--dataset={digits_dataset.path}", f"--output={tmp_path}/p.parquet"),
    ):
        command = [sys.executable, "-c", program, *arguments]
        process = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert (process.stdout.splitlines()[-1:], process.stderr) == (["0 False"], ""), arguments
    assert json.loads((tmp_path / "m/config.json").read_text())["trainer"] == "jax"


@pytest.mark.parametrize(("mode", "is_used"), [(None, True), (0o700, True), (0o770, False), (0o707, False)])
def test_compiled_programs_are_read_from_a_folder_that_only_the_user_can_write_to(tmp_path, monkeypatch, mode, is_used):
    import jax

    from estimator_app.trainers.jax.state import set_cache_folder

    updates: list[Any] = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(jax.config, "update", lambda name, value: updates.append((name, value)))
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)
    folder = tmp_path / ".cache/jpeg2tpu/jax"
    if mode is not None:
        folder.mkdir(parents=True)
        folder.chmod(mode)
    set_cache_folder()
    assert (("jax_compilation_cache_dir", str(folder)) in updates) == is_used


def test_a_run_trains_where_compiled_programs_cannot_be_kept(tmp_path, monkeypatch):
    import jax

    from estimator_app.trainers.jax.state import set_cache_folder

    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)
    (tmp_path / ".cache").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    set_cache_folder()
    assert not jax.config.jax_compilation_cache_dir


@pytest.mark.long
@pytest.mark.core
def test_a_later_run_compiles_nothing_again(digits_dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    compiled = []
    for name in "12":
        flags = f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/{name}", *FLAGS, "--train_steps=1"
        process = command("train", "--trainer=jax", *flags)
        assert process.returncode == 0, process.stderr
        compiled.append(sorted(path.name for path in (tmp_path / ".cache/jpeg2tpu/jax").iterdir()))
    assert {"jit_train_step", "jit_eval_step", "jit__truncated_normal"} <= {name.split("-")[0] for name in compiled[0]}
    assert compiled[1] == compiled[0]


@pytest.mark.long
@pytest.mark.core
def test_a_run_that_was_killed_ends_as_one_that_was_not(digits_dataset, tmp_path):
    def run(name: str, number: int = 0) -> int:
        flags = f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/{name}", *FLAGS, "--train_steps=8"
        more = ("--save_steps=2", "--ema=0.9")
        return command("train", "--trainer=jax", *flags, *more, signal=number, at_step=5).returncode

    assert run("whole") == 0
    assert run("killed", signal.SIGKILL) == -signal.SIGKILL
    assert run("killed") == 0
    actual, expected = arrays(tmp_path / "killed", 8), arrays(tmp_path / "whole", 8)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


# A run by TensorFlow, whose process has the other Keras; prints the losses.
TF_PROGRAM = """
import json, sys
from estimator_app import Callback, train
class Losses(Callback):
    def on_step(self, step, loss):
        losses[step] = loss
dataset, folder, options, losses = *sys.argv[1:3], json.loads(sys.argv[3]), {}
train(dataset, folder, report=lambda line: None, callbacks=[Losses()], **options)
print(json.dumps(losses))
"""


@pytest.mark.long
@pytest.mark.parametrize("network", [pytest.param("cnn", marks=pytest.mark.core), "resnet18"])
def test_the_first_twenty_losses_are_those_of_tf_distribute(digits_dataset, tmp_path, monkeypatch, network):
    """From the same weights, with the same batches: OpenCV is left out, whose resize is not TensorFlow's bit for bit.

    Rounding decides on which side of 0 the inputs of some ReLUs are; at larger rates, that grows from step to step.
    """
    monkeypatch.setattr("tpu_input.without_tensorflow.decode_window.cv2", None)
    options = OPTIONS | {"network": network, "learning_rate": 0.01, "flip": True, "save_seconds": 0}
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    other = json.dumps(options | {"trainer": "tf_distribute"})
    command = [sys.executable, "-W", "ignore", "-c", TF_PROGRAM, digits_dataset.path, str(tmp_path / "tf"), other]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    expected = {int(step): loss for step, loss in json.loads(process.stdout.splitlines()[-1]).items()}
    actual = train(digits_dataset, tmp_path / "jax", **options, init_from=str(tmp_path / "tf/model.ckpt-0"))
    assert list(actual) == list(expected) == list(range(1, 21))
    np.testing.assert_allclose(list(actual.values()), list(expected.values()), rtol=1e-3)


@pytest.mark.long
@pytest.mark.core
def test_two_devices_train_as_one(digits_dataset, tmp_path):
    def run(name: str, devices: int, batch: int = 8) -> Any:
        flags = f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/{name}", *FLAGS[2:], "--image_size=8"
        more = (f"--train_batch_size={batch}", "--learning_rate=0.001", "--train_steps=10", "--summary_steps=1")
        return command("train", "--trainer=jax", *flags, *more, devices=devices)

    for devices in (1, 2):
        process = run(str(devices), devices)
        assert process.returncode == 0, process.stderr
    curves = [losses(tmp_path / name) for name in "12"]
    assert len(curves[0]) == 10
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-5)
    one, two = arrays(tmp_path / "1", 10), arrays(tmp_path / "2", 10)
    for name in (name for name in one if name.startswith("fixed/")):  # the statistics are those of the whole batch
        np.testing.assert_allclose(two[name], one[name], rtol=1e-4, atol=1e-5, err_msg=name)
    metrics = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in "12"]
    assert metrics[0]["num_examples"] == metrics[1]["num_examples"]
    process = run("odd", 2, batch=7)
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1] == (
        "error: --train_batch_size must be a multiple of the 2 devices, got 7; use 8"
    )
    assert not list((tmp_path / "odd").glob("model.ckpt*"))


@pytest.mark.long
def test_the_demo_s_digits_are_learned_to_988_in_a_thousand(digits_dataset, tmp_path):
    options = {"image_size": 32, "train_batch_size": 64, "eval_batch_size": 128, "learning_rate": 0.1, "eval_crop": 1.0}
    finished = estimator_app.train(
        digits_dataset, str(tmp_path), report=quiet, **SMALL | options | {"train_steps": 600, "steps_per_eval": 600}
    )
    assert finished
    assert finished.metrics.accuracy >= 0.988
