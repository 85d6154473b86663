"""Training's input prepared on other machines by tf.data service; a host takes any batch that is ready.

    dispatcher: visit number (epoch x blocks + place in the epoch's order) ──each to one worker──▶
    worker:     records of as many blocks as a batch has examples ▶ decode, crop, batch, layout ──▶ host that asks first

https://www.tensorflow.org/api_docs/python/tf/data/experimental/service. Each example comes once per epoch over all
hosts. A visit is one block (pipeline/order.py) in one epoch. Workers are assigned visits and not files, so that an
endless dataset of epochs can be divided, and only the order depends on which worker does what. run_dispatcher() and
run_worker() implement the commands jpeg2tpu dispatcher and worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator

import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest
from tpu_input.pipeline.lanes import Blocks
from tpu_input.pipeline.order import Order
from tpu_input.pipeline.reading import no_autograph
from tpu_input.without_tensorflow.augmentations import find_augmentation


def visited_records(manifest: Manifest, split: str, order: Order, start_step: int, batch_size: int) -> tf.data.Dataset:
    """Returns an endless dataset of (number, serialized); each worker gets a part of it.

    "number" is epoch * records of the split + number of the record in the split. It does not depend on the worker, and
    so the crops do not either.

    Args:
      manifest: The dataset.
      split: Name of the split.
      order: Order of the blocks.
      start_step: Step to begin with; the dataset begins with the visit that it had reached.
      batch_size: Number of blocks that a worker reads at the same time: a batch has few examples of the same block.
    """
    blocks = Blocks(manifest, split, order, batch_size)

    @no_autograph
    def records_of(visit: tf.Tensor) -> tf.data.Dataset:
        epoch, first, count = (column[0] for column in order.blocks(tf.cast(visit, tf.uint64)[None], tf))
        numbers = first + tf.cast(tf.range(tf.cast(count, tf.int64)), tf.uint64)
        return blocks.read(tf.fill(tf.shape(numbers), epoch), numbers)

    visits = tf.data.Dataset.range(start_step * order.lanes * order.num_blocks // order.num_examples, 2**62)
    return visits.interleave(records_of, cycle_length=batch_size, num_parallel_calls=batch_size, deterministic=False)


def served(batches: tf.data.Dataset, config: InputConfig, *described_by: object) -> tf.data.Dataset:
    """Returns batches as distributed by a tf.data service: each to one of the hosts that take part in the job.

    Args:
      batches: Batches made of visited_records().
      config: For service and service_job.
      described_by: Other values that distinguish these batches from other jobs'.
    """
    # A dispatcher that already has a job of this name returns that job's batches, even if the dataset is a different
    # one (TF 2.15), so the name contains a hash of what describes the batches.
    function = getattr(config.augment, "__qualname__", type(config.augment).__qualname__)
    augment = find_augmentation(config.augment) or function
    description = repr((dataclasses.replace(config, augment=None), augment, described_by))
    digest = hashlib.sha256(description.encode()).hexdigest()[:12]
    distributed = tf.data.experimental.service.distribute(
        tf.data.experimental.service.ShardingPolicy.DYNAMIC,
        config.service,
        job_name=f"{config.service_job}-{digest}",
        compression=None,  # pixels hardly compress
    )
    with warnings.catch_warnings():  # distribute() reads options, which warns in a v1 graph
        warnings.simplefilter("ignore", UserWarning)
        return batches.apply(distributed)


_service = tf.data.experimental.service


def run_dispatcher(port: int, work_dir: str | None, say: Callable[[str], None]) -> None:
    """Runs a dispatcher until SIGTERM or Ctrl-C ends the process.

    Args:
      port: Port to listen on.
      work_dir: Folder or URI of its journal, from which a restarted dispatcher resumes; None writes no journal.
      say: Function that prints a line.

    Raises:
      ValueError: The port cannot be listened on, e.g. because it is in use.
    """
    with contextlib.closing(socket.socket()) as probe:  # gRPC would share the port with another dispatcher
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # allows the port of a process that just ended
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ValueError(f"cannot listen on port {port}: {error.strerror}; use another --port") from error
    config = _service.DispatcherConfig(port=port, work_dir=work_dir, fault_tolerant_mode=work_dir is not None)
    server = _service.DispatchServer(config)
    bound_port = server.target.rpartition(":")[2]
    _stay(server, f"dispatcher: grpc://{socket.gethostname()}:{bound_port}", say)


def run_worker(dispatcher: str, port: int, host: str | None, say: Callable[[str], None]) -> None:
    """Runs a worker of a dispatcher until the process is ended; waits for a dispatcher that is not running yet.

    Args:
      dispatcher: Address of the dispatcher, "grpc://address:port".
      port: Port to listen on; 0 is any free port.
      host: Name or address by which the hosts of the training reach this machine; None is its own host name.
      say: Function that prints a line.
    """
    address = dispatcher.removeprefix("grpc://")
    say(f"worker: waiting for {dispatcher}")
    config = _service.WorkerConfig(address, worker_address=f"{host or socket.gethostname()}:%port%", port=port)
    with _killable():
        server = _service.WorkerServer(config)
    _stay(server, f"worker: connected to {dispatcher}", say)


@contextlib.contextmanager
def _killable() -> Iterator[None]:
    """Context manager in which SIGINT and SIGTERM kill the process; a shell reports the same exit codes.

    TensorFlow waits for the dispatcher without releasing Python's GIL, so that no Python signal handler could run.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stay(server: object, line: str, say: Callable[[str], None]) -> None:
    """Prints a line and waits for a signal; the server runs as long as there is a reference to it, here `server`."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Exits at once: a regular exit of the interpreter may wait forever for TensorFlow's server.
        signal.signal(number, lambda number, _: os._exit(128 + number))
    say(line)
    while True:  # waits with a timeout, as Python would not handle a signal that comes just before a wait without one
        threading.Event().wait(1)
