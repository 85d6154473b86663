"""Training's input by tf.data and by grain without TensorFlow, each in a process of its own; a part of input.py.

    python -m benchmarks.input.loaders DATASET WAY [no_opencv]
        ──▶  {"images/s": …, "cpu_ms": …, "peak_mb": …, "first_batch": seconds since the process began to import}

The same records, windows and flips. Both have a thread for each core.
"""

from __future__ import annotations

import time

_BEGAN = time.perf_counter()

import functools  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks.own_cost import cost_of  # noqa: E402

BATCH_SIZE = 64
IMAGE_SIZE = 224
COUNT = 4000
THREADS = len(os.sched_getaffinity(0))
WAYS = {
    "tf.data": ("tf_data",),
    "grain without TensorFlow, OpenCV resizes": ("grain",),
    "grain without TensorFlow, NumPy resizes": ("grain", "no_opencv"),
}
COLUMNS = {
    "224 px": "way",
    "CPU ms per image": "cpu_ms:.3f",
    "images/s": "images/s:,.0f",
    "first batch after, seconds": "first_batch:.2f",
    "peak MB": "peak_mb:,.0f",
}


def tf_data(dataset: str) -> Iterator[Any]:
    import tpu_input

    input_fn = tpu_input.make_train_input_fn(dataset, tpu_input.InputConfig(IMAGE_SIZE))
    return iter(input_fn({"batch_size": BATCH_SIZE}))


def grain(dataset: str) -> Iterator[Any]:
    import grain

    import tpu_input

    source = tpu_input.TrainSource(dataset, tpu_input.InputConfig(IMAGE_SIZE), BATCH_SIZE)
    reading = grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=2 * BATCH_SIZE)
    return iter(grain.MapDataset.source(source).to_iter_dataset(reading).batch(BATCH_SIZE, drop_remainder=True))


def main(dataset: str, way: str, *options: str) -> None:
    if "no_opencv" in options:
        sys.modules["cv2"] = None  # type: ignore[assignment]  # as if it were not installed
    batches = {"tf_data": tf_data, "grain": grain}[way](dataset)
    next(batches)
    first_batch = time.perf_counter() - _BEGAN
    if way == "grain" and "tensorflow" in sys.modules:
        raise RuntimeError("TensorFlow was imported")
    num_batches = int(json.loads((Path(dataset) / "manifest.json").read_text())["num_inputs"]) // BATCH_SIZE
    for _ in range(num_batches):  # not counted: threads start, lanes open
        next(batches)

    def epoch() -> int:
        for _ in range(num_batches):
            next(batches)
        return BATCH_SIZE * num_batches

    print(json.dumps(cost_of(epoch) | {"first_batch": first_batch}), flush=True)
    os._exit(0)  # without waiting for threads that read ahead


def without_tensorflow(folder: Path, count: int | None, repeats: int | None) -> Any:
    """Returns a row for each way, and how grain's CPU time stands to tf.data's."""
    from benchmarks import measure
    from benchmarks.corpus import SMALL
    from benchmarks.input.start import make_dataset

    count = count or COUNT
    dataset = folder / f"datasets{count}of{SMALL[0]}" / "original"
    make_dataset(dataset, count, SMALL)

    def run(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.input.loaders", dataset, *arguments]
        return measure.check(measure.run(command), command).result

    ways = WAYS
    if not importlib.util.find_spec("cv2"):
        ways = {name: arguments for name, arguments in WAYS.items() if "OpenCV" not in name}
        print("left out: OpenCV, which is not installed: pip install opencv-python-headless")
    results = measure.in_turn(
        {name: functools.partial(run, *arguments) for name, arguments in ways.items()}, repeats or 3
    )
    rows = [{"way": name} | measure.medians(runs) for name, runs in results.items()]
    goals = [("grain without TensorFlow, OpenCV resizes", "tf.data", 1.0)]
    return measure.Table(rows, COLUMNS, measure.against(goals, {row["way"]: row["cpu_ms"] for row in rows}, "CPU time"))


if __name__ == "__main__":
    main(*sys.argv[1:])
