"""Executors: they call a function for each unit of work and return the results in order, in bounded memory.

    with executor_of(num_workers) as executor:
        for result in executor.map_units(function, units):

| executor  | calls the function in                          | is for                                            |
|-----------|------------------------------------------------|---------------------------------------------------|
| Inline    | the caller's thread                            | a single core                                     |
| Threads   | threads of this process                        | what waits for a storage; workers of an engine;   |
|           |                                                | so little work that processes would take longer   |
|           |                                                | to start than they save                           |
| Processes | processes of this machine, see worker_process  | everything else                                   |

Several threads may call map_units() at the same time; they share the workers and the memory. Python's lock lets two
threads decode images 1.6 times as fast as one, and small images hardly faster: hence processes. Beam's local runner has
processes as well, but hangs when one of them is killed. Here the caller gets an error at once.
"""

from __future__ import annotations

import collections
import contextlib
import pickle
import resource
import selectors
import socket
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from beam_pipelines.runners import worker_process

_Unit = TypeVar("_Unit")
_Result = TypeVar("_Result")
UNIT_BYTES = 4 << 20  # of sources in a unit
_IN_FLIGHT = 3  # units for each worker: one in work, one that waits for it, one whose result waits to be taken
# Of each worker, where units take seconds of waiting: with hundreds of URLs in flight, a few slow ones do not stop it.
MANY_IN_FLIGHT = 16
# With about so many images, processes save as much time as they take to start.
_FEW_IMAGES, _FEW_BYTES = 2_000, 32_000_000
_OTHER_FILES = 32  # that a process has open at most besides those for workers
ENDED = "a worker process has ended: it was killed, perhaps because memory ran out"


class Executor(Protocol):
    """Interface of the executors, which are context managers: after the body, all that they have started has ended.

    Attributes:
      num_workers: Number of units that are in work at the same time.
      num_processes: Number of processes that work on them.
    """

    num_workers: int
    num_processes: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets map_units() in other threads end with CancelledError, without what they have in flight."""

    def map_units(
        self,
        function: Callable[[Any], _Result],
        units: Iterable[_Unit],
        num_bytes: Callable[[_Unit], int] = lambda unit: 0,
    ) -> Generator[_Result, None, None]:
        """Yields function(unit) for every unit, in order.

        At most _IN_FLIGHT units for each worker, or what the executor was made with, are in flight: taken from `units`,
        and the result not yet taken by the caller. On average they have at most UNIT_BYTES; a larger unit is in flight
        alone.

        If the function has a method begin(unit), that is called while a unit before is in work, in order to start
        reading, and the function is called with what it returns instead of the unit.

        Args:
          function: Function to call. Processes need one that can be pickled, as the units; a pickle.PickleBuffer in a
            result arrives as a memoryview.
          units: Its arguments.
          num_bytes: Returns the size of a unit in memory.

        Raises:
          concurrent.futures.CancelledError: The executor was closed in the meantime.
          OSError: A worker process was killed.
          Exception: What the function raised for the first unit for which it did.
        """


class Inline(Executor):
    """Calls functions in the caller's thread."""

    num_workers = num_processes = 1

    def __init__(self, units_per_worker: int = 2) -> None:
        """Makes the executor; so many units are begun before the first of them is in work."""
        self._units_per_worker, self._is_closed = units_per_worker, False

    def close(self) -> None:
        self._is_closed = True

    def map_units(
        self,
        function: Callable[[Any], _Result],
        units: Iterable[_Unit],
        num_bytes: Callable[[_Unit], int] = lambda unit: 0,
    ) -> Generator[_Result, None, None]:
        pending = collections.deque[Any]()
        for unit in units:
            pending.append(worker_process.begin(function, unit))
            if len(pending) >= self._units_per_worker:
                yield self._call(function, pending.popleft())
        while pending:
            yield self._call(function, pending.popleft())

    def _call(self, function: Callable[[Any], _Result], argument: Any) -> _Result:
        if self._is_closed:
            raise CancelledError
        return function(argument)


