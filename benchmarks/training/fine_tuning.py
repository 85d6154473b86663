"""Fine-tuning with few images: digits 5 to 9, ten images of each, from random weights and after digits 0 to 4.

    python -m benchmarks.training.fine_tuning [--seeds=5]

A run of --network=resnet18 learns all images of the digits 0 to 4 (scikit-learn's, 8 x 8 pixels, enlarged to 32). Then
two runs of the same 60 steps learn ten images of each of the digits 5 to 9: one from random weights, one with
--init_from, at the trainer's default learning rate for this batch and at five times that. Accuracies are of all other
images of those digits.
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

BATCH = 50
DEFAULT_RATE = 0.1 * BATCH / 256
RATES = (DEFAULT_RATE, 5 * DEFAULT_RATE)
PRE_STEPS, STEPS = 150, 60
IMAGES_OF_CLASS = 10
OPTIONS: dict[str, Any] = {
    "network": "resnet18",
    "image_size": 32,
    "crop_area": (0.6, 1.0),
    "flip": False,
    "eval_crop": 1.0,
    "trainer": "tf_distribute",
}
COLUMNS = {
    "learning rate": "rate:.3f",
    "seed": "seed",
    "from random weights": "scratch:.1%",
    "--init_from": "tuned:.1%",
}


@dataclasses.dataclass(frozen=True)
class Compared:
    """Accuracies at one learning rate with one seed, from 0 to 1: from random weights, and fine-tuned."""

    rate: float
    seed: int
    scratch: float
    tuned: float


def compared(
    folder: Path,
    seeds: Sequence[int],
    rates: Sequence[float] = RATES,
    *,
    steps_before: int = PRE_STEPS,
    steps: int = STEPS,
) -> list[Compared]:
    """Returns the accuracies at each rate with each seed, after `steps` that follow the source's `steps_before`."""
    few_options = OPTIONS | {"train_steps": steps, "steps_per_eval": steps, "train_batch_size": BATCH}
    write_sample(str(folder / "digits"))
    rows = []
    for seed in seeds:
        before, few = _converted(folder, seed)
        source = f"{folder}/before{seed}"
        options = OPTIONS | {"train_batch_size": 64, "train_steps": steps_before, "learning_rate": 0.05, "seed": seed}
        train(before, source, report=_quiet, **options)
        for rate in rates:
            accuracies = []
            for init_from in ("", source):
                model_dir = f"{folder}/few"
                options = few_options | {"learning_rate": rate, "seed": seed, "init_from": init_from}
                finished = train(few, model_dir, report=_quiet, **options)
                assert finished  # evaluated, as it is without eval="watch"
                accuracies.append(finished.metrics.accuracy)
                shutil.rmtree(model_dir)
            rows.append(Compared(rate, seed, *accuracies))
    return rows


def _converted(folder: Path, seed: int) -> tuple[str, str]:
    """Returns the datasets of digits 0 to 4, and of ten images of each of the others in split train."""
    before, few = folder / f"images_before{seed}", folder / f"images_few{seed}"
    generator = random.Random(seed)
    for digit in range(10):
        paths = sorted((folder / "digits" / str(digit)).iterdir())
        generator.shuffle(paths)
        num_train = IMAGES_OF_CLASS if digit >= 5 else len(paths) * 4 // 5
        for number, path in enumerate(paths):
            split = "train" if number < num_train else "validation"
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
    notes = []
    for rate in RATES:
        gains = [row.tuned - row.scratch for row in rows if row.rate == rate]
        mean, low, high = statistics.mean(gains), min(gains), max(gains)
        notes.append(f"gain at a learning rate of {rate:.3f}: {mean:+.1%} in the mean, from {low:+.1%} to {high:+.1%}")
    measure.keep("fine_tuning", measure.Table([dataclasses.asdict(row) for row in rows], COLUMNS, notes))


if __name__ == "__main__":
    main()
