"""A model_dir or an export of a stranger's: its files run nothing, remove nothing, and what is wrong is a line."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from estimator_app.__main__ import main
from estimator_app.config import TrainConfig
from estimator_app.model.metrics import Metrics
from estimator_app.model_dir.history import Row
from estimator_app.model_dir.plots import draw_confusion, draw_curves
from estimator_app.model_dir.run_files import check_free, read_config, read_finished
from estimator_app.runtime import files
from estimator_app.train import run as run_training
from support.app_fixtures import configured, keras_warns
from tpu_input import InputConfig
from tpu_input.command_line import to_json
from tpu_input.stored_images.image_options import ImageOptions

pytestmark = keras_warns
FLAGS = (
    *("--network=own_network:small", "--train_steps=4", "--steps_per_eval=2", "--image_size=16"),
    *("--train_batch_size=16", "--eval_batch_size=100", "--learning_rate=0.05", "--crop_area=0.6,1", "--no_flip"),
    *("--trainer=tf_distribute", "--keep_exports=1"),
)
NETWORK = """
import tensorflow as tf


def small(images, num_classes, training):
    return tf.keras.layers.Dense(num_classes)(tf.keras.layers.GlobalAveragePooling2D()(images))
"""
FIELDS = tuple(field for kind in (TrainConfig, InputConfig, ImageOptions) for field in dataclasses.fields(kind))
WRONG: list[Any] = [None, "x", "../x", -1, 1.5, True, [], [1, "x"], {}, float("nan")]


@pytest.fixture(scope="module")
def trained(digits_dataset, tmp_path_factory) -> Path:
    """A folder with a run of a network of its own, model/, and the module, own_network.py; not to be changed."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "own_network.py").write_text(NETWORK)
    sys.path.insert(0, str(folder))
    try:
        flags = {"network": "own_network:small", "train_steps": 2, "steps_per_eval": 2, "keep_exports": 1}
        config = configured(digits_dataset, trainer="tf_distribute", decay_steps=4, **flags)
        run_training(digits_dataset, config, f"{folder}/model", f"{folder}/model/export", report=lambda line: None)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("own_network", None)
    return folder


@pytest.fixture
def stranger(trained, tmp_path, monkeypatch) -> Iterator[Path]:
    """A copy of the model_dir, whose network's module, when it is imported, leaves a file beside it: "imported"."""
    model_dir = Path(shutil.copytree(trained / "model", tmp_path / "model"))
    marker = tmp_path / "imported"
    (tmp_path / "own_network.py").write_text(f"open({str(marker)!r}, 'w').close()\n{NETWORK}")
    monkeypatch.syspath_prepend(tmp_path)
    yield model_dir
    sys.modules.pop("own_network", None)


def refused(capsys, *args) -> str:
    """Returns the one line that a command ends with."""
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err


@pytest.mark.long
@pytest.mark.core
def test_the_code_that_a_config_names_is_imported_only_when_the_user_names_it(stranger, digits_dataset, digits, capsys):
    marker, topology = stranger.parent / "imported", "--topology=v5e:1x1"
    dataset, image = f"--dataset={digits_dataset.path}", str(next((digits / "3").iterdir()))
    for command in (("evaluate",), ("export",), ("export", "--step=2")):
        line = refused(capsys, *command, f"--model_dir={stranger}")
        assert line.endswith("imported only if you name it; if you trust it, add --network=own_network:small\n")
    others = [flag for flag in FLAGS if "network" not in flag]
    line = refused(capsys, "train", f"--model_dir={stranger}", dataset, *others)
    assert "its --network is 'own_network:small', not 'cnn'" in line
    line = refused(capsys, "evaluate", f"--model_dir={stranger}", "--network=cnn")
    assert "has --network=own_network:small, got --network=cnn" in line
    for args in (
        ("evaluate", f"--export_dir={stranger}"),
        ("predict", f"--export_dir={stranger}", image),
        ("preflight", f"--model_dir={stranger}", dataset, topology, "--image_size=16", "--train_batch_size=8"),
    ):
        assert main(list(args)) in (0, 1)
    assert not marker.exists()
    assert "own_network" not in sys.modules
    capsys.readouterr()
    assert main(["evaluate", f"--model_dir={stranger}", "--network=own_network:small"]) == 0
    assert marker.exists()


