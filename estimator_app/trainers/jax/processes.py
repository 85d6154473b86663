"""The processes of a run: they meet at an address, compare their flags, take the same steps, and end together.

    process 0      reads and writes MODEL_DIR ──call("train", …)──▶ all others
    process 1, 2…  their share of each batch ──▶ the same steps, over the devices of all processes

Process 0 decides what is done next; the others do the same, on their devices. Each of them has one connection to
process 0 (connections.py), which the kernel closes when one of the two dies. By it the survivors notice that at once,
even in a step that waits for the dead process; JAX itself would wait for 100 seconds.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from estimator_app.runtime.tensorflow_startup import no_output, one_line, user_error_types
from estimator_app.trainers.interruption import Stop, Stopped
from estimator_app.trainers.jax.batches import device_errors, divided_over, make_mesh, whole_on
from estimator_app.trainers.jax.connections import LOOPBACK, Line, Place, meet, start_thread
from estimator_app.trainers.jax.jax_private import detect_processes, ignore_proxies
from tpu_input.command_line import exit_code

TIMEOUT = 300  # seconds; jax.distributed.initialize()'s own default
_PIECE = 2**20  # words of a state that are sent to the other processes at a time, 4 MB
_GRACE = 5.0  # seconds within which the death of another process is known after its part of a step is missing


def find_place(
    address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> Place | None:
    """Returns the place of this process; None if it trains alone.

    What is not given is found by JAX on Cloud TPU, Slurm, Open MPI and in an indexed job of Kubernetes.

    Raises:
      ValueError: The numbers do not fit each other, some are missing, or the cluster does not say them.
    """
    is_named = (address, num_processes, process_id) != (None, None, None)
    if num_processes == 1 or not (is_named or _may_be_in_cluster()):
        return None
    place = Place(*_detected(address, num_processes, process_id))
    if place.address is None and not is_named:
        return None
    names = ("coordinator_address", "num_processes", "process_id")
    if missing := [f"--{name}" for name, value in zip(names, place, strict=False) if value is None]:
        raise ValueError(
            f"{' and '.join(missing)} must be given too, as JAX finds them only on Cloud TPU, Slurm and Kubernetes"
        )
    place.check()
    return place if place.num_processes > 1 else None


def _may_be_in_cluster() -> bool:
    """Returns whether JAX may look for other processes: a pod that is not one of an indexed job has none."""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    return not in_pod or bool({"JOB_COMPLETION_INDEX", "TPU_WORKER_HOSTNAMES"} & {*os.environ})


def _detected(
    address: str | None, num_processes: int | None, process_id: int | None
) -> tuple[Any, Any, Any, Sequence[int] | None]:
    if None not in (address, num_processes, process_id):
        return address, num_processes, process_id, None
    try:
        return detect_processes(address, num_processes, process_id, TIMEOUT)
    except (RuntimeError, OSError, ValueError) as error:
        raise ValueError(
            f"JAX cannot find the processes of this cluster: {one_line(error)}; name them with --coordinator_address, "
            "--num_processes and --process_id, or train in this process alone with --num_processes=1"
        ) from error


class Group:
    """The processes of a run, seen from one of them. Group() is the group of a process that trains alone.

    It calls `report` with the line that says why this process ends.

    Attributes:
      index: Number of this process, from 0.
      size: Number of processes.
      code: Exit code of process 0's command, once calls() has ended.
    """

    def __init__(self, index: int = 0, size: int = 1, report: Callable[[str], object] = print) -> None:
        self.index, self.size, self.code = index, size, 0
        self._report = report
        self._lines: dict[int, Line] = {}
        self._calls: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._claim, self._ends = threading.Lock(), threading.Event()

    def call(self, name: str, **arguments: Any) -> None:
        """Tells the other processes what process 0 does next; calls() gives it to them."""
        for line in [] if self.index else self._lines.values():
            line.send(call=name, arguments=arguments)

    def calls(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields what process 0 does, until its command ends."""
        while "end" not in (message := self._calls.get()):
            yield message["call"], message["arguments"]
        self.code = message["end"]

    def is_stopped(self, stop: threading.Event) -> bool:
        """Returns whether any process has been asked to stop, and sets `stop` then; all call it after each step."""
        if self.size == 1:
            return stop.is_set()
        signal_number = stop.number if isinstance(stop, Stop) else None
        request = (signal_number or 1) if stop.is_set() else 0
        (number,) = self._largest(np.array([request], np.uint32)).tolist()
        if number:
            self.code = 128 + number
            stop.set()
            if isinstance(stop, Stop):
                stop.number = signal_number or number
        return bool(number)

    def from_first(self, values: Any) -> Any:
        """Returns process 0's values of a tree of arrays, bit for bit; all processes call it.

        Args:
          values: Tree of NumPy arrays, of the same names, shapes and dtypes in each process.
        """
        if self.size == 1:
            return values
        leaves, structure = jax.tree.flatten(values)
        leaves = [np.asarray(leaf) for leaf in leaves]
        num_words = -(-sum(leaf.nbytes for leaf in leaves) // 4)
        words = np.zeros(-(-num_words // _PIECE) * _PIECE, np.uint32)
        if not self.index:
            content = b"".join(leaf.tobytes() for leaf in leaves)
            words.view(np.uint8)[: len(content)] = np.frombuffer(content, np.uint8)
        for start in range(0, len(words), _PIECE):
            words[start : start + _PIECE] = self._largest(words[start : start + _PIECE])
        content, arrays, offset = words.tobytes(), [], 0
        for leaf in leaves:
            arrays.append(np.frombuffer(content, leaf.dtype, leaf.size, offset).reshape(leaf.shape))
            offset += leaf.nbytes
        return jax.tree.unflatten(structure, arrays)

    def _largest(self, row: Any) -> Any:
        """Returns the largest of each number over all processes, of [N] uint32 of each."""
        rows = np.tile(row, (jax.local_device_count(), 1))
        return np.asarray(self._maximum(jax.make_array_from_process_local_data(divided_over(self._mesh), rows)))

    @functools.cached_property
    def _mesh(self) -> Mesh:
        return make_mesh()

    @functools.cached_property
    def _maximum(self) -> Callable[[Any], Any]:
        compiled: Callable[[Any], Any] = jax.jit(lambda rows: rows.max(axis=0), out_shardings=whole_on(self._mesh))
        return compiled

    def check_devices(self) -> None:
        """Checks that all processes have the same number of devices, which they connect. All processes call it.

        Raises:
          ValueError: They have not.
        """
        counts = collections.Counter(device.process_index for device in jax.devices())
        if other := next((number for number in range(self.size) if counts[number] != counts[0]), None):
            raise ValueError(
                f"all processes must have the same number of devices, but process 0 has {counts[0]} and process "
                f"{other} {counts[other]}"
            )
        with no_output(1):  # gloo prints how many it has connected
            self._largest(np.zeros(1, np.uint32))

    def watch(self, lines: Mapping[int, Line]) -> None:
        """Takes the connections to other processes, by number, and ends this process when one of them dies."""
        self._lines.update(lines)
        for index, line in lines.items():
            start_thread(self._watch, index, line)

    def _watch(self, index: int, line: Line) -> None:
        while message := line.receive():
            if "failed" in message:
                self._lose(str(message["failed"]))
            if "end" in message:
                self._may_end()
            self._calls.put(message)
        self._lose(f"process {index} died; to resume from the last checkpoint, rerun the command of every process")

    def _may_end(self) -> bool:
        """Returns True only to the first caller, which alone may end this process' part of the run."""
        is_first = self._claim.acquire(blocking=False)
        self._ends.set()
        return is_first

    def _lose(self, why: str) -> None:
        """Ends this process, whose main thread may wait in a step for one that is gone."""
        if self._may_end():
            self._tell(why)
            self._report(why)
            _exit(2)

    def _tell(self, why: str) -> None:
        for line in self._lines.values():
            line.send(failed=why)

    def fail(self, error: BaseException) -> None:
        """Tells the other processes that this one ends by an error, unless another one's end has caused it."""
        if self.size == 1:
            return
        if _is_of_devices(error):
            self._ends.wait(_GRACE)
        if not self._may_end():
            threading.Event().wait()  # until _lose() ends the process
        is_users = isinstance(error, user_error_types())
        reason = one_line(error) if isinstance(error, Exception) and is_users else type(error).__name__
        self._tell(f"process {self.index} failed: {reason}")
        code = exit_code(error) if isinstance(error, KeyboardInterrupt) else 2 if is_users else 1
        # Runs before what JAX has registered, which would wait for the others for minutes.
        atexit.register(_exit, code)

    def finish(self, code: int = 0) -> None:
        """Ends the run of all processes in order, from process 0."""
        if self.size == 1:
            return
        if not self.index:
            if not self._may_end():
                threading.Event().wait()
            for line in self._lines.values():
                line.send(end=code)
        jax.distributed.shutdown()


def _is_of_devices(error: BaseException | None) -> bool:
    """Returns whether an error, or its cause, is one of a step, as JAX raises it when another process is gone."""
    is_own = isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)
    return error is not None and (is_own or _is_of_devices(error.__cause__))


_current = Group()


def current() -> Group:
    """Returns the group of this process."""
    return _current


@contextlib.contextmanager
def joined(
    place: Place | None,
    settings: Mapping[str, Any],
    timeout: float = TIMEOUT,
    report: Callable[[str], object] = print,
) -> Iterator[Group]:
    """Context manager around all that a process does in a run with others; yields their group, current().

    If another process dies or fails, this one prints one line and ends with exit code 2, wherever it is.

    Args:
      place: Of this process; None if it trains alone.
      settings: As of meet().
      timeout: As of meet().
      report: Called with the line that says why this process ends.

    Raises:
      ValueError: As meet(); or the processes have different numbers of devices.
    """
    global _current
    if place is None:
        yield _current
        return
    group = Group(place.process_id, place.num_processes, report)
    met = meet(place, settings, timeout)
    group.watch(met.lines)
    _current = group
    try:
        _start_jax(place, met.service_port, timeout)
        with device_errors("--train_batch_size"):
            group.check_devices()
        yield group
    except Stopped:
        group.finish(group.code or 128)
        raise
    except BaseException as error:
        group.fail(error)
        raise
    else:
        group.finish()
    finally:
        _current = Group()


def _start_jax(place: Place, port: int, timeout: float) -> None:
    """Connects JAX to the other processes through a port of this machine."""
    ignore_proxies()
    os.environ.setdefault("no_grpc_proxy", LOOPBACK)
    with contextlib.suppress(AttributeError):  # it would take SIGTERM, which asks for a last checkpoint
        jax.config.update("jax_enable_preemption_service", False)
    address = f"{LOOPBACK}:{port}"
    try:
        jax.distributed.initialize(
            address,
            place.num_processes,
            place.process_id,
            place.device_ids,
            initialization_timeout=max(1, round(timeout)),
            coordinator_bind_address=address,
        )
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"JAX cannot connect the processes: {one_line(error)}") from error


def _exit(code: int) -> None:
    """Ends this process at once, without waiting for other threads or processes."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
