"""Ctrl-C and SIGTERM end every command with the codes that a shell knows, in real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from estimator_app.train import run as run_training
from support.app_fixtures import configured, keras_warns
from support.service import started

pytestmark = keras_warns
ROOT = Path(__file__).parents[2]

# Runs a command, which gets a signal when it calls a function for the first time.
RUNNER = """
import functools, importlib, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
place, number, package, *args = sys.argv[1:]
module, name = place.split(":")
if package != "beam_pipelines":
    from estimator_app.runtime.tensorflow_startup import import_tensorflow
    import_tensorflow(verbose=False)
module = importlib.import_module(module)
function = getattr(module, name)
def called(*args, **options):
    setattr(module, name, function)
    os.kill(os.getpid(), int(number))
    return function(*args, **options)
main = importlib.import_module(package + ".__main__").main
setattr(module, name, called)
if __name__ == "__main__":
    sys.exit(main(args))
"""


@pytest.fixture(scope="module")
def trained(digits_dataset, tmp_path_factory) -> Path:
    """The model_dir of a run of one step, with its export; not to be changed."""
    model_dir = tmp_path_factory.mktemp("trained")
    config = configured(digits_dataset, train_steps=1, trainer="tf_distribute")
    run_training(digits_dataset, config, str(model_dir), f"{model_dir}/export", report=lambda line: None)
    return model_dir


def signalled(place: str, number: signal.Signals, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that is sent a signal when it comes to `place`, "module:function"."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    command = [sys.executable, "-W", "ignore", "-c", RUNNER, place, str(int(number)), *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


CONVERT = ("convert", "--input={digits}", "--output={new}", "--shard_size=200KB", "--num_processes=2")


@pytest.mark.parametrize(
    ("place", "number", "code", "args"),
    [
        ("beam_pipelines.conversion.shard_writing:_wait", signal.SIGTERM, 143, CONVERT),
        ("beam_pipelines.conversion.shard_writing:_wait", signal.SIGINT, 130, CONVERT),
        ("beam_pipelines.commands:verify_dataset", signal.SIGTERM, 143, ("verify", "{dataset}")),
        ("beam_pipelines.commands:write_sample", signal.SIGTERM, 143, ("sample", "{new}")),
    ],
)
def test_a_command_of_beam_pipelines_ends_with_the_signals_code(
    digits, digits_dataset, tmp_path, place, number, code, args
):
    words = {"digits": digits, "dataset": digits_dataset.path, "new": tmp_path / "new"}
    # That this returns also means that no writer is left, which would hold its end of the pipe.
    process = signalled(place, number, "beam_pipelines", *(arg.format(**words) for arg in args))
    assert (process.returncode, process.stderr) == (code, "interrupted; rerun the same command to resume\n")
    assert not (tmp_path / "new" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("place", "number", "code", "args"),
    [
        ("estimator_app.evaluate:evaluate_export", signal.SIGTERM, 143, ("evaluate", "--export_dir={model}")),
        ("estimator_app.export:export_model", signal.SIGTERM, 143, ("export", "--model_dir={model}")),
        ("estimator_app.predict:predict", signal.SIGINT, 130, ("predict", "--export_dir={model}", "{digits}/0")),
    ],
)
@pytest.mark.long
def test_a_command_of_estimator_app_ends_with_the_signals_code(
    digits, digits_dataset, trained, place, number, code, args
):
    words = {"digits": digits, "dataset": digits_dataset.path, "model": trained}
    process = signalled(place, number, "estimator_app", *(arg.format(**words) for arg in args))
    assert (process.returncode, process.stderr) == (code, "interrupted\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_dispatcher_ends_with_the_signals_code(number, code):
    dispatcher = started("tpu_input", "dispatcher", "--port=0")
    assert dispatcher.stdout
    assert dispatcher.stdout.readline().startswith("dispatcher: grpc://")
    dispatcher.send_signal(number)
    dispatcher.communicate()
    assert dispatcher.returncode == code


def test_a_worker_that_waits_for_its_dispatcher_can_be_ended():
    number = signal.SIGTERM
    worker = started("tpu_input", "worker", "--dispatcher=grpc://localhost:1", "--host=localhost")
    assert worker.stdout
    assert worker.stdout.readline().startswith("worker: waiting for ")
    worker.send_signal(number)
    worker.communicate()
    # TensorFlow waits where no handler can run: the signal itself ends the process, of which a shell says the same.
    assert worker.returncode in (-number, 128 + number)


@pytest.mark.long
def test_a_benchmark_ends_with_the_signals_code(digits_dataset):
    args = ("benchmark", digits_dataset.path, "--image_size=16")
    assert signalled("tpu_input.benchmark.measure:measure", signal.SIGTERM, "tpu_input", *args).returncode == 143


@pytest.mark.parametrize("package", ["beam_pipelines", "tpu_input", "estimator_app"])
def test_help_states_the_exit_codes(package):
    command = [sys.executable, "-W", "ignore", "-m", package, "--help"]
    output = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout
    codes = output.partition("exit codes:\n")[2]
    assert re.findall(r"^ {1,2}(\d+) ", codes, re.MULTILINE) == ["0", "1", "2", "130", "143"]
