"""Connections between the processes of a run: how they meet, before JAX is started, and send each other messages.

    process 1 ──"I am process 1, with these flags and versions"──▶ coordinator's address, at which process 0 listens
    JAX in process 1 ──▶ 127.0.0.1 ──tunnel──▶ coordinator's address ──▶ 127.0.0.1: JAX's service, in process 0

JAX aborts a process with a stack trace as soon as its connection to that service breaks. So its messages, such as which
devices there are, are tunneled through our own port. When process 0 is gone, JAX's end of the tunnel stays open until
processes.py has ended the process with one line.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from estimator_app.runtime.tensorflow_startup import one_line

LOOPBACK = "127.0.0.1"
_RETRY_SECONDS = 0.2
_LATE_SECONDS = 5.0  # within which processes that were started together have come
_LONGEST = 2**24  # bytes of a message
# A machine that is gone without closing its connections is noticed after 20 + 6 * 10 seconds, before JAX aborts.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class Place(NamedTuple):
    """Where a process is among all processes of a run.

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

    def check(self) -> None:
        """Raises ValueError if the address is none, or the numbers do not fit each other."""
        if not 0 <= self.process_id < self.num_processes:
            raise ValueError(
                f"--process_id must be at least 0 and below --num_processes={self.num_processes}, got {self.process_id}"
            )
        _ = self.host_and_port

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ValueError(f"--coordinator_address must be HOST:PORT, such as 10.0.0.1:1234, got {self.address!r}")
        return host.strip("[]"), int(port)


class Met(NamedTuple):
    """What meet() returns.

    Attributes:
      lines: Connection to each other process by its number; of all but process 0, that to process 0 alone.
      service_port: Port of this machine that leads to JAX's service, which process 0 starts later.
    """

    lines: dict[int, Line]
    service_port: int


def meet(place: Place, settings: Mapping[str, Any], timeout: float) -> Met:
    """Connects the processes of a run, and compares what they are given.

    Args:
      place: Of this process.
      settings: What must be the same in all processes, by name: flags, versions.
      timeout: Seconds within which all processes must have come.

    Raises:
      ValueError: The address does not answer or is not free, processes are missing, or they differ.
    """
    settings = json.loads(json.dumps(settings, default=str))  # as they arrive from the others
    return (_follow if place.process_id else _lead)(place, settings, timeout)


def _lead(place: Place, settings: Mapping[str, Any], timeout: float) -> Met:
    """Waits for the other processes in process 0."""
    arrivals: queue.SimpleQueue[tuple[int, Line, Mapping[str, Any]]] = queue.SimpleQueue()
    listener, service_port = _listen(place), _free_port()

    def greet(connection: socket.socket) -> None:
        line = Line(connection)
        match line.receive():
            case {"tunnel": True}:
                with contextlib.suppress(OSError):  # the run ends before JAX was started
                    _join(connection, connect(LOOPBACK, service_port, timeout))
            case {"process": int(index), "given": dict(others)}:
                arrivals.put((index, line, others))
            case _:
                connection.close()

    start_thread(_accept, listener, greet)
    came: list[tuple[int, Line]] = []
    until, problem = time.monotonic() + timeout, ""
    while len(came) + 1 < place.num_processes:
        try:
            index, line, others = arrivals.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            problem = problem or _missing(place, [index for index, _ in came], timeout)
            break
        difference = _difference(settings, others, index)
        if not difference and (index in dict(came) or not 0 < index < place.num_processes):
            difference = f"two processes have --process_id={index}; give each its own"
        came.append((index, line))
        if difference and not problem:
            problem, until = difference, min(until, time.monotonic() + _LATE_SECONDS)
    for _, line in came:
        line.send(refused=problem)
    if problem:
        listener.close()
        raise ValueError(problem)
    return Met(dict(came), service_port)