class _Pool(Executor):
    """What Threads and Processes share: the number and the bytes of the units in flight, and the order of results."""

    def __init__(self, num_workers: int, units_per_worker: int = _IN_FLIGHT, unit_bytes: int = UNIT_BYTES) -> None:
        self.num_workers = num_workers
        self._room = threading.Condition()
        self._most = max(units_per_worker * num_workers, 2)
        self._most_bytes = self._most * unit_bytes
        self._num_units, self._num_bytes, self._num_callers = 0, 0, 0

    def map_units(
        self,
        function: Callable[[Any], _Result],
        units: Iterable[_Unit],
        num_bytes: Callable[[_Unit], int] = lambda unit: 0,
    ) -> Generator[_Result, None, None]:
        flight = collections.deque[tuple[Future[_Result], int]]()
        submit = self._submitter(function)
        with self._room:
            self._num_callers += 1
        try:
            for unit in units:
                size = num_bytes(unit)
                while not self._begin(size, len(flight)):
                    yield self._take(flight)
                try:
                    future = submit(unit)
                except BaseException:
                    self._end(size)
                    raise
                flight.append((future, size))
            while flight:
                yield self._take(flight)
        finally:
            for future, size in flight:
                future.cancel()
                self._end(size)
            with self._room:
                self._num_callers -= 1
                self._room.notify_all()

    def _submitter(self, function: Callable[[Any], _Result]) -> Callable[[Any], Future[_Result]]:
        raise NotImplementedError

    def _begin(self, size: int, num_own: int) -> bool:
        """Makes room for a unit; returns False if the caller, which has `num_own` in flight, has to take one first."""

        def is_free() -> bool:
            is_alone = not self._num_units
            return is_alone or (self._num_units < self._most and self._num_bytes + size <= self._most_bytes)

        with self._room:
            share = max(-(-self._most // self._num_callers), 2)
            if num_own and (num_own >= share or not is_free()):
                return False
            self._room.wait_for(is_free)
            self._num_units += 1
            self._num_bytes += size
            return True

    def _take(self, flight: collections.deque[tuple[Future[_Result], int]]) -> _Result:
        future, size = flight[0]
        result = future.result()
        flight.popleft()
        self._end(size)
        return result

    def _end(self, size: int) -> None:
        with self._room:
            self._num_units -= 1
            self._num_bytes -= size
            self._room.notify_all()


class Threads(_Pool):
    """Calls functions in threads of this process."""

    num_processes = 1

    def __init__(self, num_threads: int, units_per_worker: int = _IN_FLIGHT, unit_bytes: int = UNIT_BYTES) -> None:
        """Makes the executor; its threads start when there are units for them.

        Args:
          num_threads: Maximum number of threads.
          units_per_worker: Maximum number of units for each thread that are in flight.
          unit_bytes: Their size on average.
        """
        super().__init__(num_threads, units_per_worker, unit_bytes)
        self._threads = ThreadPoolExecutor(num_threads)

    def __exit__(self, *error: object) -> None:
        self.close()
        self._threads.shutdown()

    def _submitter(self, function: Callable[[Any], _Result]) -> Callable[[Any], Future[_Result]]:
        def submit(unit: Any) -> Future[_Result]:
            try:
                return self._threads.submit(function, worker_process.begin(function, unit))
            except RuntimeError as error:
                if "shutdown" in str(error):
                    raise CancelledError from None
                raise

        return submit

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def threads_or_inline(num_threads: int, units_per_worker: int = _IN_FLIGHT) -> Executor:
    """Returns an executor that starts no processes: Inline for one thread, otherwise Threads."""
    return Inline(units_per_worker - 1) if num_threads == 1 else Threads(num_threads, units_per_worker)


def map_in_threads(
    function: Callable[[_Unit], _Result], units: Iterable[_Unit], num_threads: int
) -> Generator[_Result, None, None]:
    """Yields function(unit) for every unit, in order, from threads of its own: for what waits for a storage."""
    with Threads(num_threads) as threads:
        yield from threads.map_units(function, units)


def is_much_work(num_images: int, num_bytes: int) -> bool:
    """Returns whether processes save more time than they take to start, with so many images in so many bytes."""
    return num_images > _FEW_IMAGES or num_bytes > _FEW_BYTES


def local_executor(num_workers: int, is_much: bool, module: str, units_per_worker: int = _IN_FLIGHT) -> Executor:
    """Returns what works on images on this machine.

    Args:
      num_workers: Maximum number of processes or threads.
      is_much: As is_much_work() has it.
      module: Name of a module that all processes need, see Processes.
      units_per_worker: Maximum number of units for each worker that are in flight.
    """
    if is_much and num_workers > 1:
        return Processes(num_workers, [module], units_per_worker)
    return threads_or_inline(num_workers, units_per_worker)


class _Task(NamedTuple):
    function: bytes
    unit: Any
    future: Future[Any]


class _Worker(NamedTuple):
    """A worker process, seen from the command.

    Attributes:
      connection: To the process.
      tasks: Tasks that were sent to it, by number.
      functions: Names of the functions that it knows.
      dropped: Numbers of the slots whose content is not needed any more, which it is not told yet.
    """

    connection: worker_process.Connection
    tasks: dict[int, _Task]
    functions: set[int]
    dropped: collections.deque[int]


class Processes(_Pool):
    """Calls functions in processes of this machine, which end when this process does.

    A process is started when a unit has no idle one to go to.
    """

    def __init__(self, num_processes: int, modules: Sequence[str] = (), units_per_worker: int = _IN_FLIGHT) -> None:
        """Makes the executor, and starts the server that forks the processes.

        Args:
          num_processes: Maximum number of processes; fewer if so many files cannot be open.
          modules: Names of modules that they have in common, which are imported only once.
          units_per_worker: Maximum number of units for each process that are in flight.
        """
        super().__init__(min(num_processes, _most_processes(units_per_worker)), units_per_worker)
        self.num_processes = self.num_workers
        self._queued = units_per_worker - 1  # units that a process has: the one in work, and those that it has begun
        self._lock = threading.Lock()  # of all below
        self._workers = list[_Worker]()
        self._queue = collections.deque[_Task]()
        self._names: dict[bytes, int] = {}
        self._num_sent = 0
        self._error: BaseException | None = None
        self._selector = selectors.DefaultSelector()
        self._server, end = worker_process.connections()
        self._selector.register(self._server, selectors.EVENT_READ)
        try:
            with end:
                self._process = worker_process.start_server(end, modules)
            self._receiver = threading.Thread(target=self._receive, daemon=True)
            self._receiver.start()
        except BaseException:  # the server ends when its connection is closed
            self._server.close()
            self._selector.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()
        self._receiver.join()
        self._process.wait()

    def close(self) -> None:
        self._fail(CancelledError())

    def _submitter(self, function: Callable[[Any], _Result]) -> Callable[[Any], Future[_Result]]:
        pickled = pickle.dumps(function)

        def submit(unit: Any) -> Future[_Result]:
            task = _Task(pickled, unit, Future[Any]())
            with self._lock:
                if self._error:
                    raise self._error
                self._queue.append(task)
                self._dispatch()
            return task.future

        return submit

    def _dispatch(self) -> None:
        """Sends tasks to processes that have room for them; the caller holds the lock."""
        while self._queue:
            worker = min(self._workers, key=lambda worker: len(worker.tasks), default=None)
            if (not worker or worker.tasks) and len(self._workers) < self.num_workers:
                worker = self._start()
            if not worker or len(worker.tasks) >= self._queued:
                return
            task = self._queue.popleft()
            if not task.future.set_running_or_notify_cancel():
                continue
            name = self._names.setdefault(task.function, len(self._names))
            dropped = [worker.dropped.popleft() for _ in range(len(worker.dropped))]  # more may come meanwhile
            content = dropped, name, b"" if name in worker.functions else task.function, task.unit
            worker.functions.add(name)
            self._num_sent += 1
            worker.tasks[self._num_sent] = task
            with contextlib.suppress(BrokenPipeError):  # it was killed, which _receive() finds out
                worker_process.send(worker.connection, self._num_sent, content)

    def _start(self) -> _Worker:
        connection, end = worker_process.connections()
        with end, contextlib.suppress(BrokenPipeError):  # likewise
            socket.send_fds(self._server, [b"+"], [end.fileno()])
        worker = _Worker(connection, {}, set(), collections.deque())
        self._workers.append(worker)
        self._selector.register(connection, selectors.EVENT_READ, worker)
        return worker

    def _receive(self) -> None:
        """Gives results to those who wait for them, until the executor is closed or a process has ended."""
        try:
            while not self._error:
                ready = [key.data for key, _ in self._selector.select()]
                # What the server reports explains why its workers have ended.
                for worker in sorted(ready, key=lambda worker: worker is not None):
                    self._receive_from(worker)
        except BaseException as error:  # no memory, no more open files: those who wait have to raise it
            self._fail(error)
        finally:
            for connection in (self._server, *(worker.connection for worker in self._workers)):
                connection.close()
            self._selector.close()

    def _receive_from(self, worker: _Worker | None) -> None:
        if worker:
            message = worker_process.receive(worker.connection, dropped=worker.dropped.append)
        else:
            message = worker_process.receive(self._server)
        if not message:
            raise OSError(ENDED)
        number, content = message
        if not worker:
            raise content
        result, error = content
        with self._lock:
            task = worker.tasks.pop(number, None)
            self._dispatch()
        if task and error:
            task.future.set_exception(error)
        elif task:
            task.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        """Ends all processes; from now on, those who wait for a result get this error."""
        with self._lock:
            if self._error:
                return
            self._error = error
            tasks = [task for worker in self._workers for task in worker.tasks.values()]
            for worker in self._workers:
                worker.tasks.clear()
            waiting = [task for task in self._queue if task.future.set_running_or_notify_cancel()]
            self._queue.clear()
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)  # wakes _receive(), and lets the server kill the workers
        for task in [*tasks, *waiting]:
            task.future.set_exception(error)


def _most_processes(units_per_worker: int) -> int:
    """Returns how many worker processes the limit of open files allows."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A connection, and a result of each unit.
    return 1 << 16 if limit == resource.RLIM_INFINITY else max((limit - _OTHER_FILES) // (1 + units_per_worker), 1)
