"""The same training in four frameworks: training loss and validation accuracy by step, of scikit-learn's digits.

    python -m benchmarks.frameworks [--seeds=3] [--newest=.venv-newest/bin/python]

estimator_app trains its network `cnn` with TPUEstimator; examples/keras_train.py on TensorFlow and on JAX, and
examples/jax_train.py, train the same one with --newest, the Python of an environment that has Keras 3 and JAX. Each
seed chooses the validation images, the order of training, the crops and the first weights.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure

STEPS, EVERY = 600, 100
COMMON = ("--no_flip", f"--train_steps={STEPS}", f"--steps_per_eval={EVERY}", "--learning_rate=0.1")
COLUMNS = {
    "framework": "way",
    "steps": "step",
    "training loss": "loss:.3f",
    "validation accuracy": "accuracy:.1%",
    "lowest": "lowest:.1%",
    "highest": "highest:.1%",
}


class Point(NamedTuple):
    """Mean loss of the steps since the point before, and the accuracy of a validation, from 0 to 1."""

    loss: float
    accuracy: float


Curve = Mapping[int, Point]


def by_estimator(python: str, dataset: Path, model_dir: Path, seed: int) -> Curve:
    flags = ["--trainer=tpu_estimator", "--network=cnn", "--image_size=32", "--train_batch_size=64"]
    command = ["-m", "jpeg2tpu", "train", f"--dataset={dataset}", f"--model_dir={model_dir}", f"--seed={seed}"]
    _output(sys.executable, *command, *flags, *COMMON)
    lines = (model_dir / "history.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    return {int(row["step"]): Point(float(row["train_loss"]), float(row["accuracy"])) for row in rows}


def by_keras(backend: str) -> Callable[[str, Path, Path, int], Curve]:
    def train(python: str, dataset: Path, model_dir: Path, seed: int) -> Curve:
        command = ["examples/keras_train.py", f"--dataset={dataset}", f"--model_dir={model_dir}", f"--seed={seed}"]
        said = _output(python, *command, *COMMON, KERAS_BACKEND=backend)
        losses = [float(found) for found in re.findall(r"^\d+/\d+ - .* - loss: (\S+)", said, re.MULTILINE)]
        metrics = [ast.literal_eval(found) for found in re.findall(r"^{.*}$", said, re.MULTILINE)]
        points = [Point(loss, found["accuracy"]) for loss, found in zip(losses, metrics, strict=True)]
        return dict(zip(range(EVERY, STEPS + 1, EVERY), points, strict=True))

    return train


def by_jax(python: str, dataset: Path, model_dir: Path, seed: int) -> Curve:
    command = ["examples/jax_train.py", f"--dataset={dataset}", f"--model_dir={model_dir}", f"--seed={seed}"]
    said = _output(python, *command, "--batch_size=64", "--log_steps=1", *COMMON)
    losses = {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss (\S+)", said, re.MULTILINE)}
    evaluations = re.findall(r"^step (\d+): \d+ examples, accuracy (\S+),", said, re.MULTILINE)
    return {
        int(step): Point(
            statistics.mean(losses[number] for number in range(int(step) - EVERY + 1, int(step) + 1)), float(accuracy)
        )
        for step, accuracy in evaluations
    }


FRAMEWORKS = {
    "TPUEstimator": by_estimator,
    "Keras 3 on TensorFlow": by_keras("tensorflow"),
    "Keras 3 on JAX": by_keras("jax"),
    "JAX with Flax": by_jax,
}


def _output(python: str, *command: str, **environment: str) -> str:
    """Returns what a program printed; raises CalledProcessError if it failed."""
    changed = {"PYTHONPATH": os.getcwd(), "TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    done = subprocess.run(
        [python, "-W", "ignore", *command], check=True, stdout=subprocess.PIPE, text=True, env=os.environ | changed
    )
    return done.stdout


def curves(newest: str, seeds: Sequence[int]) -> dict[str, list[Curve]]:
    """Returns a curve for each seed, by framework."""
    found: dict[str, list[Curve]] = {way: [] for way in FRAMEWORKS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            images, dataset = Path(folder, "digits"), Path(folder, f"dataset{seed}")
            splits = ["--splits=train=80%,validation=20%", f"--seed={seed}"]
            _output(sys.executable, "-m", "jpeg2tpu", "sample", str(images))
            command = ["-m", "jpeg2tpu", "convert", f"--input={images}", f"--output={dataset}", *splits]
            _output(sys.executable, *command)
            for number, (way, train) in enumerate(FRAMEWORKS.items()):
                found[way].append(train(newest, dataset, Path(folder, f"model{seed}-{number}"), seed))
                print(f"seed {seed}: {way}", file=sys.stderr)
    return found


def rows_of(found: Mapping[str, Sequence[Curve]]) -> list[dict[str, Any]]:
    """Returns a row for each framework and step: means over the seeds, and the range of the accuracy."""
    rows = []
    for way, of_seeds in found.items():
        for step in of_seeds[0]:
            points = [curve[step] for curve in of_seeds]
            accuracies = [point.accuracy for point in points]
            row = {"loss": statistics.mean(point.loss for point in points), "accuracy": statistics.mean(accuracies)}
            rows.append({"way": way, "step": step, **row, "lowest": min(accuracies), "highest": max(accuracies)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--newest", default=".venv-newest/bin/python", help="Python with Keras 3 and JAX")
    flags = parser.parse_args()
    code = (
        "from importlib.metadata import version as v; print(*(f'{n} {v(n)}' for n in ('tensorflow', 'keras', 'jax')))"
    )
    notes = [
        f"means over {flags.seeds} seeds, from 0; the loss is the mean of the {EVERY} steps before",
        f"Keras 3 and JAX: {_output(flags.newest, '-c', code).strip()}",
    ]
    measure.keep("frameworks", measure.Table(rows_of(curves(flags.newest, range(flags.seeds))), COLUMNS, notes))


if __name__ == "__main__":
    main()