def _follow(place: Place, settings: Mapping[str, Any], timeout: float) -> Met:
    """Goes to process 0 from another one, and waits until all have come."""
    host, port = place.host_and_port
    try:
        connection = connect(host, port, timeout)
    except OSError as error:
        raise ValueError(
            f"--coordinator_address={place.address} does not answer within {timeout:g} s ({one_line(error)}); start "
            "process 0 there, with the same command and --process_id=0"
        ) from error
    line = Line(connection)
    line.send(process=place.process_id, given=settings)
    connection.settimeout(timeout + 2 * _LATE_SECONDS)  # process 0 may have begun to wait just now
    match line.receive():
        case {"refused": ""}:
            connection.settimeout(None)
        case {"refused": str(problem)}:
            raise ValueError(problem)
        case _:
            raise ValueError(
                f"process 0 at --coordinator_address={place.address} has ended, or another program listens there"
            )
    entrance = socket.create_server((LOOPBACK, 0))

    def tunnel(jax_connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # process 0 is gone, as its line says
            to_service = connect(host, port, timeout)
            Line(to_service).send(tunnel=True)
            _join(to_service, jax_connection, stays_open=True)

    start_thread(_accept, entrance, tunnel)
    return Met({0: line}, int(entrance.getsockname()[1]))


def _missing(place: Place, came: Sequence[int], timeout: float) -> str:
    numbers = ", ".join(str(index) for index in range(1, place.num_processes) if index not in came)
    return (
        f"process {numbers} of 0 to {place.num_processes - 1} did not come to {place.address} within {timeout:g} s; "
        "start every process with the same command and its own --process_id"
    )


def _difference(settings: Mapping[str, Any], others: Mapping[str, Any], index: int) -> str:
    """Returns the line about the first of the values that differ between process 0 and another; "" for none."""
    for name in sorted({*settings, *others}):
        value, other = settings.get(name), others.get(name)
        if value != other:
            return (
                f"the processes differ: {name} is {value!r} in process 0 and {other!r} in process {index}; start all "
                "with the same command, of the same installation"
            )
    return ""


class Line:
    """Connection to another process, over which both send messages: objects of JSON, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._sends = connection, threading.Lock()

    def send(self, **message: Any) -> None:
        """Sends a message, unless the other process is gone: then receive() says so."""
        with self._sends, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Returns the next message; None if there is no more, or what comes is not one."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            message = json.loads(self._read_line())
            return message if isinstance(message, dict) else None
        return None

    def _read_line(self) -> bytes:
        """Returns what comes up to the end of a line, and leaves what follows: in a tunnel, that is JAX's own."""
        line = b""
        while not line.endswith(b"\n") and len(line) < _LONGEST:
            ahead = self._connection.recv(2**16, socket.MSG_PEEK)
            if not ahead:
                break
            line += self._connection.recv(ahead.find(b"\n") + 1 or len(ahead))
        return line


def _listen(place: Place) -> socket.socket:
    """Returns a socket that accepts connections to the port of the address, on all interfaces of this machine."""
    _, port = place.host_and_port
    try:
        with contextlib.suppress(OSError):  # of a machine without IPv6
            if socket.has_dualstack_ipv6():
                return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise ValueError(
            f"process 0 cannot listen at --coordinator_address={place.address}: {error.strerror}; use another port"
        ) from error


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as listener:
        return int(listener.getsockname()[1])


def connect(host: str, port: int, timeout: float) -> socket.socket:
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
            start_thread(serve, _prepared(listener.accept()[0]))


def _join(one: socket.socket, other: socket.socket, stays_open: bool = False) -> None:
    """Sends all that comes from either of two connections to the other, and its end unless `other` stays open."""
    start_thread(_pump, other, one, True)
    _pump(one, other, not stays_open)


def _pump(source: socket.socket, sink: socket.socket, closes: bool) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(2**16):
            sink.sendall(content)
    if closes:
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def start_thread(work: Callable[..., None], *arguments: Any) -> None:
    """Starts a thread that does not keep the process alive."""
    threading.Thread(target=work, args=arguments, daemon=True, name="jpeg2tpu-processes").start()
