"""What the tests of estimator_app share: a small run on the real digits, and Keras' own warnings by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from estimator_app.config import TrainConfig
from estimator_app.trainers.progress import Progress
from tpu_input.dataset_format import records as record_format
from tpu_input.dataset_format.records import Manifest

OPTIONS = {
    "network": "cnn",
    "image_size": 16,
    "crop_area": (0.6, 1.0),
    "flip": False,
    "split": "validation",
    "train_batch_size": 16,
    "eval_batch_size": 100,
    "train_steps": 20,
    "steps_per_eval": 20,
    "iterations_per_loop": 10,
    "learning_rate": 0.05,
    "wrong_images": 0,
}

# Every part of a recipe together.
RECIPE = {"mixup": 0.2, "cutmix": 1.0, "clip_norm": 1.0, "ema": 0.99, "label_smoothing": 0.1, "augment": "color_jitter"}


def configured(manifest: Manifest, **options: Any) -> TrainConfig:
    return TrainConfig.of(manifest, OPTIONS | {"dataset": manifest.path} | options)


# Keras 2.15 draws seeds with randint(1, 1e9).
keras_warns = pytest.mark.filterwarnings("ignore:non-integer arguments to randrange:DeprecationWarning")


def held_out_records(manifest: Manifest) -> list[record_format.Record]:
    return records_of(manifest, "validation")


def records_of(manifest: Manifest, split: str) -> list[record_format.Record]:
    records = []
    for shard in manifest.split(split).shards:
        with open(f"{manifest.path}/{shard.name}", "rb") as file:
            records += [record_format.decode(payload) for _, payload in record_format.read_frames(file)]
    return records


def step_losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the list that the loss of every step of this process will be added to."""
    losses: list[float] = []
    log_step = Progress.add_step

    def tell(self: Progress, step: int, loss: float, *args: Any) -> None:
        losses.append(loss)
        log_step(self, step, loss, *args)

    monkeypatch.setattr(Progress, "add_step", tell)
    return losses


# What happens to the process right after a step: a signal, or a disk on which no file grows beyond a megabyte.
RUNNER = """
import os, resource, signal, sys
from estimator_app.runtime.tensorflow_startup import import_tensorflow
import_tensorflow(verbose=False)
from estimator_app.__main__ import main
from estimator_app.trainers import progress
from estimator_app.trainers.progress import Progress
progress.SECONDS_PER_LINE = 1e6
what, step, add_step = sys.argv[1], int(sys.argv[2]), Progress.add_step
def happens(self, *args):
    add_step(self, *args)
    if self.step == step and what == "FULL":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, -1))
    elif self.step == step and what:
        os.kill(os.getpid(), getattr(signal, what))
Progress.add_step = happens
sys.exit(main(sys.argv[3:]))
"""


def happening(args: list[str], event: str = "", step: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command of estimator_app in a process of its own, to which `event` happens after `step`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    command = [sys.executable, "-W", "ignore", "-c", RUNNER, event, str(step), *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=environment)