@pytest.mark.parametrize(
    "path", ["../victim", "{victim}", "{model}/export/../../victim", "{model}/export/..", "gs://a/../1"]
)
def test_exports_json_that_names_what_cannot_be_an_export_removes_nothing(
    stranger, digits_dataset, tmp_path, capsys, path
):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "saved_model.pb").touch()
    listed = json.loads((stranger / "exports.json").read_text())
    listed["last"].insert(0, {"step": 1, "path": path.format(victim=victim, model=stranger)})
    (stranger / "exports.json").write_text(json.dumps(listed))
    line = refused(capsys, "train", f"--dataset={digits_dataset.path}", f"--model_dir={stranger}", *FLAGS)
    assert f"'{stranger}/exports.json' is damaged (path " in line
    assert (victim / "saved_model.pb").exists()


@pytest.mark.long
def test_exports_json_that_names_another_run_s_export_removes_nothing(stranger, digits_dataset, finished, capsys):
    other = Path(shutil.copytree(finished.export, stranger / "export" / "1000"))
    listed = json.loads((stranger / "exports.json").read_text())
    listed["last"].insert(0, {"step": 1, "path": str(other)})
    (stranger / "exports.json").write_text(json.dumps(listed))
    line = refused(capsys, "train", f"--dataset={digits_dataset.path}", f"--model_dir={stranger}", *FLAGS)
    assert f"{stranger}/exports.json lists '{other}', which is not an export of this run" in line
    assert (other / "saved_model.pb").exists()


def test_a_link_among_the_exports_is_not_followed_when_it_is_removed(stranger, digits_dataset, tmp_path, capsys):
    (old,) = (path for path in (stranger / "export").iterdir() if path.name.isdigit())
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    (old / "link").symlink_to(victim)
    assert (
        main(["train", f"--dataset={digits_dataset.path}", f"--model_dir={stranger}", *FLAGS, "--decay_steps=4"]) == 0
    )
    assert not old.exists()  # it gave way to the export of the last step
    assert (victim / "precious").exists()


@pytest.mark.parametrize("name", ["config.json.tmp", ".lock", "export", "model.ckpt-4_temp", "history.csv"])
def test_nothing_is_written_through_a_link_in_a_model_dir(stranger, digits_dataset, tmp_path, capsys, name):
    (tmp_path / "victim").mkdir()
    if (stranger / name).is_dir():
        shutil.rmtree(stranger / name)
    (stranger / name).unlink(missing_ok=True)
    (stranger / name).symlink_to(tmp_path / "victim")
    line = refused(capsys, "train", f"--dataset={digits_dataset.path}", f"--model_dir={stranger}", *FLAGS)
    assert f"'{stranger}' contains a symlink, '{name}', through which training would write elsewhere" in line
    assert list((tmp_path / "victim").iterdir()) == []


def refusal(folder: Path, text: str) -> str:
    """Returns why a config.json is refused, "" when it is not."""
    (folder / "config.json").write_text(text)
    try:
        read_config(str(folder))
    except ValueError as error:
        return str(error)
    return ""


def fits(value: object, example: object) -> bool:
    return type(value) is type(example) or (type(value) is int and type(example) is float)


def test_a_config_with_a_field_of_another_type_or_range_is_refused(trained, tmp_path):
    text = (trained / "model" / "config.json").read_text()
    assert refusal(tmp_path, text) == ""
    config = json.loads(text)
    nested = (config, config["input"], config["images"])
    places = [(fields, name) for fields in nested for name in fields]
    prefix = f"'{tmp_path}/config.json' is not a training run's config: "
    for fields, name in places:
        example = fields[name]
        for value in WRONG:
            fields[name] = value
            why = refusal(tmp_path, json.dumps(config))
            assert why.startswith(prefix) or (why == "" and fits(value, example)), (name, value)
        del fields[name]
        assert refusal(tmp_path, json.dumps(config)).startswith(prefix) or name == "command" or has_default(name), name
        fields[name] = example
    for text in ("[" * 100_000, '{"format_version": 2, "input": NaN}', "\x00", ""):
        assert refusal(tmp_path, text).startswith(prefix)


def has_default(name: str) -> bool:
    missing = dataclasses.MISSING
    return any(field.name == name and (field.default, field.default_factory) != (missing, missing) for field in FIELDS)


