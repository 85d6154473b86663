"""Reading of images behind URLs: many at the same time, but few of each host, with retries.

    URL ──submit──▶ waits for its host ──a thread downloads──▶ Future of bytes or Rejected
                          ▲────────── waits for a retry ──────────┘

The sizes of these images are not known in advance, and servers fail now and then. A conversion still gives the same
dataset, byte for byte, after any number of kills:

- Sizes. Shards are cut when all inputs are listed, by url_image_bytes for each URL. With num_shards, shards have
  equally many inputs, and no size matters.
- Place. URLs are read where files are: by the process that makes the records of a unit of a shard, ahead of it. The
  order of the examples, the units and the checks are the same as for files.
- Resumption. A shard with a receipt is never read again; all others are. So what a server answers is decided once for
  each shard, and a server that answers the same gives the same dataset.
- Failures. What fails after all retries is a rejected input, as a damaged file is: timeout, unreachable, http_503. A
  later --extend tries it again.
- No network. If not one server answers any of so many URLs in a row, the fault is not theirs: the conversion ends, and
  is resumed later. Shards that are complete by then stay as they are.
- Memory. What is read ahead waits in temporary files if it is not small.

The limits apply to a command on one machine: each of its processes has its share. On an engine, they apply to each
worker process.
"""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import os
import tempfile
import threading
import time
from concurrent.futures import Future
from typing import IO, TYPE_CHECKING, NamedTuple

from beam_pipelines import storage
from beam_pipelines.options import UrlOptions
from beam_pipelines.sources.url_names import domain
from tpu_input.stored_images.check import Rejected

if TYPE_CHECKING:  # urllib3 takes a tenth of the start of a conversion, and most conversions read no URLs
    from beam_pipelines.sources.url_download import Downloader

_FIRST_WAIT, _MOST_WAIT = 0.5, 60.0  # seconds before a retry, if the server names no time, and if it does
_SMALL_BYTES = 256 << 10  # of a body that waits in memory
_UNANSWERED = 200  # URLs in a row without any answer, after which the network is taken to be the cause
_SECONDS_IDLE = 5.0  # after which a thread without work ends


class Spool:
    """Where bytes wait that were read ahead, until close(): in memory, or in a file if they are many."""

    def __init__(self) -> None:
        """Makes one without a file."""
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._num_bytes = 0

    def close(self) -> None:
        with self._lock:
            if self._file:
                self._file.close()

    def put(self, data: bytes) -> Body:
        """Returns what has the bytes of `data`."""
        if len(data) <= _SMALL_BYTES:
            return Body(data)
        with self._lock:
            self._file = self._file or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            begin, self._num_bytes = self._num_bytes, self._num_bytes + len(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.pwrite(self._file.fileno(), rest, begin + len(data) - len(rest)) :]
        return Body(b"", self._file, begin, len(data))


class Body(NamedTuple):
    """The bytes behind a URL: these, or some of a file."""

    data: bytes
    file: IO[bytes] | None = None
    begin: int = 0
    num_bytes: int = 0

    def read(self) -> bytes:
        """Returns the bytes."""
        if not self.file:
            return self.data
        pieces, num_bytes = list[bytes](), 0
        while num_bytes < self.num_bytes:
            pieces.append(os.pread(self.file.fileno(), self.num_bytes - num_bytes, self.begin + num_bytes))
            num_bytes += len(pieces[-1])
        return b"".join(pieces)


class _Task:
    """A URL in the queue."""

    def __init__(self, number: int, url: str, spool: Spool) -> None:
        self.number, self.url, self.host, self.spool = number, url, domain(url), spool
        self.num_tries = 0
        self.future: Future[Body | Rejected] = Future()


