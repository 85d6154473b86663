"""The demo's accuracy for seeds 0 to 4, each of which chooses the held-out digits, the order and the first weights.

python -m benchmarks.digits_accuracy [--folder=/tmp/digits_accuracy] [--trainer=tf_distribute] [--seeds=5]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/digits_accuracy"))
    parser.add_argument("--trainer", default="tpu_estimator", help="what trains: tpu_estimator or tf_distribute")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    arguments = parser.parse_args()
    folder = arguments.folder / arguments.trainer
    print(f"Python {platform.python_version()}, TensorFlow {version('tensorflow')}\n")
    print("| seed | held-out accuracy | held-out images | seconds |\n|---|---|---|---|")
    accuracies = []
    for seed in range(arguments.seeds):
        start = time.monotonic()
        # The commands of `make demo` themselves, from sample to predict.
        command = ["make", "demo", f"SEED={seed}", f"DEMO={folder}/{seed}", f"TRAINER={arguments.trainer}"]
        subprocess.run(command, check=True, capture_output=True)
        metrics = json.loads((folder / str(seed) / "model" / "metrics.json").read_text())
        accuracies.append(metrics["accuracy"])
        seconds = time.monotonic() - start
        print(f"| {seed} | {metrics['accuracy']:.2%} | {metrics['num_examples']} | {seconds:.0f} |", flush=True)
    print(f"\nmean {statistics.mean(accuracies):.2%}, lowest {min(accuracies):.2%}")


if __name__ == "__main__":
    main()