def test_metrics_of_other_types_are_none_and_are_made_again(trained, tmp_path):
    metrics = json.loads((trained / "model" / "metrics.json").read_text())
    assert metrics["export"].startswith("export/")
    for name in metrics:
        for value in [*WRONG, {"a": "b"}, [[1, 2], [3]], "/etc/1/../passwd"]:
            (tmp_path / "metrics.json").write_text(json.dumps(metrics | {name: value}))
            finished = read_finished(str(tmp_path))
            if finished:
                kind = type(metrics[name])
                assert type(value) in ({int, float} if kind is float else {kind}), (name, value)
                assert name != "export"


@pytest.mark.parametrize(
    "text",
    ["step,split,loss\n1,a\n", "step,split,loss\n1,a,1,2\n", "step,split,loss\n-1,a,1\n", "step,split,\x1b\n1,a,1\n"],
)
def test_a_history_of_other_columns_or_ranges_is_refused_in_a_line(stranger, digits_dataset, capsys, text):
    (stranger / "history.csv").write_text(text)
    line = refused(capsys, "train", f"--dataset={digits_dataset.path}", f"--model_dir={stranger}", *FLAGS)
    assert f"'{stranger}/history.csv' is damaged (" in line
    assert line.isprintable() or line.endswith("\n")


def test_damaged_exports_are_said_in_a_line(stranger, digits, tmp_path, capsys):
    image = str(next((digits / "3").iterdir()))
    export = next(path for path in (stranger / "export").iterdir() if path.name.isdigit())
    for name in ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"):
        data = (export / name).read_bytes()
        for length in (0, len(data) // 2, len(data) - 5):
            (export / name).write_bytes(data[:length])
            assert f"'{export}' is not a complete export of this program" in refused(
                capsys, "predict", f"--export_dir={export}", image
            )
        (export / name).write_bytes(data)
    classes = export / "assets" / "classes.txt"
    for data in (b"0\n1\n", b"\xff\n" * 10, b""):
        classes.write_bytes(data)
        assert "is not a complete export" in refused(capsys, "predict", f"--export_dir={export}", image)
    classes.write_text("".join(f"{label}\n" for label in range(10)))
    for step in ("null", '"x"', "-1", "1.5", "true"):
        (export / "assets.extra" / "metrics.json").write_text(f'{{"step": {step}}}')
        line = refused(capsys, "evaluate", f"--export_dir={export}")
        assert f"'{export}' does not record which run it was exported from (" in line


def hashes(folder: Path) -> dict[str, str]:
    """Returns what a folder holds: the hash of every file, where every link leads, all below it."""
    return {
        str(path): os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    } | {str(path): "folder" for path in sorted(folder.rglob("*")) if path.is_dir() and not path.is_symlink()}


@pytest.fixture
def canary(tmp_path) -> Path:
    """A folder outside the model_dir, of which nothing may change."""
    folder = tmp_path / "canary"
    (folder / "sub").mkdir(parents=True)
    for name in ("secret.txt", "sub/secret.txt"):
        (folder / name).write_text(f"canary {name}\n")
    return folder


NETWORK_FLAG = "--network=own_network:small"


def train_args(dataset, model_dir, *more: str) -> list[str]:
    return ["train", f"--dataset={dataset.path}", f"--model_dir={model_dir}", *FLAGS, "--decay_steps=4", *more]


def test_export_does_not_write_through_a_link_that_the_user_has_not_named(stranger, canary, capsys):
    shutil.rmtree(stranger / "export")
    (stranger / "export").symlink_to(canary)
    before = hashes(canary)
    line = refused(capsys, "export", f"--model_dir={stranger}", NETWORK_FLAG)
    assert f"'{stranger}' holds a symbolic link, 'export', through which the export would be written elsewhere" in line
    assert hashes(canary) == before
    assert main(["export", f"--model_dir={stranger}", NETWORK_FLAG, f"--export_dir={stranger}/export"]) == 0
    assert [path for path in canary.iterdir() if path.name.isdigit()]


@pytest.mark.parametrize("name", ["best", "best/temp-1763596800", "1763596800", "temp-1763596800"])
def test_nothing_is_exported_through_a_link_in_a_folder_for_exports(stranger, digits_dataset, canary, capsys, name):
    link = stranger / "export" / name
    if link.is_dir():
        shutil.rmtree(link)
    link.symlink_to(canary)
    before = hashes(canary)
    for args in (train_args(digits_dataset, stranger), ["export", f"--model_dir={stranger}", NETWORK_FLAG]):
        line = refused(capsys, *args)
        assert f"'{link.parent}' contains a symlink, '{link.name}', through which exports would be written" in line
        assert hashes(canary) == before


def test_a_link_of_the_user_s_own_among_exports_is_in_nobody_s_way(stranger, tmp_path, capsys):
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "latest").symlink_to("1763596800")
    assert main(["export", f"--model_dir={stranger}", NETWORK_FLAG, f"--export_dir={tmp_path}/exports"]) == 0
    assert (tmp_path / "exports" / "latest").is_symlink()