class UrlReader:
    """Reads URLs in threads of its own, which end when there is nothing to read."""

    def __init__(self, options: UrlOptions, num_processes: int = 1, is_patient: bool = False) -> None:
        """Makes a reader without threads.

        Args:
          options: Limits of the command.
          num_processes: Number of processes that share them.
          is_patient: Whether URLs are rejected however many of them in a row have no answer.
        """
        self._options, self._is_patient = options, is_patient
        self._downloader: Downloader | None = None
        self._num_threads = -(-options.url_concurrency // num_processes)
        self._num_per_host = -(-options.url_host_concurrency // num_processes)
        self._room = threading.Condition()  # of all below
        self._waiting: dict[str, collections.deque[_Task]] = {}  # by host
        self._delayed = list[tuple[float, int, _Task]]()  # a heap of those that are tried again, by time
        self._reading = collections.Counter[str]()
        self._numbers = itertools.count()
        self._num_started = self._num_unanswered = 0

    def submit(self, url: str, spool: Spool) -> Future[Body | Rejected]:
        """Returns what will hold the bytes behind a URL, or why there are none; or raises storage.Unavailable."""
        from beam_pipelines.sources.url_download import Downloader

        with self._room:
            downloader = self._downloader = self._downloader or Downloader(self._options)
            task = _Task(next(self._numbers), url, spool)
            self._waiting.setdefault(task.host, collections.deque()).append(task)
            if self._num_started < self._num_threads:
                self._num_started += 1
                threading.Thread(target=self._read_tasks, args=(downloader,), daemon=True).start()
            self._room.notify()
        return task.future

    def _read_tasks(self, downloader: Downloader) -> None:
        while task := self._next():
            outcome = self._outcome(task, downloader)
            with self._room:
                self._reading[task.host] -= 1
                if not self._reading[task.host]:
                    del self._reading[task.host]
                self._room.notify()
            if isinstance(outcome, BaseException) and not isinstance(outcome, Rejected):
                task.future.set_exception(outcome)
            elif outcome:
                task.future.set_result(outcome)

    def _next(self) -> _Task | None:
        """Returns the URL to read next; None if this thread has waited long for one, and ends."""
        idle_until = time.monotonic() + _SECONDS_IDLE
        with self._room:
            while True:
                now = time.monotonic()
                while self._delayed and self._delayed[0][0] <= now:
                    task = heapq.heappop(self._delayed)[2]
                    self._waiting.setdefault(task.host, collections.deque()).appendleft(task)
                free = [host for host in self._waiting if self._reading[host] < self._num_per_host]
                if free:
                    host = min(free, key=lambda host: self._waiting[host][0].number)
                    task = self._waiting[host].popleft()
                    if not self._waiting[host]:
                        del self._waiting[host]
                    if not task.num_tries and not task.future.set_running_or_notify_cancel():
                        continue
                    self._reading[host] += 1
                    return task
                if now >= idle_until and not self._delayed and not self._waiting:
                    self._num_started -= 1
                    return None
                # With a URL to try again at some time, not all threads need to wake; any of them takes it.
                wake = self._delayed[0][0] if self._delayed else now + _SECONDS_IDLE
                self._room.wait(max(min(wake, now + _SECONDS_IDLE) - now, 0.001))

    def _outcome(self, task: _Task, downloader: Downloader) -> Body | Rejected | BaseException | None:
        """Returns what came of a URL; None if it is tried again."""
        from beam_pipelines.sources.url_download import TryAgain

        task.num_tries += 1
        try:
            body = task.spool.put(downloader.read(task.url))
        except Rejected as rejected:
            # Kept until its row is written, without the frames of its traceback.
            return self._rejected(rejected, rejected.reason not in _NETWORK_REASONS)
        except TryAgain as error:
            if task.num_tries <= self._options.url_retries and self._delay(task, error.after):
                return None
            return self._rejected(error.rejected, error.answered)
        except BaseException as error:  # no memory, no more threads: whoever waits has to raise it
            return error
        with self._room:
            self._num_unanswered = 0
        return body

    def _delay(self, task: _Task, after: float | None) -> bool:
        """Puts a URL back for a retry; returns False if its server asks for a longer wait than _MOST_WAIT."""
        seconds = _FIRST_WAIT * 2 ** (task.num_tries - 1) if after is None else after
        if seconds > _MOST_WAIT:
            return False
        with self._room:
            heapq.heappush(self._delayed, (time.monotonic() + seconds, task.number, task))
            self._room.notify_all()
        return True

    def _rejected(self, rejected: Rejected, was_answered: bool) -> Rejected | storage.Unavailable:
        rejected.__traceback__ = rejected.__context__ = rejected.__cause__ = None
        with self._room:
            self._num_unanswered = 0 if was_answered else self._num_unanswered + 1
            if self._num_unanswered < _UNANSWERED or self._is_patient:
                return rejected
        return storage.Unavailable(
            f"no server has answered any of {_UNANSWERED} URLs in a row, the last because {rejected.detail}; check the "
            "network; if the URLs are the cause, --max_rejected=100% rejects all that cannot be read"
        )


# A private network may answer with an address of its own for any name.
_NETWORK_REASONS = ("unreachable", "private_address")


# Returns the one reader of this process with these limits.
url_reader = functools.lru_cache(maxsize=4)(UrlReader)
