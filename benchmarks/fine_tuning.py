"""Fine-tuning with few images: digits 5 to 9, ten images of each, from random weights and after digits 0 to 4.

    python -m benchmarks.fine_tuning [--seeds=5]

A run of --network=cnn learns all images of the digits 0 to 4 (scikit-learn's, 8 x 8 pixels, enlarged to 32). Then two
runs of the same steps learn ten images of each of the digits 5 to 9: one from random weights, one with --init_from.
Each way has the learning rate of RATES that is best for it on average. Accuracies are of all other images of those
digits.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from estimator_app.runtime.tensorflow_startup import import_tensorflow

import_tensorflow(verbose=False)

from beam_pipelines import ConvertOptions, Source, convert  # noqa: E402
from beam_pipelines.sample_digits import write_sample  # noqa: E402
from estimator_app.train import train  # noqa: E402

RATES = (0.01, 0.03, 0.1)
PRE_STEPS, STEPS = 300, 30
IMAGES_OF_CLASS = 10
OPTIONS: dict[str, Any] = {
    "image_size": 32,
    "crop_area": (0.6, 1.0),
    "flip": False,
    "eval_crop": 1.0,
    "trainer": "tf_distribute",
}
_FEW: dict[str, Any] = {"train_steps": STEPS, "steps_per_eval": STEPS, "train_batch_size": 50}
COLUMNS = {"seed": "seed", "from random weights": "scratch:.1%", "--init_from": "tuned:.1%"}


@dataclasses.dataclass(frozen=True)
class Compared:
    """Accuracies of one seed, from 0 to 1: from random weights, and fine-tuned."""

    seed: int
    scratch: float
    tuned: float


def compared(folder: Path, seeds: Sequence[int], rates: Sequence[float] = RATES) -> list[Compared]:
    """Returns the accuracies of each seed, each way at the rate whose mean over the seeds is highest."""
    write_sample(str(folder / "digits"))
    scratch: dict[float, list[float]] = {rate: [] for rate in rates}
    tuned: dict[float, list[float]] = {rate: [] for rate in rates}
    for seed in seeds:
        before, few = _converted(folder, seed)
        source = f"{folder}/before{seed}"
        train(before, source, report=_quiet, train_steps=PRE_STEPS, learning_rate=0.1, seed=seed, **OPTIONS)
        for rate in rates:
            for name, init_from, found in (("scratch", "", scratch), ("tuned", source, tuned)):
                model_dir = f"{folder}/{name}{seed}_{rate}"
                options = OPTIONS | {"learning_rate": rate, "seed": seed, "init_from": init_from}
                finished = train(few, model_dir, report=_quiet, **options, **_FEW)
                found[rate].append(finished.metrics.accuracy)
                shutil.rmtree(model_dir)
    columns = zip(seeds, *(max(found.values(), key=statistics.mean) for found in (scratch, tuned)), strict=True)
    return [Compared(*column) for column in columns]


def _converted(folder: Path, seed: int) -> tuple[str, str]:
    """Returns the datasets of digits 0 to 4, and of ten images of each of the others in split train."""
    before, few = folder / f"images_before{seed}", folder / f"images_few{seed}"
    drawn = random.Random(seed)
    for digit in range(10):
        paths = sorted((folder / "digits" / str(digit)).iterdir())
        drawn.shuffle(paths)
        of_train = IMAGES_OF_CLASS if digit >= 5 else len(paths) * 4 // 5
        for number, path in enumerate(paths):
            split = "train" if number < of_train else "validation"
            target = (few if digit >= 5 else before) / split / str(digit)
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    for images in (before, few):
        convert(ConvertOptions(sources=(Source(str(images)),), output=f"{images}_tfrecords"))
    return f"{before}_tfrecords", f"{few}_tfrecords"


def _quiet(line: str) -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = compared(Path(folder), range(flags.seeds))
    gains = [row.tuned - row.scratch for row in rows]
    note = f"mean gain {statistics.mean(gains):+.1%}, from {min(gains):+.1%} to {max(gains):+.1%}"
    measure.keep("fine_tuning", measure.Table([dataclasses.asdict(row) for row in rows], COLUMNS, [note]))


if __name__ == "__main__":
    main()
