"""Worker processes of executors.Processes: a server that forks them, their loop, and the messages.

    command ──sys.path, modules──▶ server (one thread, imports the modules) ──fork──▶ worker
    command ──(function, unit)──▶ worker ──(result or exception, unit's number)──▶ command

The server is a small process with one thread, so that a fork of it inherits no lock that another thread holds; what it
has imported is shared by all workers. A worker has one connection, which it alone holds at its end: if it ends, the
command sees the connection closed. If the command ends, in whatever way, the server sees its own connection closed, and
kills the workers. If the server ends, the kernel kills them.

A message is a small packet with the descriptor of a file in memory (memfd_create(2)), which has the content. So a
message of any size is sent without waiting for the receiver, /dev/shm is not needed, and the memory is free again when
the receiver has dropped what it received. Buffers of the pickle (PEP 574) are not copied.
"""

from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import errno
import gc
import importlib
import itertools
import json
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

_PACKET_BYTES = 1 << 12
_PARTS = 256  # of a message: the pickle and its buffers; their sizes have room in a packet
_PR_SET_PDEATHSIG = 1  # prctl(2)
# NumPy's linear algebra, which nothing here uses, would start a thread for each core in the server.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
_RIGHTS_BYTES = socket.CMSG_LEN(array.array("i").itemsize)  # room for one descriptor
Connection = socket.socket


def connections() -> tuple[Connection, Connection]:
    """Returns the two ends of a new connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(connection: Connection, number: int, message: Any) -> None:
    """Sends a message, with a number of the sender's choice.

    Raises:
      OSError: The other process has ended, or there is no memory for the message.
    """
    buffers = list[pickle.PickleBuffer]()
    content = pickle.dumps(message, 5, buffer_callback=buffers.append)
    parts = [memoryview(content), *(buffer.raw() for buffer in buffers)]
    if len(parts) > _PARTS:
        raise ValueError(f"a message has at most {_PARTS} parts, got {len(parts)}")
    descriptor = _memory()
    try:
        for part in parts:
            _write(descriptor, part)
        packet = struct.pack(f"<{1 + len(parts)}q", number, *map(len, parts))
        socket.send_fds(connection, [packet], [descriptor])
    finally:
        os.close(descriptor)


def receive(connection: Connection, wait: bool = True) -> tuple[int, Any] | None:
    """Returns the number and the content of the next message, None if the other process has ended.

    Raises:
      BlockingIOError: There is none yet, and it is not to wait for one.
      OSError: This process may not open more files, or has no address space for the message.
    """
    # socket.recv_fds() has no flags in Python 3.11, though it takes them.
    try:
        packet, rights, flags, _ = connection.recvmsg(_PACKET_BYTES, _RIGHTS_BYTES, 0 if wait else socket.MSG_DONTWAIT)
    except ConnectionResetError:
        return None
    if not packet:
        return None
    descriptors = array.array("i", b"".join(data for _, _, data in rights))
    if flags & socket.MSG_CTRUNC or not descriptors:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    number, *sizes = struct.unpack(f"<{len(packet) // 8}q", packet)
    try:
        content = memoryview(mmap.mmap(descriptors[0], sum(sizes), access=mmap.ACCESS_READ))
    finally:
        os.close(descriptors[0])
    ends = list(itertools.accumulate(sizes))
    first, *buffers = (content[end - size : end] for size, end in zip(sizes, ends, strict=True))
    return number, pickle.loads(first, buffers=buffers)


def _memory() -> int:
    """Returns the descriptor of a new file in memory; on disk where the kernel refuses that."""
    try:
        return os.memfd_create("jpeg2tpu")
    except OSError:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]  # Linux writes at most 2 GB at once


def start_server(connection: Connection, modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a server, which inherits its end of the connection.

    Args:
      connection: That end, which the caller closes.
      modules: Names of modules to import before workers are forked. None of them may start a thread.
    """
    program = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import serve; serve()"
    warnings = [f"-W{option}" for option in sys.warnoptions]
    arguments = [json.dumps(sys.path), str(connection.fileno()), json.dumps(list(modules))]
    # Ctrl-C, and the SIGTERM of a service manager, reach all processes of a group. Those that have them blocked leave
    # it to the command to end them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        return subprocess.Popen(
            [sys.executable, *warnings, "-c", program, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[connection.fileno()],
            env=os.environ | _ENVIRONMENT,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def serve() -> None:
    """Runs a server, until the command closes its connection: for each connection it receives, it forks a worker."""
    connection = socket.socket(fileno=int(sys.argv[2]))
    workers = list[int]()
    try:
        for module in json.loads(sys.argv[3]):
            importlib.import_module(module)
        gc.collect()
        gc.freeze()  # so that the collector of a worker does not write to pages which all workers share
        while True:
            packet, descriptors, *_ = socket.recv_fds(connection, 1, 1)
            if not packet:
                break
            workers.append(_forked(connection, descriptors[0]))
            os.close(descriptors[0])
    except Exception as error:  # no memory, no more processes: the command reports it
        with contextlib.suppress(OSError):  # it has ended
            send(connection, 0, _portable(error))
    finally:
        for worker in workers:  # none of them has been waited for, so no other process can have the number
            os.kill(worker, signal.SIGKILL)
        for worker in workers:  # so that all have ended when this process has, and it has counted their time
            os.waitpid(worker, 0)
    os._exit(0)  # what modules have registered for the end of Python is not this process's


def _forked(server: Connection, descriptor: int) -> int:
    parent = os.getpid()
    worker = os.fork()
    if worker:
        return worker
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # else the server had ended before
            server.close()
            _work(socket.socket(fileno=descriptor))
    except (OSError, MemoryError):  # the command has ended, or sees that the connection is closed
        pass
    finally:
        os._exit(0)


def begin(function: Callable[[Any], Any], unit: Any) -> Any:
    """Begins a unit with the method that a function may have for it; returns what to call the function with."""
    return function.begin(unit) if hasattr(function, "begin") else unit


def _work(connection: Connection) -> None:
    """Calls the functions that the command sends, until it closes the connection; the next unit is begun before."""
    functions: dict[int, Callable[[Any], Any]] = {}
    begun = collections.deque[tuple[int, Callable[[Any], Any], Any, Exception | None]]()
    while True:
        with contextlib.suppress(BlockingIOError):
            while len(begun) < 2:
                if not (message := receive(connection, wait=not begun)):
                    return
                number, (name, pickled, unit) = message
                try:
                    if pickled:
                        functions[name] = pickle.loads(pickled)
                    begun.append((number, functions[name], begin(functions[name], unit), None))
                except Exception as error:
                    begun.append((number, len, (), error))
                del message, unit
        number, function, unit, failure = begun.popleft()
        try:
            if failure:
                raise failure
            answer: tuple[Any, Exception | None] = function(unit), None
        except Exception as error:
            answer = None, _portable(error)
        del unit
        send(connection, number, answer)
        del answer


def _portable(error: Exception) -> Exception:
    """Returns an exception that can be sent: itself, or one with its text."""
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    except Exception:  # what a class of exceptions raises here can be anything
        pass
    kind = next(kind for kind in (ValueError, OSError, RuntimeError, Exception) if isinstance(error, kind))
    return kind(str(error) or repr(error))
