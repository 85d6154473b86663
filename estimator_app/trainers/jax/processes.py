"""The processes of a run: they meet at an address, compare their flags, take the same steps, and end together.

    process 0      listens at the coordinator's address, reads and writes MODEL_DIR ──call("train", …)──▶ all others
    process 1, 2…  connect to it ──their share of each batch──▶ the same steps, over the devices of all processes

Process 0 decides what is done next; the others do the same, on their devices. Each of them has one connection to process
0, which the kernel closes when either of the two dies, and by which the survivors notice it at once: JAX itself would
wait for 100 seconds. JAX' own messages (which devices there are, the keys of NCCL and gloo) pass through the same port:

    JAX ──▶ 127.0.0.1 ──tunnel──▶ coordinator's address ──▶ 127.0.0.1: jax.distributed's service, in process 0

because JAX aborts a process with a stack trace as soon as the connection to that service breaks. The end of the tunnel
at JAX stays open, so that this module can end the process with one line.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from estimator_app.runtime.tensorflow_startup import no_output, one_line, user_error_types
from estimator_app.trainers.interruption import Stopped
from estimator_app.trainers.jax.batches import device_errors, divided_over, make_mesh, whole_on
from tpu_input.command_line import exit_code

LOOPBACK = "127.0.0.1"
TIMEOUT = 300  # seconds; jax.distributed.initialize()'s own default
_RETRY_SECONDS = 0.2
_PIECE = 2**20  # words of a state that are sent to the other processes at a time, 4 MB
_LONGEST = 2**24  # bytes of a message
# A machine that is gone without closing its connections is noticed after 20 + 6 * 10 seconds, before JAX aborts.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
_GRACE = 5.0  # seconds within which the death of another process is known after its part of a step is missing


class Place(NamedTuple):
    """Where a process is among those of a run.

    Attributes:
      address: HOST:PORT at which process 0 listens.
      num_processes: Number of processes.
      process_id: Number of this one, from 0.
      device_ids: Devices of this machine that the process takes; None for all.
    """

    address: str
    num_processes: int
    process_id: int
    device_ids: Sequence[int] | None = None


def find_place(
    address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> Place | None:
    """Returns the place of this process; None if it trains alone.

    What is not given is found by JAX on Cloud TPU, Slurm, Open MPI and in an indexed job of Kubernetes.

    Raises:
      ValueError: The numbers do not fit each other, some are missing, or the cluster does not say them.
    """
    if num_processes == 1 or (address, num_processes, process_id) == (None, None, None) and not _may_be_in_cluster():
        return None
    place = Place(*_detected(address, num_processes, process_id))
    if place.address is None and (num_processes, process_id) == (None, None):
        return None
    names = ("coordinator_address", "num_processes", "process_id")
    if missing := [f"--{name}" for name, value in zip(names, place, strict=False) if value is None]:
        raise ValueError(
            f"{' and '.join(missing)} must be given too, as JAX finds them only on Cloud TPU, Slurm and Kubernetes"
        )
    if not 0 <= place.process_id < place.num_processes:
        raise ValueError(
            f"--process_id must be at least 0 and below --num_processes={place.num_processes}, got {place.process_id}"
        )
    _split(place.address)
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
    from jax._src.clusters import ClusterEnv  # jax.distributed.initialize() detects, but does not tell what

    try:
        found: tuple[Any, Any, Any, Any] = ClusterEnv.auto_detect_unset_distributed_params(
            address, num_processes, process_id, None, None, TIMEOUT
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise ValueError(
            f"JAX cannot find the processes of this cluster: {one_line(error)}; name them with --coordinator_address, "
            "--num_processes and --process_id, or train in this process alone with --num_processes=1"
        ) from error
    return found


def _split(address: str) -> tuple[str, int]:
    """Returns host and port of an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"--coordinator_address must be HOST:PORT, such as 10.0.0.1:1234, got {address!r}")
    return host.strip("[]"), int(port)


