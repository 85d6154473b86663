"""Worker processes of executors.Processes: a server that forks them, their loop, and the messages.

    command ──sys.path, modules──▶ server (one thread, imports the modules) ──fork──▶ worker
    command ──(function, unit)──▶ worker ──(result or exception, unit's number)──▶ command

The server is a small process with one thread, so that a fork of it inherits no lock that another thread holds; what it
has imported is shared by all workers. A worker has one connection, which it alone holds at its end: if it ends, the
command sees the connection closed. If the command ends, in whatever way, the server sees its own connection closed, and
kills the workers. If the server ends, the kernel kills them.

A message is a packet. A small one has the content, and a larger one the descriptor of a file in memory
(memfd_create(2)) that has it. So a message of any size is sent without waiting for the receiver, and /dev/shm is not
needed. Buffers of the pickle (PEP 574) are not copied.

A worker has a few such files, its slots, and writes a result into one which the command does not read any more: with
each unit the command sends the numbers of the slots whose content it has dropped. A new file for each result would take
the kernel three times as long, because it clears each page and gives it back. If all slots are in use, or a result is
larger than a slot, it has a file of its own, whose memory is free again when the command has dropped it.
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
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from beam_pipelines.runners import heap_limits

_PARTS = 256  # of a message: the pickle and its buffers
_HEAD_BYTES = 8 * (3 + _PARTS)  # of a packet at most: number of parts, of the message and of the slot, sizes of parts
_SMALL_BYTES = 1 << 16  # of content in a packet; a connection has room for three such packets
_SLOT_BYTES = 8 << 20
_SLOTS = 3  # of a worker: one to write, one that the command reads, and one that waits for it
_NO_SLOT = 0
_PR_SET_PDEATHSIG = 1  # prctl(2)
# NumPy's linear algebra, which nothing here uses, would start a thread for each core in the server.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
_RIGHTS_BYTES = socket.CMSG_LEN(array.array("i").itemsize)  # room for one descriptor
Connection = socket.socket


def connections() -> tuple[Connection, Connection]:
    """Returns the two ends of a new connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Slots:
    """Files in memory that a sender has for messages, and writes again when the receiver has dropped the content."""

    def __init__(self) -> None:
        self._descriptors, self._free = list[int](), list[int]()

    def take(self) -> tuple[int, int]:
        """Returns (number of a slot, its descriptor); _NO_SLOT, and a file of its own, if all are in use."""
        if not self._free and len(self._descriptors) < _SLOTS:
            self._descriptors.append(_memory())
            self._free.append(len(self._descriptors))
        if not self._free:
            return _NO_SLOT, _memory()
        number = self._free.pop()
        descriptor = self._descriptors[number - 1]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return number, descriptor

    def release(self, numbers: Iterable[int]) -> None:
        """Lets these slots be written again."""
        self._free += numbers


def send(connection: Connection, number: int, message: Any, slots: Slots | None = None) -> None:
    """Sends a message, with a number of the sender's choice.

    Args:
      connection: To the receiver.
      number: Number of the message.
      message: Its content.
      slots: Files for messages that are not small; None for a new one each time.

    Raises:
      OSError: The other process has ended, or there is no memory for the message.
    """
    buffers = list[pickle.PickleBuffer]()
    content = pickle.dumps(message, 5, buffer_callback=buffers.append)
    parts = [memoryview(content), *(buffer.raw() for buffer in buffers)]
    if len(parts) > _PARTS:
        raise ValueError(f"a message has at most {_PARTS} parts, got {len(parts)}")
    sizes = [len(part) for part in parts]
    if sum(sizes) <= _SMALL_BYTES:
        connection.sendmsg([_head(number, _NO_SLOT, sizes), *parts])
        return
    slot, descriptor = slots.take() if slots and sum(sizes) <= _SLOT_BYTES else (_NO_SLOT, _memory())
    try:
        for part in parts:
            _write(descriptor, part)
        socket.send_fds(connection, [_head(number, slot, sizes)], [descriptor])
    finally:
        if slot == _NO_SLOT:
            os.close(descriptor)


def _head(number: int, slot: int, sizes: list[int]) -> bytes:
    return struct.pack(f"<{3 + len(sizes)}q", len(sizes), number, slot, *sizes)


def receive(
    connection: Connection, wait: bool = True, dropped: Callable[[int], None] | None = None
) -> tuple[int, Any] | None:
    """Returns the number and the content of the next message, None if the other process has ended.

    Args:
      connection: To the sender.
      wait: Whether to wait for a message.
      dropped: Called with the number of a slot when nothing refers to its content any more, in any thread.

    Raises:
      BlockingIOError: There is none yet, and it is not to wait for one.
      OSError: This process may not open more files, or has no address space for the message.
    """
    # socket.recv_fds() has no flags in Python 3.11, though it takes them.
    arguments = _HEAD_BYTES + _SMALL_BYTES, _RIGHTS_BYTES, 0 if wait else socket.MSG_DONTWAIT
    try:
        packet, rights, flags, _ = connection.recvmsg(*arguments)
    except ConnectionResetError:  # the other end was closed with packets unread; what it has sent comes after this
        packet, rights, flags, _ = connection.recvmsg(*arguments)
    if not packet:
        return None
    descriptors = array.array("i", b"".join(data for _, _, data in rights))
    num_parts, number, slot = struct.unpack_from("<3q", packet)
    sizes = struct.unpack_from(f"<{num_parts}q", packet, 24)
    content = memoryview(packet)[24 + 8 * num_parts :]
    if flags & socket.MSG_CTRUNC or (not descriptors and not content):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if descriptors:
        try:
            mapping = mmap.mmap(descriptors[0], sum(sizes), access=mmap.ACCESS_READ)
        finally:
            os.close(descriptors[0])
        if slot != _NO_SLOT and dropped:
            weakref.finalize(mapping, dropped, slot).atexit = False
        content = memoryview(mapping)
        del mapping
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
    heap_limits.apply()
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
    """Calls the functions that the command sends, until it closes the connection; all that wait are begun."""
    functions: dict[int, Callable[[Any], Any]] = {}
    slots = Slots()
    pending = collections.deque[tuple[int, Callable[[Any], Any], Any, Exception | None]]()
    while True:
        with contextlib.suppress(BlockingIOError):
            while True:  # what is there: the command sends few more than one
                if not (message := receive(connection, wait=not pending)):
                    return
                number, (dropped, name, pickled, unit) = message
                slots.release(dropped)
                try:
                    if pickled:
                        functions[name] = pickle.loads(pickled)
                    pending.append((number, functions[name], begin(functions[name], unit), None))
                except Exception as error:
                    pending.append((number, len, (), error))
                del message, unit
        number, function, unit, failure = pending.popleft()
        try:
            if failure:
                raise failure
            answer: tuple[Any, Exception | None] = function(unit), None
        except Exception as error:
            answer = None, _portable(error)
        del unit
        send(connection, number, answer, slots)
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
