"""Checkpoints that are damaged from outside: never wrong weights, one line that names the file, and a way on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.__main__ import main
from estimator_app.model_dir.checkpoints import damage, latest_checkpoint, newest_whole
from estimator_app.model_dir.run_files import write_run_config
from estimator_app.train import run as run_training
from support import small_network
from support.app_fixtures import configured, keras_warns
from support.shared import shared
from support.trainers import RUNNABLE

pytestmark = keras_warns
# On a slow machine, a checkpoint each minute would come between those of the evaluations.
OPTIONS = {
    "network": small_network.NAME,
    "train_steps": 4,
    "steps_per_eval": 2,
    "decay_steps": 6,
    "save_seconds": 0,
}
FLAGS = (
    *(f"--network={small_network.NAME}", "--train_steps=6", "--steps_per_eval=2", "--decay_steps=6"),
    "--save_seconds=0",
    *("--image_size=16", "--train_batch_size=16", "--eval_batch_size=100", "--learning_rate=0.05"),
    *("--crop_area=0.6,1", "--no_flip"),
)


def train(manifest, model_dir, **options) -> list[str]:
    lines: list[str] = []
    config = configured(manifest, **OPTIONS | options)
    run_training(manifest, config, str(model_dir), f"{model_dir}/export", report=lines.append)
    return lines


def tensors(path: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(path)
    return {name: np.asarray(reader.get_tensor(name)) for name in sorted(reader.get_variable_to_shape_map())}


@pytest.fixture(scope="module", params=RUNNABLE)
def trained(request, digits_dataset, tmp_path_factory) -> Path:
    """The model_dir of a run with checkpoints of steps 0, 2 and 4; not to be changed."""

    def make(folder: Path) -> Path:
        train(digits_dataset, folder, trainer=request.param)
        return folder

    return shared(tmp_path_factory, f"damaged_{request.param}", make)


@pytest.fixture
def model_dir(trained, tmp_path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "model"))


def trainer_of(model_dir: Path) -> str:
    return json.loads((model_dir / "config.json").read_text())["trainer"]


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.long
def test_no_byte_of_a_checkpoint_can_be_changed_or_lost_and_its_weights_with_it(model_dir):
    path = str(model_dir / "model.ckpt-4")
    expected = tensors(path)
    assert damage(path) == ""
    for file in (model_dir / "model.ckpt-4.index", model_dir / "model.ckpt-4.data-00000-of-00001"):
        data = file.read_bytes()
        for length in (0, 1, 47, len(data) // 2, len(data) - 49, len(data) - 8, len(data) - 1):
            file.write_bytes(data[: max(0, length)])
            assert str(file) in damage(path), length
        for offset in range(0, len(data), 2):
            file.write_bytes(
                data[:offset] + bytes([data[offset] ^ (0x81, 0xFF, 0x40)[offset % 3]]) + data[offset + 1 :]
            )
            if damage(path) == "":  # a byte of the index that nothing reads
                assert file.suffix == ".index", offset
                for name, value in tensors(path).items():
                    np.testing.assert_array_equal(value, expected[name], err_msg=f"{name} at {offset}")
        file.write_bytes(data)
    assert damage(path) == ""


DATA, INDEX = "model.ckpt-4.data-00000-of-00001", "model.ckpt-4.index"


@pytest.mark.parametrize(
    ("name", "do"),
    [
        (DATA, lambda path: cut(path, 0.5)),
        (DATA, lambda path: flip(path, 70)),
        (DATA, Path.unlink),
        (INDEX, lambda path: cut(path, 0.7)),
        (INDEX, Path.unlink),
        ("checkpoint", lambda path: path.write_bytes(b"")),
        ("checkpoint", lambda path: path.write_bytes(b"\xff\x00garbage")),
    ],
)
def test_a_run_goes_on_from_the_newest_whole_checkpoint(model_dir, digits_dataset, name, do):
    do(model_dir / name)
    last = 4 if name == "checkpoint" else 2
    path, wrong = newest_whole(str(model_dir))
    assert path == f"{model_dir}/model.ckpt-{last}"
    assert f"{model_dir}/{name}".removesuffix("00000-of-00001") in wrong
    config = configured(digits_dataset, **OPTIONS, trainer=trainer_of(model_dir))
    assert write_run_config(str(model_dir), config) == wrong
    assert latest_checkpoint(str(model_dir)) == tf.train.latest_checkpoint(str(model_dir)) == path
    assert newest_whole(str(model_dir)) == (path, "")


@pytest.mark.long
def test_it_ends_with_the_weights_of_a_run_that_nothing_befell(model_dir, digits_dataset, tmp_path):
    kind = trainer_of(model_dir)
    shutil.copytree(model_dir, tmp_path / "straight")
    cut(model_dir / DATA, 0.5)
    lines = train(digits_dataset, model_dir, train_steps=6, trainer=kind)
    assert lines[0].startswith(f"a checkpoint cannot be read: '{model_dir}/{DATA}' (")
    assert lines[0].endswith("; resuming from step 2, the newest intact checkpoint")
    assert lines[1].startswith(f"resuming {OPTIONS['network']} at step 2/6")
    train(digits_dataset, tmp_path / "straight", train_steps=6, trainer=kind)
    actual, expected = (tensors(f"{folder}/model.ckpt-6") for folder in (model_dir, tmp_path / "straight"))
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if name not in ("_CHECKPOINTABLE_OBJECT_GRAPH",) and not name.startswith("save_counter"):
            np.testing.assert_array_equal(actual[name], value, err_msg=name)


def refused(capsys, *args) -> str:
    """Returns the one line that a command ends with."""
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err


def test_evaluate_and_export_name_what_is_damaged_and_what_is_whole(model_dir, capsys):
    cut(model_dir / DATA, 0.5)
    network = f"--network={OPTIONS['network']}"
    for command in ("evaluate", "export"):
        for more in ((), ("--step=4",), (f"--checkpoint={model_dir}/{INDEX}",)):
            line = refused(capsys, command, f"--model_dir={model_dir}", network, *more)
            assert f"a checkpoint cannot be read: '{model_dir}/{DATA}' (" in line
            assert line.endswith("; use an intact one: --step=2, --step=0\n")
    (model_dir / "checkpoint").write_text("")
    line = refused(capsys, "evaluate", f"--model_dir={model_dir}", network)
    assert line.startswith(f"error: '{model_dir}/checkpoint' is damaged")
    assert line.endswith("; use an intact one: --step=2, --step=0\n")
    assert main(["evaluate", f"--model_dir={model_dir}", network, "--step=2"]) == 0


def test_a_run_that_begins_from_a_damaged_one_is_told_what_to_begin_from(model_dir, digits_dataset, tmp_path, capsys):
    cut(model_dir / DATA, 0.5)
    train = ("train", f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/tuned", *FLAGS)
    for path in (model_dir, model_dir / "model.ckpt-4"):
        line = refused(capsys, *train, f"--init_from={path}")
        assert f"a checkpoint cannot be read: '{model_dir}/{DATA}' (" in line
        (flag, _) = line.rstrip().rpartition("; use an intact one: ")[2].split(", ")
        assert flag == f"--init_from={model_dir}/model.ckpt-2"
    assert main([*train, flag, "--train_steps=1"]) == 0  # as it says


def test_where_no_checkpoint_is_whole_nothing_is_written(model_dir, digits_dataset, capsys):
    for path in model_dir.glob("model.ckpt-*.index"):
        cut(path, 0.5)
    before = {path: path.read_bytes() for path in model_dir.iterdir() if path.is_file()}
    line = refused(capsys, "train", f"--dataset={digits_dataset.path}", f"--model_dir={model_dir}", *FLAGS)
    assert "has no other intact checkpoint; use another --model_dir" in line
    assert {path: path.read_bytes() for path in model_dir.iterdir() if path.is_file()} == before


@pytest.mark.long
def test_checkpoints_without_the_file_that_names_the_last_are_not_trained_over(model_dir, digits_dataset, capsys):
    command = ["train", f"--dataset={digits_dataset.path}", f"--model_dir={model_dir}", *FLAGS]
    (model_dir / "checkpoint").unlink()
    before = {path: path.read_bytes() for path in model_dir.iterdir() if path.is_file()}
    line = refused(capsys, *command)
    assert f"{str(model_dir)!r} has checkpoints of steps 0, 2, 4, but not the file 'checkpoint'" in line
    assert line in refused(capsys, "evaluate", f"--model_dir={model_dir}", FLAGS[0])
    assert {path: path.read_bytes() for path in model_dir.iterdir() if path.is_file()} == before
    path, _, text = line.partition("write this line into ")[2].partition("; to begin")[0].partition(": ")
    Path(path).write_text(f"{text}\n")  # as it says
    assert main(command) == 0
    assert f"resuming {OPTIONS['network']} at step 4/6" in capsys.readouterr().out


def test_a_run_that_was_killed_at_its_first_checkpoint_begins_again(model_dir, digits_dataset):
    for path in [*model_dir.glob("model.ckpt-[24].*"), model_dir / "checkpoint"]:
        path.unlink()
    assert newest_whole(str(model_dir)) == (None, "")


@pytest.mark.parametrize("key", ["model_checkpoint_path", "all_model_checkpoint_paths"])
@pytest.mark.parametrize("name", ["../victim/model.ckpt-0", "{victim}/model.ckpt-0", "model.ckpt-0/../../victim/x"])
def test_a_file_checkpoint_that_names_what_lies_elsewhere_is_refused(
    model_dir, digits_dataset, tmp_path, capsys, key, name
):
    victim = tmp_path / "victim"
    victim.mkdir()
    for path in model_dir.glob("model.ckpt-0.*"):
        shutil.copy(path, victim)
    before = sorted(path.name for path in victim.iterdir())
    state = model_dir / "checkpoint"
    elsewhere = f'{key}: "{name.format(victim=victim)}"'
    lines = state.read_text().splitlines()
    state.write_text("\n".join([elsewhere, *lines[1:]] if key.startswith("model") else [*lines, elsewhere]) + "\n")
    line = refused(capsys, "train", f"--dataset={digits_dataset.path}", f"--model_dir={model_dir}", *FLAGS)
    assert f"'{state}' names {name.format(victim=victim)!r}, which is not a checkpoint in the same folder" in line
    assert sorted(path.name for path in victim.iterdir()) == before
