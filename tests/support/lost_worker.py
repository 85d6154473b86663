"""python lost_worker.py DATASET MODEL_DIR: trains on a worker that is lost twice, and is back here, then elsewhere.

The worker is TensorFlow's own server in a process of its own, and its processor stands in for a TPU: the connection,
and how it is lost and made again, are real.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

from estimator_app.runtime.tensorflow_startup import import_tensorflow

import_tensorflow(verbose=False)

import tensorflow as tf  # noqa: E402

from estimator_app.runtime.tpu import Tpu  # noqa: E402
from estimator_app.train import run as run_training  # noqa: E402
from estimator_app.trainers.interruption import Moved  # noqa: E402
from estimator_app.trainers.progress import Progress  # noqa: E402
from support.app_fixtures import configured  # noqa: E402
from tpu_input import read_manifest  # noqa: E402

SERVER = """
import sys, tensorflow as tf
tf.distribute.Server(tf.train.ClusterSpec({"worker": [sys.argv[1]]}), job_name="worker", task_index=0).join()
"""


class Worker:
    """In the place of estimator_app's Tpu."""

    def __init__(self) -> None:
        port, other_port = free_port(), free_port()
        self.ports = [port, port, other_port]
        self.process: subprocess.Popen[bytes] | None = None

    def connect(self) -> Any:
        port = self.ports.pop(0)
        address = f"127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVER, address], stderr=subprocess.DEVNULL
        )
        while not answers(port):
            if self.process.poll() is not None:
                raise RuntimeError(f"the worker at {address} ended with {self.process.returncode}")
            time.sleep(0.1)
        cluster = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": [address]}), master=f"grpc://{address}"
        )
        cluster.get_tpu_system_metadata = lambda: SimpleNamespace(num_hosts=1)
        return cluster

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def main(dataset: str, model_dir: str) -> None:
    worker, log_step, deadly = Worker(), Progress.add_step, [3, 5]

    def lose_worker(self: Progress, step: int, loss: float, began: float, ready: float) -> None:
        log_step(self, step, loss, began, ready)
        if self.step == deadly[0]:
            deadly.pop(0)
            worker.kill()

    def on_worker(cluster: Any) -> Any:
        return tf.distribute.OneDeviceStrategy("/job:worker/replica:0/task:0/device:CPU:0")

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return False

    Progress.add_step = lose_worker  # type: ignore[method-assign]
    tf.tpu.experimental.initialize_tpu_system, tf.distribute.TPUStrategy = lambda cluster: None, on_worker
    manifest = read_manifest(dataset)
    config = configured(
        manifest, trainer="tf_distribute", train_steps=6, save_steps=2, steps_per_eval=6, iterations_per_loop=1
    )
    try:
        run_training(manifest, config, model_dir, f"{model_dir}/export", cast(Tpu, worker), print, Stop())
    except Moved as moved:
        print(f"moved: {moved}")
    finally:
        worker.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