class Group:
    """The processes of a run, of which this is one. Group() is the group of a process that trains alone.

    Attributes:
      index: Number of this process, from 0.
      size: Number of processes.
      code: Exit code of process 0's command, once calls() has ended.
    """

    def __init__(self, index: int = 0, size: int = 1, report: Callable[[str], object] = print) -> None:
        """Makes the group.

        Args:
          index: Number of this process.
          size: Number of processes.
          report: Called with the line that says why this process ends.
        """
        self.index, self.size, self.code = index, size, 0
        self._report = report
        self._lines: dict[int, _Line] = {}
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
        """Returns whether any process was told to stop, and then sets `stop`; all processes call it after a step."""
        if self.size == 1:
            return stop.is_set()
        own = (getattr(stop, "number", None) or 1) if stop.is_set() else 0
        (number,) = self._largest(np.array([own], np.uint32))
        if number:
            self.code = 128 + int(number)
            stop.set()
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
        content, found, offset = words.tobytes(), [], 0
        for leaf in leaves:
            found.append(np.frombuffer(content, leaf.dtype, leaf.size, offset).reshape(leaf.shape))
            offset += leaf.nbytes
        return jax.tree.unflatten(structure, found)

    def _largest(self, row: Any) -> Any:
        """Returns the largest of each number over all processes, of [N] uint32 of each."""
        rows = np.tile(row, (jax.local_device_count(), 1))
        return np.asarray(self._maximum(jax.make_array_from_process_local_data(divided_over(self._mesh), rows)))

    @functools.cached_property
    def _mesh(self) -> Mesh:
        return make_mesh()

    @functools.cached_property
    def _maximum(self) -> Callable[[Any], Any]:
        return jax.jit(lambda rows: rows.max(axis=0), out_shardings=whole_on(self._mesh))

    def check_devices(self) -> None:
        """Checks that all processes have the same number of devices, which they connect. All processes call it.

        Raises:
          ValueError: They have not.
        """
        counts = [0] * self.size
        for device in jax.devices():
            counts[device.process_index] += 1
        if len({*counts}) > 1:
            other = next(number for number, count in enumerate(counts) if count != counts[0])
            raise ValueError(
                f"all processes must have the same number of devices, but process 0 has {counts[0]} and process "
                f"{other} {counts[other]}"
            )
        with no_output(1):  # gloo prints how many it has connected
            self._largest(np.zeros(1, np.uint32))

    def add(self, index: int, line: _Line) -> None:
        """Adds the connection to a process, which is watched from now on."""
        self._lines[index] = line
        _start(self._watch, index, line)

    def _watch(self, index: int, line: _Line) -> None:
        while message := line.receive():
            if "failed" in message:
                self._lose(str(message["failed"]))
            if "end" in message:
                self._may_end()
            self._calls.put(message)
        self._lose(f"process {index} died; to resume from the last checkpoint, rerun the command of every process")

    def _may_end(self) -> bool:
        """Returns whether the caller is the first that ends this process' part of the run, and says why."""
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
        said = one_line(error) if isinstance(error, Exception) and is_users else type(error).__name__
        self._tell(f"process {self.index} failed: {said}")
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
    given: Mapping[str, Any],
    timeout: float = TIMEOUT,
    report: Callable[[str], object] = print,
) -> Iterator[Group]:
    """Context manager around all that a process does in a run with others; yields their group, current().

    If another process dies or fails, this one prints one line and ends with exit code 2, wherever it is.

    Args:
      place: Of this process; None if it trains alone.
      given: What must be the same in all processes, by name: flags, versions.
      timeout: Seconds within which all processes must have come.
      report: Called with the line that says why this process ends.

    Raises:
      ValueError: The address does not answer or is not free, processes are missing, or they differ.
    """
    global _current
    if place is None:
        yield _current
        return
    group = Group(place.process_id, place.num_processes, report)
    port = (_follow if group.index else _lead)(group, place, given, timeout)
    _current = group
    try:
        _start_jax(place, port, timeout)
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
    for name in (__name__, "jax._src.distributed"):  # warns of HTTP proxies, which are not on the way
        logging.getLogger(name).setLevel(logging.ERROR)
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


# Meeting, before JAX is started.


def _lead(group: Group, place: Place, given: Mapping[str, Any], timeout: float) -> int:
    """Waits for the other processes, and compares what they are given; returns the port of JAX' service, to be."""
    arrivals: queue.SimpleQueue[tuple[_Line, int, Mapping[str, Any]]] = queue.SimpleQueue()
    listener, service = _listen(place.address), _free_port()

    def greet(connection: socket.socket) -> None:
        line = _Line(connection)
        match line.receive():
            case {"tunnel": True}:
                _join(connection, _connected(LOOPBACK, service, timeout))
            case {"process": int(index), "given": dict(others)}:
                arrivals.put((line, index, others))
            case _:
                connection.close()

    _start(_accept, listener, greet)
    lines: list[tuple[int, _Line]] = []
    until, problem = time.monotonic() + timeout, ""
    while len(lines) + 1 < group.size:
        try:
            line, index, others = arrivals.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            came = [number for number, _ in lines]
            missing = ", ".join(str(number) for number in range(1, group.size) if number not in came)
            problem = problem or (
                f"process {missing} of 0 to {group.size - 1} did not come to {place.address} within {timeout:g} s; "
                "start every process with the same command and its own --process_id"
            )
            break
        found = _difference(_plain(given), others, index)
        if not found and (index in dict(lines) or not 0 < index < group.size):
            found = f"two processes have --process_id={index}; give each its own"
        lines.append((index, line))
        if found and not problem:
            problem, until = found, min(until, time.monotonic() + _GRACE)  # for those that have been started with it
    for _, line in lines:
        line.send(refused=problem)
    if problem:
        listener.close()
        raise ValueError(problem)
    for index, line in lines:
        group.add(index, line)
    return service


