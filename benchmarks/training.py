"""What the input and the loop cost training: real input beside one batch repeated, and the loop outside TPUEstimator.

    python -m benchmarks.training --network=resnet18 --image_size=64 [--resize_shorter=96] [--part=input|loop]

The images are photographs, 500 x 375 pixels unless resized, which the benchmark makes and converts.
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
from pathlib import Path
from unittest import mock

from benchmarks import measure
from benchmarks.corpus import make_corpus
from estimator_app.quiet import import_tensorflow

import_tensorflow(verbose=False)


from estimator_app import loop, rounds  # noqa: E402
from estimator_app.config import TrainConfig  # noqa: E402
from estimator_app.estimator import make_estimator, tpu  # noqa: E402
from tpu_input import make_train_input_fn, read_manifest  # noqa: E402

ROUNDS = 3


def dataset_of(folder: Path, resize_shorter: int | None):
    """Returns the manifest of 1,000 photographs, a fifth of them held out."""
    make_corpus(folder / "jpegs", 1000)
    output = folder / f"dataset{resize_shorter or ''}"
    flags = [f"--input={folder}/jpegs", f"--output={output}", "--splits=train=80%,validation=20%"]
    flags += [f"--resize_shorter={resize_shorter}"] if resize_shorter else []
    subprocess.run([sys.executable, "-m", "beam_pipelines", "convert", *flags], check=True, stdout=subprocess.DEVNULL)
    return read_manifest(output)


def one_batch(manifest, config, start_step=0):
    """Returns an input_fn whose first batch comes for ever: what training takes when its input takes nothing."""
    real = make_train_input_fn(manifest, config)
    return lambda params, config=None: real(params, config).take(1).cache().repeat()


def compare_input(manifest, config) -> measure.Table:
    """Returns images/s of both inputs; they take turns, for the machine is not equally fast all the time."""
    ways, found = {"one batch": one_batch, "real input": make_train_input_fn}, defaultdict(list)
    steps = config.train_steps // (2 * ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        estimators = {name: make_estimator(config, f"{folder}/{name}") for name in ways}
        for step in range(0, ROUNDS * steps, steps):
            for name, input_fn_of in ways.items():
                with mock.patch.object(rounds, "make_train_input_fn", input_fn_of):
                    values = rounds.train(estimators[name], manifest, config, step, step + steps, threading.Event())
                found[name].append(values["images_per_second"])
    for name, rates in found.items():
        print(f"{name}: {', '.join(f'{rate:.1f}' for rate in rates)} images/s", flush=True)
    ratio = statistics.median(a / b for a, b in zip(found["one batch"], found["real input"], strict=True))
    rows = [{"way": name, "images/s": statistics.median(rates)} for name, rates in found.items()]
    note = f"real input takes {ratio:.3f} times as long, in the median of {ROUNDS} turns"
    return measure.Table(rows, {"way": "way", "images/s": "images/s:,.1f"}, (note,))


def share_of_loop(manifest, config) -> measure.Table:
    """Returns where the seconds of a whole run go."""
    seconds = defaultdict(float)

    def timed(name, method):
        def call(*args, **kwargs):
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                seconds[name] += time.perf_counter() - began

        return call

    methods = {name: timed(name, getattr(tpu.TPUEstimator, name)) for name in ("train", "evaluate")}
    methods["export_saved_model"] = timed("exports", tpu.TPUEstimator.export_saved_model)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(tpu.TPUEstimator, **methods):
        loop.run(manifest, config, f"{folder}/model", f"{folder}/export", report=lambda line: None)
    whole = time.perf_counter() - began
    seconds["the rest"] = whole - sum(seconds.values())
    rows = [{"way": name, "seconds": value, "share": value / whole} for name, value in seconds.items()]
    columns = {f"{config.train_steps} steps": "way", "seconds": "seconds:.2f", "share": "share:.2%"}
    return measure.Table(rows, columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/jpeg2tpu_training"))
    parser.add_argument("--resize_shorter", type=int, help="of the stored photographs (default: as they are, 375)")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--image_size", type=int, default=64)
    parser.add_argument("--train_batch_size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--part", choices=["input", "loop"], action="append")
    flags = parser.parse_args()
    print(measure.in_words(measure.machine()), "\n")
    manifest = dataset_of(flags.folder, flags.resize_shorter)
    options = vars(flags) | {"dataset": manifest.path, "split": "validation", "eval_batch_size": 100}
    options |= {"train_steps": flags.steps, "steps_per_eval": flags.steps, "learning_rate": 0.01}
    config = TrainConfig.of(manifest, options | {"iterations_per_loop": 100})
    for part in flags.part or ["input", "loop"]:
        measure.keep(f"training_{part}", {"input": compare_input, "loop": share_of_loop}[part](manifest, config))


if __name__ == "__main__":
    main()
