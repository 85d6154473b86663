"""Training's input on other machines, by tf.data service; every host takes what is ready, each example once an epoch.

    dispatcher: visit number (epoch x shards + place in the epoch's order) ──each to one worker──▶
    worker:     records of several shards in turn ▶ shuffle ▶ decode, crop, batch, layout ──▶ whichever host asks first

https://www.tensorflow.org/api_docs/python/tf/data/experimental/service. Workers are given visits, not files: an endless
dataset of epochs can then be divided, and only the order depends on which worker does what. run_dispatcher() and
run_worker() are the processes behind python -m tpu_input dispatcher and worker.
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
from tpu_input.pipeline.reading import plain, read_buffer_bytes, shard_records
from tpu_input.pipeline.shuffling import buffer_records, shard_order


def visited_records(manifest: Manifest, split: str, config: InputConfig, start: int) -> tf.data.Dataset:
    """Returns endless (example number, (path, number in the shard, serialized)), of which each worker gets a part.

    The number is epoch x examples + the record's place in the split: it knows no worker, and so do the crops.

    Args:
      manifest: The dataset.
      split: Name of the split.
      config: For seed, parallel_shards and the shuffle buffer, which each worker has of its own.
      start: Examples that earlier steps took; begins with the visit that they had come to.
    """
    shards = manifest.split(split).shards
    counts = [shard.num_examples for shard in shards]
    total = sum(counts)
    paths = tf.constant([f"{manifest.path}/{shard.name}" for shard in shards])
    sizes = tf.constant([[shard.num_examples, shard.num_bytes] for shard in shards], tf.int64)
    firsts = tf.constant([sum(counts[:index]) for index in range(len(shards))], tf.int64)

    @plain
    def records_of(visit: tf.Tensor) -> tf.data.Dataset:
        epoch, place = visit // len(shards), visit % len(shards)
        shard = shard_order(epoch, len(shards), config)[place]
        first = epoch * total + firsts[shard]
        buffer_bytes = read_buffer_bytes(manifest.path)
        dataset = shard_records(paths[shard], sizes[shard, 0], sizes[shard, 1], buffer_bytes=buffer_bytes)
        return dataset.map(plain(lambda path, number, serialized: (first + number, (path, number, serialized))))

    at_once = min(config.parallel_shards, len(shards))
    dataset = tf.data.Dataset.range(start * len(shards) // total, 2**62).interleave(
        records_of,
        cycle_length=at_once,
        num_parallel_calls=at_once,
        deterministic=False,
    )
    return dataset.shuffle(buffer_records(manifest, split, config), config.seed)


def served(batches: tf.data.Dataset, config: InputConfig, *described_by: object) -> tf.data.Dataset:
    """Returns batches as a tf.data service hands them out: each to one of the hosts that take part in the job.

    Args:
      batches: What visited_records() became.
      config: For service and service_job.
      described_by: What else tells these batches from others'.
    """
    # A dispatcher that knows the name of a job asks no further and hands out that job's batches, whatever dataset
    # comes with the name (TF 2.15).
    augment = getattr(config.augment, "__qualname__", type(config.augment).__qualname__)
    told = repr((dataclasses.replace(config, augment=None), augment, described_by))
    digest = hashlib.sha256(told.encode()).hexdigest()[:12]
    distributed = tf.data.experimental.service.distribute(
        tf.data.experimental.service.ShardingPolicy.DYNAMIC,
        config.service,
        job_name=f"{config.service_job}-{digest}",
        compression=None,  # pixels hardly shrink
    )
    with warnings.catch_warnings():  # distribute() looks at options, which a v1 graph comments on
        warnings.simplefilter("ignore", UserWarning)
        return batches.apply(distributed)


_service = tf.data.experimental.service


def run_dispatcher(port: int, work_dir: str | None, say: Callable[[str], None]) -> None:
    """Hands out work until SIGTERM or Ctrl-C ends the process.

    Args:
      port: To listen at.
      work_dir: Folder or URI for its journal, from which it goes on when it is started again; None keeps none.
      say: Takes a line.

    Raises:
      ValueError: Something else listens at the port.
    """
    with contextlib.closing(socket.socket()) as probe:  # gRPC would share a port with another dispatcher
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that has just ended is in nobody's way
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ValueError(f"port {port} cannot be listened at: {error.strerror}; choose another --port") from error
    config = _service.DispatcherConfig(port=port, work_dir=work_dir, fault_tolerant_mode=work_dir is not None)
    server = _service.DispatchServer(config)
    at = server.target.rpartition(":")[2]
    _stay(server, f"dispatcher: grpc://{socket.gethostname()}:{at}", say)


def run_worker(dispatcher: str, port: int, host: str | None, say: Callable[[str], None]) -> None:
    """Does a dispatcher's work until the process is ended; waits for a dispatcher that is not there yet.

    Args:
      dispatcher: As in "grpc://address:port".
      port: To listen at; 0 is any.
      host: Name or address of this machine as the hosts of the training know it; None is what it calls itself.
      say: Takes a line.
    """
    address = dispatcher.removeprefix("grpc://")
    say(f"worker: waiting for {dispatcher}")
    config = _service.WorkerConfig(address, worker_address=f"{host or socket.gethostname()}:%port%", port=port)
    with _killable():
        server = _service.WorkerServer(config)
    _stay(server, f"worker: at work for {dispatcher}", say)


@contextlib.contextmanager
def _killable() -> Iterator[None]:
    """Lets signals kill the process; a shell reports the same exit codes.

    TensorFlow waits for the dispatcher without giving Python's lock up, so that no handler of ours could run.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stay(server: object, line: str, say: Callable[[str], None]) -> None:
    """Says a line and waits for a signal; the server works as long as somebody holds it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # At once: in the order of an interpreter's end, TensorFlow's server may be waited for without end.
        signal.signal(number, lambda number, _: os._exit(128 + number))
    say(line)
    while True:  # with an end, as Python would not handle a signal that comes just before a wait without one
        threading.Event().wait(1)