@pytest.mark.parametrize("make", [os.link, pytest.param(os.symlink, marks=pytest.mark.long)])
def test_what_waits_under_a_temporary_name_is_not_written_over(stranger, digits_dataset, canary, capsys, make):
    for name in ("config.json", "history.csv", "exports.json", "metrics.json", "curves.png", "confusion.png"):
        (canary / name).write_text(f"canary {name}\n")
        if make is os.link:  # train refuses links
            make(canary / name, stranger / f"{name}.tmp")
    for name in ("graph.pbtxt", ".lock", "history.csv", "exports.json"):  # not only temporary names
        (stranger / name).touch()
        (canary / f"of_{name}").write_bytes((stranger / name).read_bytes())
        (stranger / name).unlink()
        os.link(canary / f"of_{name}", stranger / name)
    (stranger / "model.ckpt-4_temp").mkdir()
    for ending in ("data-00000-of-00001", "index"):
        (canary / ending).write_text(f"canary {ending}\n")
        make(canary / ending, stranger / "model.ckpt-4_temp" / f"part-00000-of-00001.{ending}")
    (stranger / "model.ckpt-3_temp").mkdir()  # of a process that was killed while it saved
    (stranger / "model.ckpt-3_temp" / "part-00000-of-00001.index").touch()
    before = hashes(canary)
    assert main(train_args(digits_dataset, stranger)) == 0
    assert hashes(canary) == before
    assert not (stranger / "model.ckpt-3_temp").exists()
    assert not [
        path.name for path in stranger.iterdir() if path.name.startswith(".") and not path.name.endswith(".lock")
    ]


