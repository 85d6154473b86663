"""The processes of a tf.data service, which do training's input on other machines (service.py):

hosts ──InputConfig.service──▶ dispatcher, one ──visits of shards──▶ workers, any number ──batches──▶ hosts
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf

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
