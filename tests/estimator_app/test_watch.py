"""train --eval=watch with a watcher beside it gives what --eval=inline gives, whatever happens to the watcher."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from estimator_app.config import default_trainer
from estimator_app.model_dir.checkpoints import finished_steps, prune_checkpoints
from estimator_app.model_dir.exports import read_complete_exports
from estimator_app.model_dir.history import best, read_history
from estimator_app.model_dir.lock import EVAL_LOCK_NAME, locked
from estimator_app.train import run as run_training
from estimator_app.watch import watch
from support import small_network
from support.app_commands import FLAGS, refused, run
from support.app_fixtures import configured, keras_warns

pytestmark = keras_warns
ROOT = Path(__file__).parents[2]
TRAINERS = ["tf_distribute"] + ["tpu_estimator"] * (default_trainer() == "tpu_estimator")
NETWORK = f"--network={small_network.NAME}"
TRAINING_COLUMNS = {"train_loss", "images_per_second", "input_wait", "train_seconds", "eval_seconds"}


def train(manifest, model_dir, lines=None, **options):
    config = configured(
        manifest, **{"trainer": "tf_distribute", "eval": "watch", "network": small_network.NAME} | options
    )
    report = (lines if lines is not None else []).append
    return run_training(manifest, config, str(model_dir), f"{model_dir}/export", report=report)


def beside(command: str, model_dir, *flags: str) -> subprocess.Popen[str]:
    """Starts a command of estimator_app as a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    arguments = [sys.executable, "-W", "ignore", "-m", "estimator_app", command, f"--model_dir={model_dir}", *flags]
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


def training_beside(manifest, model_dir, trainer: str, *flags: str) -> subprocess.Popen[str]:
    steps = ("--train_steps=40", "--steps_per_eval=5", "--eval=watch")
    return beside("train", model_dir, f"--dataset={manifest.path}", f"--trainer={trainer}", *steps, *FLAGS, *flags)


def ended(process: subprocess.Popen[str]) -> str:
    """Returns what a process that ends well has printed."""
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err
    return out


def metrics(model_dir) -> list[tuple[int, dict[str, float]]]:
    """Returns step and values of each row of history.csv but those of time and training."""
    rows = read_history(str(model_dir))
    return [(row.step, {key: row.values[key] for key in row.values.keys() - TRAINING_COLUMNS}) for row in rows]


def exported_steps(model_dir) -> dict[str, list[int]]:
    return {kind: [entry["step"] for entry in read_complete_exports(str(model_dir), kind)] for kind in ("last", "best")}


def names(model_dir) -> list[str]:
    """Returns the files of a run but the numbers of exports, and times in the names of TensorBoard's files."""
    paths = {
        re.sub(r"/[0-9]{10}/|tfevents.*", "/N/", str(path.relative_to(model_dir))) for path in model_dir.rglob("*")
    }
    # TensorFlow renames its list of checkpoints from a temporary file, which stays if it is killed before.
    return sorted(name for name in paths if not re.search(r"export/.*[0-9]{10}$|^checkpoint\.tmp", name))


def assert_same_run(model_dir, other) -> None:
    assert metrics(model_dir) == metrics(other)
    assert exported_steps(model_dir) == exported_steps(other)
    first, second = (json.loads((folder / "metrics.json").read_text()) for folder in (model_dir, other))
    assert (model_dir / first.pop("export")).is_dir()
    second.pop("export")
    assert first == second
    assert names(model_dir) == names(other)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.long
@pytest.mark.core
def test_a_watcher_beside_training_gives_what_inline_evaluation_gives(digits_dataset, tmp_path, trainer):
    inline, model_dir = tmp_path / "inline", tmp_path / "model"
    ended(training_beside(digits_dataset, inline, trainer, "--eval=inline"))
    watcher = beside("watch", model_dir, "--poll_seconds=0.2")  # there is no run yet
    assert watcher.stdout
    assert watcher.stdout.readline() == f"waiting for the first checkpoint in {model_dir}\n"
    trained = ended(training_beside(digits_dataset, model_dir, trainer))
    evaluated = ended(watcher)
    assert "step 5/40: " not in trained
    assert [int(step) for step in re.findall(r"^step (\d+)/40: ", evaluated, re.MULTILINE)] == list(range(5, 41, 5))
    assert trained.splitlines()[-1].startswith("trained and saved step 40/40; to evaluate and export: ")
    assert_same_run(model_dir, inline)