def test_what_a_killed_writer_leaves_is_in_nobody_s_way(digits_dataset, tmp_path, monkeypatch, capsys):
    model_dir = tmp_path / "model"

    def killed(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("estimator_app.runtime.files.os.replace", killed)
        patched.setattr("estimator_app.runtime.files.os.unlink", lambda path: None)
        model_dir.mkdir()
        with pytest.raises(KeyboardInterrupt):
            files.write(f"{model_dir}/config.json", "half")
    (remnant,) = model_dir.iterdir()
    check_free(str(model_dir))
    (model_dir / "folder").mkdir()
    with pytest.raises(OSError, match=r"cannot write '.*/folder': Is a directory"):
        files.write(f"{model_dir}/folder", "text")
    assert sorted(model_dir.iterdir()) == sorted([remnant, model_dir / "folder"])


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
def test_a_checkpoint_to_come_with_a_second_name_is_refused(stranger, digits_dataset, canary, capsys, ending):
    os.link(canary / "secret.txt", stranger / f"model.ckpt-4.{ending}")
    before = hashes(canary)
    line = refused(capsys, *train_args(digits_dataset, stranger))
    assert f"'{stranger}/model.ckpt-4.{ending}' has a second hard link" in line
    assert hashes(canary) == before


def test_a_best_export_that_holds_links_is_not_copied(stranger, digits_dataset, canary, capsys):
    listed = json.loads((stranger / "exports.json").read_text())
    shutil.rmtree(stranger / listed["last"][0]["path"])
    (stranger / "exports.json").write_text(json.dumps(listed | {"last": []}))
    best = stranger / listed["best"][0]["path"]
    (best / "assets" / "leak").symlink_to(canary / "secret.txt")
    (best / "assets.extra" / "sub").symlink_to(canary / "sub")
    before = hashes(canary)
    args = [arg.replace("--train_steps=4", "--train_steps=2") for arg in train_args(digits_dataset, stranger)]
    assert main(args) == 0
    assert hashes(canary) == before
    export = stranger / json.loads((stranger / "exports.json").read_text())["last"][0]["path"]
    assert (export / "saved_model.pb").exists()
    assert not [path for path in export.rglob("*") if path.name in ("leak", "sub")]


PIPES = [
    ("evaluate", "config.json"),
    ("evaluate", "checkpoint"),
    ("evaluate", "model.ckpt-2.index"),
    ("evaluate", "model.ckpt-2.data-00000-of-00001"),
    ("export", "checkpoint"),
    ("train", "config.json"),
    ("train", ".lock"),
    ("train", "history.csv"),
    ("train", "exports.json"),
    ("train", "metrics.json"),
    ("train", "config.json.tmp"),
    ("preflight", "config.json"),
    ("predict", "exports.json"),
    ("predict", "export/N/assets/classes.txt"),
    ("predict", "export/N/saved_model.pb"),
    ("predict", "export/N/variables/variables.index"),
    ("evaluate_export", "export/N/assets.extra/config.json"),
    ("evaluate_export", "export/N/assets.extra/metrics.json"),
]


@pytest.mark.parametrize(("command", "name"), PIPES)
def test_a_named_pipe_ends_a_command_instead_of_keeping_it_for_ever(
    stranger, digits_dataset, digits, capsys, command, name
):
    """A command that opened the pipe would wait until a writer comes, and none does."""
    export = next(path.name for path in (stranger / "export").iterdir() if path.name.isdigit())
    path = stranger / name.replace("/N/", f"/{export}/")
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    export_dir = f"{stranger}/export/{export}" if "/N/" in name else str(stranger)
    args = {
        "train": train_args(digits_dataset, stranger),
        "evaluate": ["evaluate", f"--model_dir={stranger}", NETWORK_FLAG],
        "export": ["export", f"--model_dir={stranger}", NETWORK_FLAG],
        "preflight": ["preflight", f"--model_dir={stranger}", f"--dataset={digits_dataset.path}", "--topology=v5e:1x1"],
        "predict": ["predict", f"--export_dir={export_dir}", str(next((digits / "3").iterdir()))],
        "evaluate_export": ["evaluate", f"--export_dir={export_dir}"],
    }
    with ended_after(60):
        assert f"'{path}' is a named pipe, not a file or a folder; remove it" in refused(capsys, *args[command])


@contextlib.contextmanager
def ended_after(seconds: int):
    """Ends this process if what is inside takes longer: TensorFlow waits in C++, where Python handles no signal."""
    code = f"import os, signal, sys, time; time.sleep({seconds}); os.kill(int(sys.argv[1]), signal.SIGKILL)"
    with subprocess.Popen([sys.executable, "-c", code, str(os.getpid())]) as watch:
        try:
            yield
        finally:
            watch.kill()


def test_a_pipe_and_a_device_behind_links_are_found_and_loops_of_links_end(tmp_path):
    (tmp_path / "export" / "assets").mkdir(parents=True)
    (tmp_path / "export" / "assets" / "loop").symlink_to(tmp_path / "export")
    (tmp_path / "export" / "nowhere").symlink_to("not_there")
    files.check_plain(f"{tmp_path}/export", recursive=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "export" / "variables").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "zeros").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="export/variables/zeros' is a device, not a file or a folder; remove it"):
        files.check_plain(f"{tmp_path}/export", recursive=True)
    files.check_plain(f"{tmp_path}/export")  # its own names only
    os.mkfifo(tmp_path / "elsewhere" / "model.ckpt-2.index")
    files.check_plain(f"{tmp_path}/elsewhere", beginning="model.ckpt-20.")
    for folder in (f"{tmp_path}/elsewhere", f"{tmp_path}/elsewhere/"):
        with pytest.raises(ValueError, match="is a named pipe"):
            files.check_plain(folder, beginning="model.ckpt-2.")
    files.check_plain("gs://bucket/model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"eval_batch_size": 10**9},
            "--eval_batch_size=1000000000 with images of 16 x 16 pixels needs at least 21,504",
        ),
        ({"eval_batch_size": 2**62}, "--eval_batch_size=4611686018427387904 with images of 16 x 16 pixels needs"),
        ({"image_size": 20_000}, "--eval_batch_size=100 with images of 20000 x 20000 pixels needs at least 3,360.0 GB"),
        ({"image_size": 2**40}, "train another model with a smaller --image_size"),
    ],
)
def test_a_batch_that_does_not_fit_into_memory_is_refused(stranger, capsys, change, message):
    config = json.loads((stranger / "config.json").read_text())
    for name, value in change.items():
        (config["input"] if name in config["input"] else config)[name] = value
    (stranger / "config.json").write_text(json.dumps(config))
    line = refused(capsys, "evaluate", f"--model_dir={stranger}", NETWORK_FLAG)
    assert message in line
    assert "GB are available; " in line


