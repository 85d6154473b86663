"""The same training in four frameworks: training loss and validation accuracy by step, of scikit-learn's digits.

    python -m benchmarks.training.frameworks [--seeds=3] [--newest=.venv-newest/bin/python] [--steps=600]
        [--steps_per_eval=100]

estimator_app trains its network `cnn` with TPUEstimator, and with --trainer=jax by --newest, the Python of an
environment that has Keras 3 and JAX; examples/keras_train.py trains the same one there, on TensorFlow and on JAX. Each
seed chooses the validation images, the order of training, the crops and the first weights. A few --steps only show that
what each of them prints and writes can be read.
"""

from __future__ import annotations

import argparse
import ast
import csv
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

COMMON = ("--no_flip", "--learning_rate=0.1")
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


class Run(NamedTuple):
    """What a framework trains.

    Attributes:
      newest: Python of an environment that has Keras 3 and JAX.
      dataset: Folder of the dataset.
      model_dir: Folder for what is trained.
      seed: Seed of the order, the crops and the first weights.
      steps: Number of steps.
      every: Number of steps between two evaluations; it divides `steps`.
    """

    newest: str
    dataset: Path
    model_dir: Path
    seed: int
    steps: int
    every: int

    @property
    def flags(self) -> list[str]:
        """Flags that all of the programs have."""
        files = [f"--dataset={self.dataset}", f"--model_dir={self.model_dir}", f"--seed={self.seed}"]
        return [*files, f"--train_steps={self.steps}", f"--steps_per_eval={self.every}", *COMMON]


def by_command(trainer: str) -> Callable[[Run], Curve]:
    def train(run: Run) -> Curve:
        python = run.newest if trainer == "jax" else sys.executable
        flags = [f"--trainer={trainer}", "--network=cnn", "--image_size=32", "--train_batch_size=64"]
        _output(python, "-m", "jpeg2tpu", "train", *run.flags, *flags)
        with (run.model_dir / "history.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return {int(row["step"]): Point(float(row["train_loss"]), float(row["accuracy"])) for row in rows}

    return train


def keras_losses(printed: str) -> dict[int, float]:
    """Returns the losses that examples/keras_train.py printed, by step: means since the evaluation before."""
    return {
        int(step): float(loss) for step, loss in re.findall(r"^step (\d+): mean loss ([^,]+),", printed, re.MULTILINE)
    }


def by_keras(backend: str) -> Callable[[Run], Curve]:
    def train(run: Run) -> Curve:
        printed = _output(run.newest, "examples/keras_train.py", *run.flags, KERAS_BACKEND=backend)
        losses = keras_losses(printed)
        metrics = [ast.literal_eval(line) for line in re.findall(r"^{.*}$", printed, re.MULTILINE)]
        steps = range(run.every, run.steps + 1, run.every)
        return {step: Point(losses[step], values["accuracy"]) for step, values in zip(steps, metrics, strict=True)}

    return train


FRAMEWORKS = {
    "TPUEstimator": by_command("tpu_estimator"),
    "Keras 3 on TensorFlow": by_keras("tensorflow"),
    "Keras 3 on JAX": by_keras("jax"),
    "JAX, by jpeg2tpu train --trainer=jax": by_command("jax"),
}


def _output(python: str, *command: str, **environment: str) -> str:
    """Returns what a program printed; raises CalledProcessError if it failed."""
    changed = {"PYTHONPATH": os.getcwd(), "TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    process = subprocess.run(
        [python, "-W", "ignore", *command], check=True, stdout=subprocess.PIPE, text=True, env=os.environ | changed
    )
    return process.stdout


def curves(newest: str, seeds: Sequence[int], steps: int, every: int) -> dict[str, list[Curve]]:
    """Returns a curve for each seed, by framework; the arguments are as the attributes of a Run."""
    results: dict[str, list[Curve]] = {way: [] for way in FRAMEWORKS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            images, dataset = Path(folder, "digits"), Path(folder, f"dataset{seed}")
            splits = ["--splits=train=80%,validation=20%", f"--seed={seed}"]
            _output(sys.executable, "-m", "jpeg2tpu", "sample", str(images))
            command = ["-m", "jpeg2tpu", "convert", f"--input={images}", f"--output={dataset}", *splits]
            _output(sys.executable, *command)
            for number, (way, train) in enumerate(FRAMEWORKS.items()):
                run = Run(newest, dataset, Path(folder, f"model{seed}-{number}"), seed, steps, every)
                curve = train(run)
                if list(curve) != list(range(every, steps + 1, every)):
                    raise ValueError(f"{way} has evaluations at steps {list(curve)}, not at each {every} of {steps}")
                results[way].append(curve)
                print(f"seed {seed}: {way}", file=sys.stderr)
    return results


def rows_of(results: Mapping[str, Sequence[Curve]]) -> list[dict[str, Any]]:
    """Returns a row for each framework and step: means over the seeds, and the range of the accuracy."""
    rows = []
    for way, seed_curves in results.items():
        for step in seed_curves[0]:
            points = [curve[step] for curve in seed_curves]
            accuracies = [point.accuracy for point in points]
            row = {"loss": statistics.mean(point.loss for point in points), "accuracy": statistics.mean(accuracies)}
            rows.append({"way": way, "step": step, **row, "lowest": min(accuracies), "highest": max(accuracies)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--newest", default=".venv-newest/bin/python", help="Python with Keras 3 and JAX")
    parser.add_argument("--steps", type=int, default=600, help="of each training")
    parser.add_argument("--steps_per_eval", type=int, default=100, help="a divisor of --steps")
    flags = parser.parse_args()
    code = (
        "from importlib.metadata import version as v; print(*(f'{n} {v(n)}' for n in ('tensorflow', 'keras', 'jax')))"
    )
    notes = [
        f"means over {flags.seeds} seeds, from 0; the loss is the mean of the {flags.steps_per_eval} steps before",
        f"Keras 3 and JAX: {_output(flags.newest, '-c', code).strip()}",
    ]
    results = curves(flags.newest, range(flags.seeds), flags.steps, flags.steps_per_eval)
    measure.keep("frameworks", measure.Table(rows_of(results), COLUMNS, notes))


if __name__ == "__main__":
    main()