def _follow(group: Group, place: Place, given: Mapping[str, Any], timeout: float) -> int:
    """Goes to process 0 and waits for the others; returns the port of the tunnel to JAX' service."""
    host, port = _split(place.address)
    until = time.monotonic() + timeout
    try:
        connection = _connected(host, port, timeout)
    except OSError as error:
        raise ValueError(
            f"--coordinator_address={place.address} does not answer within {timeout:g} s ({one_line(error)}); start "
            "process 0 there, with the same command and --process_id=0"
        ) from error
    line = _Line(connection)
    line.send(process=group.index, given=_plain(given))
    connection.settimeout(until - time.monotonic() + timeout)  # process 0 may have begun later
    match line.receive():
        case {"refused": ""}:
            connection.settimeout(None)
        case {"refused": str(problem)}:
            raise ValueError(problem)
        case _:
            raise ValueError(
                f"process 0 at --coordinator_address={place.address} has ended, or another program listens there"
            )
    group.add(0, line)
    entrance = socket.create_server((LOOPBACK, 0))

    def tunnel(of_jax: socket.socket) -> None:
        exit = _connected(host, port, timeout)
        _Line(exit).send(tunnel=True)
        _join(exit, of_jax, stays_open=True)

    _start(_accept, entrance, tunnel)
    return int(entrance.getsockname()[1])


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as they are after a way through JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(given, default=str))
    return plain


def _difference(own: Mapping[str, Any], others: Mapping[str, Any], index: int) -> str:
    """Returns the line about the first of the values that differ between process 0 and another; "" for none."""
    for name in sorted({*own, *others}):
        here, there = own.get(name), others.get(name)
        if here != there:
            return (
                f"the processes differ: {name} is {here!r} in process 0 and {there!r} in process {index}; start all "
                "with the same command, of the same installation"
            )
    return ""


# Connections.


class _Line:
    """Connection to another process, over which both send messages: objects of JSON, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._sends = connection, threading.Lock()
        # Not buffered: what follows the first line of a tunnel is JAX' own.
        self._file = connection.makefile("rb", buffering=0)

    def send(self, **message: Any) -> None:
        """Sends a message, unless the other process is gone: then receive() says so."""
        with self._sends, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Returns the next message; None if there is no more, or what comes is not one."""
        with contextlib.suppress(OSError, ValueError):
            message = json.loads(self._file.readline(_LONGEST))
            return message if isinstance(message, dict) else None
        return None


def _listen(address: str) -> socket.socket:
    """Returns a socket that accepts connections to the port of an address, on all interfaces of this machine."""
    _, port = _split(address)
    try:
        with contextlib.suppress(OSError):  # of a machine without IPv6
            if socket.has_dualstack_ipv6():
                return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise ValueError(
            f"process 0 cannot listen at --coordinator_address={address}: {error.strerror}; use another port"
        ) from error


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as listener:
        return int(listener.getsockname()[1])


def _connected(host: str, port: int, timeout: float) -> socket.socket:
    """Returns a connection to a port, which may be opened later, within `timeout` seconds."""
    until = time.monotonic() + timeout
    while True:
        try:
            connection = socket.create_connection((host, port), max(_RETRY_SECONDS, until - time.monotonic()))
        except OSError:
            if time.monotonic() >= until:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            connection.settimeout(None)
            return _prepared(connection)


def _prepared(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # of Linux
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """Serves each connection in a thread of its own."""
    with contextlib.suppress(OSError):  # the listener is closed
        while True:
            _start(serve, _prepared(listener.accept()[0]))


def _join(one: socket.socket, other: socket.socket, stays_open: bool = False) -> None:
    """Sends all that comes from either of two connections to the other, and their ends; not that of `one` if `other`
    stays open."""
    _start(_pump, other, one, True)
    _pump(one, other, not stays_open)


def _pump(source: socket.socket, sink: socket.socket, closes: bool) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(2**16):
            sink.sendall(content)
    if closes:
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def _start(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, daemon=True, name="jpeg2tpu-processes").start()


def _exit(code: int) -> None:
    """Ends this process at once, without waiting for other threads or processes."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