def test_a_batch_of_training_or_of_an_export_that_does_not_fit_is_refused_or_made_smaller(
    stranger, digits_dataset, tmp_path, capsys
):
    for flag in ("--train_batch_size", "--eval_batch_size"):
        new = ["train", f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/new", f"{flag}=1000000000"]
        line = refused(capsys, *new, "--image_size=16", "--trainer=tf_distribute")
        assert f"{flag}=1000000000 with images of 16 x 16 pixels needs at least" in line
        assert not (tmp_path / "new").exists()
    assert main(["evaluate", f"--export_dir={stranger}", "--eval_batch_size=1000000000"]) == 0
    assert "validation images" in capsys.readouterr().out
    export = next(path for path in (stranger / "export").iterdir() if path.name.isdigit())
    config = json.loads((export / "assets.extra" / "config.json").read_text())
    config["input"]["image_size"] = 200_000
    (export / "assets.extra" / "config.json").write_text(json.dumps(config))
    assert "images of 200000 x 200000 pixels needs" in refused(capsys, "evaluate", f"--export_dir={export}")


SEQUENCE = "\x1b]0;PWN\x07\x9b31m\u202e\n"
ESCAPED = r"\x1b]0;PWN\x07\x9b31m\u202e\n"


def test_no_name_of_a_stranger_s_is_a_command_to_the_terminal(stranger, digits, tmp_path, monkeypatch, capsys):
    config = json.loads((stranger / "config.json").read_text())
    (stranger / "config.json").write_text(json.dumps(config | {"dataset": f"/tmp/x{SEQUENCE}"}))
    assert ESCAPED.removesuffix(r"\n") in refused(capsys, "evaluate", f"--model_dir={stranger}", NETWORK_FLAG)
    export = next(path for path in (stranger / "export").iterdir() if path.name.isdigit())
    name = SEQUENCE.removesuffix("\n")
    (export / "assets" / "classes.txt").write_text("".join(f"{name}{label}\n" for label in range(10)))
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    shutil.copy(next((digits / "3").iterdir()), pictures / f"good{SEQUENCE}.png")
    (pictures / f"bad{SEQUENCE}.jpg").write_text("no image")
    (pictures / f"other.{SEQUENCE}").touch()
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda answer=is_terminal: answer)
        assert main(["predict", f"--export_dir={export}", str(pictures)]) == 1
        out, err = capsys.readouterr()
        assert all(line.isprintable() for line in (out + err).splitlines())
        assert err.splitlines() == [
            f"{pictures}/bad{ESCAPED}.jpg: not an image: begins with b'no image'",
            f"skipped in folders: 1 named *.{ESCAPED}",
        ]
        if is_terminal:
            assert out.count("\n") == 1
            assert ESCAPED.removesuffix(r"\n") in out
            assert out.endswith(f"{pictures}/good{ESCAPED}.png\n")
        else:
            fields = json.loads(out)
            assert fields["file"] == f"{pictures}/good{SEQUENCE}.png"
            assert fields["class"] == f"{name}{fields['label']}"


def test_json_shows_letters_and_hides_what_is_not_printable():
    for value in ({"höhe": "日本 🙂"}, {"a\x7f\x9b\u202e\U000e0001": [SEQUENCE, 1.5, None]}, "\udcff"):
        line = to_json(value)
        assert line.isprintable()
        assert json.loads(line) == value
    assert to_json("höhe 日本 🙂") == '"höhe 日本 🙂"'


def test_pictures_of_long_names_are_small(monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: figures.append(figure))
    long = "x" * 8_000
    metrics = Metrics(20, long, 4, 0.5, 1.0, confusion=((1, 2), (3, 4)))
    draw_confusion(metrics, [long, "\x1b\n" * 4_000])
    draw_curves([Row(step, long, {f"accuracy_{long}": 0.5, "loss": 1.0}) for step in (1, 2)], "loss")
    for figure in figures:
        assert max(figure.get_size_inches()) < 15
        texts = [text.get_text() for text in figure.findobj(Text)]
        assert max(map(len, texts)) < 120
        assert any("…" in text for text in texts)
        assert all(line.isprintable() for text in texts for line in text.split("\n"))
    assert len(figures) == 2
