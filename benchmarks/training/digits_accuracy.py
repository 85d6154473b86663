"""The demo's accuracy for seeds 0 to 4, each of which chooses the held-out digits, the order and the first weights.

python -m benchmarks.training.digits_accuracy [--folder=/tmp/digits_accuracy] [--trainer=jax] [--seeds=5]

With --trainer=keras_tensorflow or keras_jax, examples/keras_train.py trains on the same datasets. The Python that runs
this has to have the packages of the trainer:

    .venv-newest/bin/python -m benchmarks.training.digits_accuracy --trainer=keras_jax
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

TRAINERS = ("tpu_estimator", "tf_distribute", "jax", "keras_tensorflow", "keras_jax")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/digits_accuracy"))
    parser.add_argument("--trainer", default="tpu_estimator", choices=TRAINERS, help="what trains")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    arguments = parser.parse_args()
    folder = arguments.folder / arguments.trainer
    framework = "jax" if "jax" in arguments.trainer else "tensorflow"
    print(f"Python {platform.python_version()}, {framework} {version(framework)}\n")
    print("| seed | held-out accuracy | held-out images | seconds |\n|---|---|---|---|")
    accuracies = []
    for seed in range(arguments.seeds):
        start = time.monotonic()
        train = by_keras if arguments.trainer.startswith("keras_") else by_demo
        accuracy, num_examples = train(folder / str(seed), seed, arguments.trainer)
        accuracies.append(accuracy)
        seconds = time.monotonic() - start
        print(f"| {seed} | {accuracy:.2%} | {num_examples} | {seconds:.0f} |", flush=True)
    print(f"\nmean {statistics.mean(accuracies):.2%}, lowest {min(accuracies):.2%}")


def by_demo(folder: Path, seed: int, trainer: str) -> tuple[float, int]:
    """Returns (accuracy, held-out images) of the commands of `make demo` themselves, from sample to predict."""
    environment = [f"PYTHON_DEMO={sys.executable}", f"VENV_DEMO={sys.prefix}"]  # this one, whose framework is reported
    command = ["make", "demo", f"SEED={seed}", f"DEMO={folder}", f"TRAINER={trainer}", *environment]
    subprocess.run(command, check=True, capture_output=True)
    metrics = json.loads((folder / "model" / "metrics.json").read_text())
    return metrics["accuracy"], metrics["num_examples"]


def by_keras(folder: Path, seed: int, trainer: str) -> tuple[float, int]:
    """Returns the same of examples/keras_train.py on the dataset of `make demo`, with its options."""
    images, dataset, model_dir = folder / "digits", folder / "dataset", folder / "model"
    splits = ["--splits=train=80%,validation=20%", "--shard_size=100KB", f"--seed={seed}"]
    options = ["--no_flip", "--eval_crop=1", f"--seed={seed}"]
    commands = (
        ["-m", "jpeg2tpu", "sample", str(images)],
        ["-m", "jpeg2tpu", "convert", f"--input={images}", f"--output={dataset}", *splits],
        ["examples/keras_train.py", f"--dataset={dataset}", f"--model_dir={model_dir}", *options],
    )
    environment = os.environ | {"KERAS_BACKEND": trainer.removeprefix("keras_"), "PYTHONPATH": os.getcwd()}
    for command in commands:
        process = subprocess.run(
            [sys.executable, *command], check=True, capture_output=True, text=True, env=environment
        )
    validation = json.loads((dataset / "manifest.json").read_text())["splits"]["validation"]
    accuracy = float(ast.literal_eval(process.stdout.splitlines()[-1])["accuracy"])
    return accuracy, sum(shard["num_examples"] for shard in validation["shards"])


if __name__ == "__main__":
    main()
