"""A training that is killed and resumed on another number of hosts ends with the weights of one that was not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

# Trains a linear classifier on the hosts of a job, one after another in one process: each takes the gradient of its own
# batch, and all go on with the mean. Writes a checkpoint every ten steps; resumes from the last one.
TRAIN = """
import os, sys
import numpy as np
import tpu_input

dataset, folder, num_hosts, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
steps = sorted(int(name.removesuffix(".npy")) for name in os.listdir(folder) if name.endswith(".npy"))
step = steps[-1] if steps else 0
weights = np.load(f"{folder}/{step}.npy") if steps else np.zeros([8 * 8 * 3, 10])
input_fn = tpu_input.make_train_input_fn(dataset, tpu_input.InputConfig(8), start_step=step)
hosts = [
    input_fn({"batch_size": 24 // num_hosts, "host": host, "num_hosts": num_hosts}).as_numpy_iterator()
    for host in range(num_hosts)
]
while step < last:
    gradients = []
    for features, labels in (next(host) for host in hosts):
        images = features["image"].reshape(len(labels), -1) / 255
        logits = images @ weights
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors = shares / shares.sum(axis=1, keepdims=True) - np.eye(10)[labels]
        gradients.append(images.T @ errors / len(labels))
    weights -= 0.1 * np.mean(gradients, axis=0)
    step += 1
    if step % 10 == 0:
        np.save(f"{folder}/{step}.part.npy", weights)
        os.replace(f"{folder}/{step}.part.npy", f"{folder}/{step}.npy")
        print(step, flush=True)
"""


def start(dataset, folder: Path, num_hosts: int, last: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", TRAIN, dataset.path, folder, str(num_hosts), str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.long
def test_a_run_that_is_killed_and_resumed_on_other_hosts_ends_with_the_same_weights(digits_dataset, tmp_path):
    straight, changing = tmp_path / "straight", tmp_path / "changing"
    straight.mkdir()
    changing.mkdir()
    on_one = start(digits_dataset, straight, 1, 300)
    on_two = start(digits_dataset, changing, 2, 300)
    assert on_two.stdout
    assert b"100\n" in on_two.stdout  # waits for this line
    on_two.kill()
    on_two.communicate()
    for unfinished in changing.glob("*.part.npy"):
        unfinished.unlink()
    reached = max(int(path.stem) for path in changing.glob("*.npy"))
    assert 100 <= reached < 300
    for run in (start(digits_dataset, changing, 4, 300), on_one):
        run.communicate()
        assert run.returncode == 0
    weights = np.load(straight / "300.npy")
    assert abs(weights).max() > 0.1
    # The mean of the hosts' gradients is rounded differently.
    np.testing.assert_allclose(np.load(changing / "300.npy"), weights, rtol=0, atol=1e-12)