@pytest.mark.long
def test_a_watcher_that_is_killed_goes_on_where_history_ends(digits_dataset, tmp_path):
    inline, model_dir = tmp_path / "inline", tmp_path / "model"
    ended(training_beside(digits_dataset, inline, "tf_distribute", "--eval=inline"))
    ended(training_beside(digits_dataset, model_dir, "tf_distribute"))
    assert finished_steps(str(model_dir)) == list(range(0, 41, 5))[1:]  # more than five wait for the watcher
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)):
        watcher = beside("watch", model_dir, "--poll_seconds=0.2")
        assert watcher.stdout
        line = watcher.stdout.readline()
        assert line.startswith("step "), line
        second = beside("watch", model_dir)
        out, err = second.communicate(timeout=100)
        assert (second.returncode, out) == (2, "")
        assert err.startswith(f"error: another process is evaluating in '{model_dir}' and holds the lock;")
        assert err.count("\n") == 1
        watcher.send_signal(number)
        watcher.communicate(timeout=100)
        assert watcher.returncode in (code, 0)
    last = metrics(model_dir)[-1][0]
    output = ended(beside("watch", model_dir))
    again = [int(step) for step in re.findall(r"^step (\d+)/40: ", output, re.MULTILINE)]
    assert again == list(range(last + 5, 41, 5))
    assert_same_run(model_dir, inline)
    assert ended(beside("watch", model_dir)).startswith("nothing to train: step 40 is done, ")


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.long
def test_training_that_is_killed_goes_on_beside_its_watcher(digits_dataset, tmp_path, trainer):
    inline, model_dir = tmp_path / "inline", tmp_path / "model"
    ended(training_beside(digits_dataset, inline, trainer, "--eval=inline"))
    watcher = beside("watch", model_dir, "--poll_seconds=0.2")
    for _ in range(2):
        before = finished_steps(str(model_dir))
        training = training_beside(digits_dataset, model_dir, trainer)
        while finished_steps(str(model_dir)) == before:
            assert training.poll() is None
            time.sleep(0.005)
        training.kill()
        training.communicate()
        assert training.returncode == -signal.SIGKILL
    ended(training_beside(digits_dataset, model_dir, trainer))
    evaluated = ended(watcher)
    assert [int(step) for step in re.findall(r"^step (\d+)/40: ", evaluated, re.MULTILINE)] == list(range(5, 41, 5))
    assert_same_run(model_dir, inline)


@pytest.fixture(scope="module")
def trained(digits_dataset, tmp_path_factory):
    """A model_dir trained with --eval=watch, without a watcher."""
    model_dir = tmp_path_factory.mktemp("trained")
    lines: list[str] = []
    assert train(digits_dataset, model_dir, lines, train_steps=9, steps_per_eval=1, train_batch_size=4) is None
    assert not [line for line in lines if line.startswith("step ")]
    return model_dir


def test_training_keeps_each_checkpoint_that_is_to_be_evaluated_and_writes_nothing_of_the_watcher(trained):
    assert finished_steps(str(trained)) == list(range(1, 10))
    files = {path.name for path in trained.iterdir()}
    assert not files & {"history.csv", "metrics.json", "exports.json", "curves.png", "export", "eval"}


