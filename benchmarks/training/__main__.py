"""What the input and the loop cost training: real input beside one batch repeated, and the loop outside TPUEstimator.

    python -m benchmarks.training [--part=input|loop] [--network=resnet18] [--steps=200 of the loop]

The images are photographs, 500 x 375 pixels unless resized, which the benchmark makes and converts. Input and network
share the processor here, so that what the input takes cannot hide behind an accelerator: it adds up. Given --count, a
number of photographs, both parts are tried out in few steps.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import measure
from benchmarks.corpus import SMALL, make_corpus
from estimator_app.runtime.tensorflow_startup import import_tensorflow

import_tensorflow(verbose=False)

from estimator_app import run as run_module  # noqa: E402
from estimator_app.config import TrainConfig  # noqa: E402
from estimator_app.export import export_model  # noqa: E402
from estimator_app.train import run as run_training  # noqa: E402
from estimator_app.trainers.tpu_estimator import train as estimator_training  # noqa: E402
from estimator_app.trainers.tpu_estimator.model_fn import make_estimator, tpu  # noqa: E402
from tpu_input import InputConfig, Manifest, make_train_input_fn, read_manifest  # noqa: E402

COUNT = 1000  # photographs
TURNS, STEPS = 3, 25  # of each input
# (image_size, shorter side of what is stored or None for that of the photographs, --cache, train_batch_size)
SETTINGS = (
    (64, None, None, 128),
    (64, None, "decoded", 128),
    (64, 96, None, 128),
    (128, None, None, 64),
    (128, None, "decoded", 64),
)
INPUT_COLUMNS = {
    "image_size": "image_size",
    "stored at": "stored",
    "`--cache`": "cache",
    "one batch again and again, images/s": "one_batch:.1f",
    "real input, images/s": "real:.1f",
    "real input takes": "ratio:.3f",
}
LOOP_COLUMNS = {"where the time of a run goes": "way", "seconds": "seconds:.2f", "share": "share:.2%"}
# What the design promises, at most: the time of real input beside one batch; the share of a run that loop and exports
# take.
INPUT_GOAL, LOOP_GOAL = 1.05, 0.02


def dataset_of(folder: Path, count: int, resize_shorter: int | None) -> Manifest:
    """Returns the manifest of so many photographs, a fifth of them held out."""
    make_corpus(folder / f"jpegs{count}", count)
    output = folder / f"dataset{count}of{resize_shorter or SMALL[1]}"
    flags = [f"--input={folder}/jpegs{count}", f"--output={output}", "--splits=train=80%,validation=20%"]
    flags += [f"--resize_shorter={resize_shorter}"] if resize_shorter else []
    subprocess.run([sys.executable, "-m", "jpeg2tpu", "convert", *flags], check=True, stdout=subprocess.DEVNULL)
    return read_manifest(output)


def one_batch(manifest: Manifest, config: InputConfig, start_step: int, end_step: int) -> Callable[..., Any]:
    """Returns an input_fn whose first batch comes for ever: what training takes when its input takes nothing."""
    real = make_train_input_fn(manifest, config, start_step=start_step, end_step=end_step)
    return lambda params, config=None: real(params, config).take(1).cache().repeat()


def input_part(flags: argparse.Namespace) -> measure.Table:
    rows: list[dict[str, Any]] = []
    turns, steps = (1, 2) if flags.count else (TURNS, STEPS)
    for image_size, stored, cache, batch_size in SETTINGS[:1] if flags.count else SETTINGS:
        manifest, config = setting(flags, image_size, stored, cache, batch_size)
        row = {"image_size": image_size, "stored": stored or SMALL[1], "cache": cache or "none"}
        rows.append(row | compare_input(manifest, config, turns, steps))
    missed = [
        f"{row['image_size']} stored at {row['stored']}, cache {row['cache']}"
        for row in rows
        if row["ratio"] > INPUT_GOAL
    ]
    note = f"at most {INPUT_GOAL} times wanted" + (f": MISSED by {', '.join(missed)}" if missed else "")
    return measure.Table(rows, INPUT_COLUMNS, (note,))


def compare_input(manifest: Manifest, config: TrainConfig, turns: int, steps: int) -> dict[str, float]:
    """Returns images/s of both inputs; they take turns, for the machine is not equally fast all the time."""
    ways: dict[str, Callable[..., Any]] = {"one_batch": one_batch, "real": make_train_input_fn}
    results = defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as folder:
        estimators = {name: make_estimator(config, f"{folder}/{name}") for name in ways}
        for step in range(0, turns * steps, steps):
            for name, make_input_fn in ways.items():
                with mock.patch.object(estimator_training, "make_train_input_fn", make_input_fn):
                    values = estimator_training.train(
                        estimators[name], manifest, config, step, step + steps, threading.Event()
                    )
                results[name].append(values["images_per_second"])
    ratio = statistics.median(a / b for a, b in zip(results["one_batch"], results["real"], strict=True))
    return {name: statistics.median(rates) for name, rates in results.items()} | {"ratio": ratio}


def loop_part(flags: argparse.Namespace) -> measure.Table:
    """Returns where the seconds of a whole run go."""
    manifest, config = setting(flags, 64, None, None, 128)
    seconds = defaultdict[str, float](float)

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                seconds[name] += time.perf_counter() - began

        return call

    methods: dict[str, Any] = {name: timed(name, getattr(tpu.TPUEstimator, name)) for name in ("train", "evaluate")}
    functions: dict[str, Any] = {"export_model": timed("exports", export_model)}
    for name in ("write_pictures", "load_classifier", "find_wrong"):
        functions[name] = timed("curves, and images that are classified wrongly", getattr(run_module, name))
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.multiple(tpu.TPUEstimator, **methods),
        mock.patch.multiple(run_module, **functions),
    ):
        run_training(manifest, config, f"{folder}/model", f"{folder}/export", report=lambda line: None)
    total = time.perf_counter() - began
    seconds["the rest"] = total - sum(seconds.values())
    rows: list[dict[str, Any]] = [
        {"way": name, "seconds": value, "share": value / total} for name, value in seconds.items()
    ]
    outside = sum(row["share"] for row in rows if row["way"] not in ("train", "evaluate"))
    missed = "" if outside <= LOOP_GOAL else ": MISSED"
    note = f"{flags.steps} steps; {outside:.2%} outside training and evaluation, at most {LOOP_GOAL:.0%} wanted{missed}"
    return measure.Table(rows, LOOP_COLUMNS, (note,))


def setting(
    flags: argparse.Namespace, image_size: int, stored: int | None, cache: str | None, batch_size: int
) -> tuple[Manifest, TrainConfig]:
    """Returns a manifest, and a config of training on it."""
    manifest = dataset_of(flags.folder, flags.count or COUNT, stored)
    options: dict[str, Any] = {"dataset": manifest.path, "network": flags.network, "split": "validation"}
    options |= {"image_size": image_size, "cache": cache, "train_batch_size": batch_size, "iterations_per_loop": 100}
    options |= {"train_steps": flags.steps, "steps_per_eval": flags.steps, "learning_rate": 0.01}
    options["eval_batch_size"] = 100
    options["crop_area"] = (0.08, 1.0)  # whatever is stored
    return manifest, TrainConfig.of(manifest, options)


PARTS = {"input": input_part, "loop": loop_part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/jpeg2tpu_training"))
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--count", type=int)
    parser.add_argument("--part", choices=PARTS, action="append")
    flags = parser.parse_args()
    print(measure.in_words(measure.machine()), "\n")
    for part in flags.part or PARTS:
        measure.keep(f"training_{part}", PARTS[part](flags))


if __name__ == "__main__":
    main()
