"""CPU time of --trainer=jax beside --trainer=tf_distribute: to the end of the first step, and of each further step.

    python -m benchmarks.training.trainers [--repeats=3] [--network=cnn …] [--newest=.venv-newest/bin/python]

Both train digits of 32 pixels in batches of 64 with --newest, the Python of an environment that has Keras 3, JAX and
TensorFlow. They take turns. CPU time, of all threads, is compared instead of seconds, as other programs change it less.

Where the time to the end of the first step of `cnn` goes, in CPU seconds of a first and of a later run (2 loaded cores,
so as shares of each other):

    imports of this package           0.5   0.4
    import of JAX and optax           0.8   0.7
    import of Keras                   0.9   0.8   without matplotlib and scikit-learn; with them 2.6
    the network and its first values  1.7   0.5   of it 0.2 for one program of random values for all shapes; before, a
                                                  program for each shape took 7
    state of the optimizer            0.3   0.0
    the first step                    3.7   0.8   of it 2.9 in XLA, which compiles train_step

What is left of a first run is mostly XLA's compilation of one function, and of a later run the imports of JAX and Keras
and the tracing of train_step: neither is ours.

A step of `resnet18` takes several times tf_distribute's here, because of XLA's convolutions on a CPU, which
`python -m benchmarks.training.convolutions` measures.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import measure

NETWORKS = ("cnn", "resnet18")
WARM, STEPS = 10, 40  # steps before and at the end of what is measured of a step
COLUMNS = {
    "network": "network",
    "trainer": "way",
    "CPU s to the end of the first step": "first:.1f",
    "CPU ms of a step": "step:.0f",
}
COLD, CACHED, OTHER = "jax, first run", "jax, later run", "tf_distribute"
FIRST_GOALS = {COLD: 10.0, CACHED: 4.0}  # CPU seconds
STEP_GOAL = 1.3  # times tf_distribute's
# A training that prints the CPU time until the end of some steps and then ends.
PROGRAM = """
import json, os, sys, time
from estimator_app.trainers.progress import Progress
ends, seconds, took = json.loads(sys.argv[1]), {}, Progress.add_step
def measured(self, *args):
    took(self, *args)
    if self.step in ends:
        seconds[self.step] = time.process_time()
    if self.step == ends[-1]:
        print(json.dumps(seconds), flush=True)
        os._exit(0)
Progress.add_step = measured
from estimator_app.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


def make_dataset(folder: Path) -> Path:
    for args in (
        ("sample", f"{folder}/digits"),
        ("convert", f"--input={folder}/digits", f"--output={folder}/dataset", "--splits=train=80%,validation=20%"),
    ):
        command = [sys.executable, "-W", "ignore", "-m", "jpeg2tpu", *args]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "dataset"


def train(newest: str, dataset: Path, network: str, way: str, cache: Path) -> dict[str, Any]:
    """Returns {"first": CPU seconds to the end of the first step} and but for COLD {"step": CPU ms of a step}."""
    ends = [1] if way == COLD else [1, WARM, STEPS]
    trainer = "tf_distribute" if way == OTHER else "jax"
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--dataset={dataset}", f"--model_dir={folder}/m", f"--trainer={trainer}", f"--network={network}"]
        flags += ["--train_batch_size=64", "--train_steps=1000", "--iterations_per_loop=10"]
        home = f"{folder}/home" if way == COLD else str(cache)  # ours is the folder of compiled programs in it
        Path(home).mkdir(exist_ok=True)
        command = [newest, "-W", "ignore", "-c", PROGRAM, str(ends), "train", *flags]
        run = measure.run(command, HOME=home, PYTHONPATH=".", JAX_COMPILATION_CACHE_DIR="")
        seconds = measure.check(run, command).result
    costs = {"first": seconds["1"]}
    return (
        costs if way == COLD else costs | {"step": 1000 * (seconds[str(STEPS)] - seconds[str(WARM)]) / (STEPS - WARM)}
    )


def rows_of(newest: str, networks: tuple[str, ...], repeats: int) -> list[dict[str, Any]]:
    """Returns the medians of each network and way."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(Path(folder))
        for network in networks:
            cache = Path(folder, network)
            train(newest, dataset, network, CACHED, cache)  # fills it
            ways = {
                way: functools.partial(train, newest, dataset, network, way, cache) for way in (COLD, CACHED, OTHER)
            }
            for way, runs in measure.in_turn(ways, repeats).items():
                rows.append({"network": network, "way": way, **measure.medians(runs)})
    return rows


def notes_of(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each goal of each network."""
    notes = []
    for network in dict.fromkeys(row["network"] for row in rows):
        by_way = {row["way"]: row for row in rows if row["network"] == network}
        for way, goal in FIRST_GOALS.items():
            missed = "" if by_way[way]["first"] <= goal else ": MISSED"
            notes.append(f"{network}, {way}: first step within {goal:.0f} s of CPU time wanted{missed}")
        ratio = by_way[CACHED]["step"] / by_way[OTHER]["step"]
        missed = "" if ratio <= STEP_GOAL else ": MISSED"
        notes.append(f"{network}: a step takes {ratio:.2f} times tf_distribute's; at most {STEP_GOAL} wanted{missed}")
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--network", action="append", choices=NETWORKS)
    parser.add_argument("--newest", default=".venv-newest/bin/python", help="Python with Keras 3, JAX and TensorFlow")
    flags = parser.parse_args()
    rows = rows_of(flags.newest, tuple(flags.network or NETWORKS), flags.repeats)
    versions = measure.versions(flags.newest, "tensorflow", "keras", "jax")
    notes = [*notes_of(rows), f"medians of {flags.repeats} runs of each; both trainers: {versions}"]
    measure.keep("trainers", measure.Table(rows, COLUMNS, notes))


if __name__ == "__main__":
    main()