def test_a_watcher_says_which_steps_it_could_not_evaluate(digits_dataset, trained, tmp_path):
    lines: list[str] = []
    copy = tmp_path / "model"
    subprocess.run(["cp", "-r", str(trained), str(copy)], check=True)
    for path in copy.glob("model.ckpt-[1-6].*"):
        path.unlink()
    next(copy.glob("model.ckpt-8.data*")).write_bytes(b"damaged")
    finished = watch(str(copy), network=small_network.NAME, report=lines.append, poll_seconds=0.01)
    assert lines[0] == "steps not evaluated, as they have no checkpoint any more: 1, 2, 3, 4, 5 and 1 more"
    assert lines[1].startswith("step 7/9: ")
    assert lines[2].startswith("step 8 was not evaluated: a checkpoint cannot be read: ")
    assert lines[3].startswith("step 9/9: ")
    assert [step for step, _ in metrics(copy)] == [7, 9]
    rows = read_history(str(copy))
    best_row = best(rows, "accuracy")
    assert best_row
    assert exported_steps(copy) == {"last": [9], "best": [best_row.step] if best_row.step == 7 else [7, 9]}
    assert finished.metrics.step == 9
    # A run that is complete is complete for training, too.
    assert train(digits_dataset, copy, train_steps=9, steps_per_eval=1, train_batch_size=4) == finished


def test_checkpoints_that_are_evaluated_are_removed_but_for_the_newest_five(trained, tmp_path):
    for path in trained.glob("model.ckpt-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "checkpoint").write_bytes((trained / "checkpoint").read_bytes())
    prune_checkpoints(str(tmp_path), evaluated=2, steps_per_eval=1)
    assert finished_steps(str(tmp_path)) == list(range(3, 10))
    prune_checkpoints(str(tmp_path), evaluated=2, steps_per_eval=3)
    assert finished_steps(str(tmp_path)) == [3, *range(5, 10)]
    prune_checkpoints(str(tmp_path), evaluated=9, steps_per_eval=3)
    assert finished_steps(str(tmp_path)) == list(range(5, 10))


def test_one_process_evaluates_a_run(digits_dataset, trained, tmp_path, capsys):
    with locked(str(trained), EVAL_LOCK_NAME):
        message = refused(capsys, "watch", f"--model_dir={trained}", NETWORK)
        assert f"another process is evaluating in {str(trained)!r} and holds the lock" in message
        with pytest.raises(ValueError, match="another process is evaluating"):
            train(digits_dataset, trained, eval="inline", train_steps=9, steps_per_eval=1, train_batch_size=4)


def test_mistakes_are_one_line(digits_dataset, trained, tmp_path, capsys):
    inline = tmp_path / "inline"
    subprocess.run(["cp", "-r", str(trained), str(inline)], check=True)
    config = (inline / "config.json").read_text().replace('"eval": "watch"', '"eval": "inline"')
    (inline / "config.json").write_text(config)
    assert "has --eval=inline, so train evaluates it" in refused(capsys, "watch", f"--model_dir={inline}", NETWORK)
    assert "poll_seconds must be above 0" in refused(capsys, "watch", f"--model_dir={tmp_path}", "--poll_seconds=0")
    flags = ("train", f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}", "--eval=watch", *FLAGS)
    assert "early_stop_patience needs eval='inline'" in refused(capsys, *flags, "--early_stop_patience=3")
    assert "give export_dir to the watcher" in refused(capsys, *flags, f"--export_dir={tmp_path}/e")


@pytest.mark.long
def test_none_evaluates_the_last_step_alone(digits_dataset, tmp_path):
    lines: list[str] = []
    finished = train(digits_dataset, tmp_path, lines, eval="none", train_steps=4, steps_per_eval=2)
    assert [step for step, _ in metrics(tmp_path)] == [4]
    assert finished == train(digits_dataset, tmp_path, eval="none", train_steps=4, steps_per_eval=2)
    assert finished_steps(str(tmp_path)) == [0, 2, 4]


@pytest.mark.long
def test_the_guides_commands_train_and_watch(digits_dataset, tmp_path, monkeypatch, capsys):
    guide = (ROOT / "docs" / "train.md").read_text().partition("\n## Evaluation during training\n")[2]
    commands = re.findall(r"^    jpeg2tpu (.*?)(?: +#.*)?$", guide.partition("\n## ")[0], re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["train", "watch"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dataset").symlink_to(digits_dataset.path)
    for command in commands:
        args = command.replace("=5000", "=4").replace("=500", "=2").split()
        assert run(capsys, *args)[0] == 0
    assert [step for step, _ in metrics(tmp_path / "model")] == [2, 4]
