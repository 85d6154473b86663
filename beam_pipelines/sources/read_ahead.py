"""Prefetching of inputs: files are read and decoded ahead, in order, in bounded memory.

    [Row] ──read, many in flight──▶ (Row, bytes) ──decode and more, one core each──▶ (Row, result or Rejected)

Pillow, hashlib and file reads release the GIL, so threads run in parallel, but with limits: two threads that decode are
1.6 times as fast as one. One process per core is faster (runners/executors.py), and each reads units of rows with a
Reader. A read from an object store takes tens of milliseconds, in which a core could decode dozens of images; many
reads in flight hide this latency. Local files in the kernel's page cache are read by the thread that needs them.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import resource
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from beam_pipelines import storage
from beam_pipelines.options import UrlOptions
from beam_pipelines.runners.executors import Threads, map_in_threads, threads_or_inline
from beam_pipelines.sources.rows import Row
from beam_pipelines.sources.url_names import is_url
from beam_pipelines.sources.url_reading import Body, Spool, UrlReader, url_reader
from tpu_input.command_line.wording import enumerated
from tpu_input.stored_images.check import Rejected

_READS_IN_FLIGHT = 64  # chunks
_BYTES_IN_FLIGHT = 32 << 20  # of sources read ahead; a larger chunk is read alone
# Passing an image between threads takes a tenth of the time of decoding it, so small images are passed in chunks.
_CHUNK_ROWS = 8
_CHUNK_BYTES = 1 << 20
# Local chunks that threads read after one for which this thread had to wait: few after a single wait, and twice as many
# each time that the next read has to wait again.
_LEAST_AHEAD, _MOST_AHEAD = _READS_IN_FLIGHT, 16 * _READS_IN_FLIGHT
_OUT = TypeVar("_OUT")
Loaded = tuple[Row, bytes | Rejected]
_READS_OF_UNIT = _READS_IN_FLIGHT // 2  # while one unit is decoded, another is read
_MOST_UNITS_AHEAD = 16


def map_images(
    rows: Iterable[Row],
    function: Callable[[Row, bytes], _OUT],
    num_decoders: int,
) -> Generator[tuple[Row, _OUT | Rejected], None, None]:
    """Yields every row with function(row, its bytes), or with the Rejected that explains why not, in order.

    Args:
      rows: Rows to read.
      function: Decodes an image, or raises Rejected.
      num_decoders: Number of threads that call `function`; with 1, the caller's thread calls it.
    """

    def check_chunk(chunk: list[Loaded]) -> list[tuple[Row, _OUT | Rejected]]:
        return [(row, checked(row, data, function)) for row, data in chunk]

    with threads_or_inline(num_decoders) as decoders:
        for chunk in decoders.map_units(check_chunk, _loaded_chunks(rows), _loaded_bytes):
            yield from chunk


def checked(row: Row, data: bytes | Rejected, function: Callable[[Row, bytes], _OUT]) -> _OUT | Rejected:
    """Returns function(row, its bytes), or the Rejected that explains why not: what `data` is, or `function` raises."""
    if isinstance(data, Rejected):
        return data
    try:
        return function(row, data)
    except Rejected as rejected:
        # Kept until its row is written; the frames of its traceback, and of the errors before it, hold the image.
        rejected.__traceback__ = rejected.__context__ = rejected.__cause__ = None
        return rejected
    except MemoryError as error:
        raise _unavailable(row, "there is not enough memory") from error


class Reader:
    """Reads the rows of one unit after another; it begins to read the next one early where reading takes time.

    That is so for object stores. Files of a local disk are read when they are needed, as map_images() does, until one
    was not in the page cache: then the next unit is read ahead, and twice as many each time that one has to be waited
    for again.
    """

    def __init__(self) -> None:
        self._num_ahead, self._next_ahead = 0, 1  # units that are still to be read ahead, and after the next wait

    def begin(self, rows: list[Row], urls: UrlReader | None = None) -> Iterator[Loaded]:
        """Returns an iterator of the rows of a unit with their bytes, or with the Rejected of why not, in order.

        Args:
          rows: The rows.
          urls: What reads URLs; None if there are none.
        """
        if urls and any(_is_behind_url(row) for row in rows):
            return _with_urls(rows, urls)
        if any(storage.is_uri(row.uri) for row in rows):
            return _started([[row] for row in rows])
        if self._num_ahead:
            self._num_ahead -= 1
            return _started(_for_readers(rows))
        return self._read_here(rows)

    def _read_here(self, rows: list[Row]) -> Iterator[Loaded]:
        for number, row in enumerate(rows):
            waits = _num_waits()
            loaded = _read(row)
            has_waited = _num_waits() > waits
            yield loaded
            if has_waited:
                self._num_ahead, self._next_ahead = self._next_ahead, min(2 * self._next_ahead, _MOST_UNITS_AHEAD)
                yield from _started(_for_readers(rows[number + 1 :]))
                return
        self._next_ahead = 1


def _started(chunks: list[list[Row]]) -> Iterator[Loaded]:
    """Starts reading, in threads that end when they have; returns an iterator of what they read."""
    readers = ThreadPoolExecutor(_READS_OF_UNIT)
    futures = collections.deque(readers.submit(_read_chunk, chunk) for chunk in chunks)
    readers.shutdown(wait=False)

    def loaded() -> Iterator[Loaded]:
        while futures:
            yield from futures.popleft().result()

    return loaded()


def _for_readers(rows: list[Row]) -> list[list[Row]]:
    """Divides the rows of a unit so that all threads that read it have some: a few large images, one each."""
    num_rows = max(-(-len(rows) // _READS_OF_UNIT), 1)
    return [rows[begin : begin + num_rows] for begin in range(0, len(rows), num_rows)]


def _is_behind_url(row: Row) -> bool:
    return not row.reason and is_url(row.uri)


def _with_urls(rows: list[Row], urls: UrlReader) -> Iterator[Loaded]:
    """Starts reading rows with URLs among them; returns an iterator of what was read."""
    files = _started([[row] for row in rows if not _is_behind_url(row)])
    spool = Spool()
    futures = collections.deque((row, urls.submit(row.uri, spool) if _is_behind_url(row) else None) for row in rows)

    def loaded() -> Iterator[Loaded]:
        with contextlib.closing(spool):
            while futures:
                row, future = futures.popleft()
                yield next(files) if future is None else _with_body(row, future.result())

    return loaded()


def _with_body(row: Row, body: Body | Rejected) -> Loaded:
    if isinstance(body, Rejected):
        return row, body
    data = body.read()
    return row._replace(num_bytes=len(data)), data


def read_rows(rows: Iterable[Row]) -> Iterator[Loaded]:
    """Returns rows with their bytes, or with the Rejected that explains why there are none, in order."""
    return itertools.chain.from_iterable(_loaded_chunks(rows))


def _loaded_chunks(rows: Iterable[Row]) -> Iterator[list[Loaded]]:
    """Yields chunks of rows with their bytes, which threads read ahead where reading takes time.

    A thread that reads a file from the page cache and one that decodes take turns at holding the interpreter's lock,
    which costs 60 µs per file: as much as checking a small image. So local files are read here, until a read had to
    wait for the disk, as the kernel's count of voluntary context switches shows; then threads read the next ones.
    """
    chunks, num_ahead = _chunks(rows), _LEAST_AHEAD
    with Threads(_READS_IN_FLIGHT, 1, _BYTES_IN_FLIGHT // _READS_IN_FLIGHT) as readers:
        for chunk in chunks:
            ahead = itertools.chain([chunk], chunks)
            if not storage.is_uri(chunk[0].uri):
                loaded, has_waited = _read_until_wait(chunk)
                yield loaded
                if not has_waited:
                    num_ahead = _LEAST_AHEAD
                    continue
                remaining = chunk[len(loaded) :]
                ahead = itertools.chain([remaining] if remaining else [], itertools.islice(chunks, num_ahead))
                num_ahead = min(2 * num_ahead, _MOST_AHEAD)
            yield from readers.map_units(_read_chunk, ahead, _chunk_bytes)


def _read_until_wait(chunk: list[Row]) -> tuple[list[Loaded], bool]:
    """Returns the rows with their bytes, up to the first for which this thread had to wait, and whether it had to."""
    loaded: list[Loaded] = []
    waits = _num_waits()
    for row in chunk:
        loaded.append(_read(row))
        if _num_waits() > waits:
            return loaded, True
    return loaded, False


def _num_waits() -> int:
    """Returns how often this thread has waited: for a disk, another thread or a lock."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk, num_bytes = list[Row](), 0
    for row in rows:
        num_bytes += row.num_bytes
        if len(chunk) == _CHUNK_ROWS or (chunk and num_bytes > _CHUNK_BYTES):
            yield chunk
            chunk, num_bytes = [], row.num_bytes
        chunk.append(row)
    if chunk:
        yield chunk


def _chunk_bytes(chunk: list[Row]) -> int:
    return sum(row.num_bytes for row in chunk)


def _loaded_bytes(chunk: list[Loaded]) -> int:
    return sum(len(data) for _, data in chunk if isinstance(data, bytes))


def _read_chunk(chunk: list[Row]) -> list[Loaded]:
    return [_read(row) for row in chunk]


def _read(row: Row) -> Loaded:
    if row.reason:
        return row, Rejected(row.reason, row.detail)
    if is_url(row.uri):
        with contextlib.closing(Spool()) as spool:
            return _with_body(row, url_reader(UrlOptions()).submit(row.uri, spool).result())
    try:
        data = storage.read_bytes(row.uri, row.version)
    except storage.Changed as error:
        raise storage.Changed(_changed([str(error)])) from error
    except FileNotFoundError as error:  # it existed when listed, as otherwise the row has a reason
        raise storage.Changed(_changed([f"{row.uri!r} no longer exists"])) from error
    except storage.Unavailable:  # the storage failed, not the file; a retry may succeed
        raise
    except MemoryError as error:
        raise _unavailable(row, "there is not enough memory") from error
    except (OSError, ValueError) as error:
        return row, Rejected("unreadable", f"{type(error).__name__}: {error}")
    if len(data) != row.num_bytes and not storage.may_inflate(row.uri) and not storage.is_record(row.uri):
        raise storage.Changed(_changed([_resized(row, len(data))]))
    return row, data


def changes(rows: Iterable[Row]) -> str:
    """Returns a message about the files that have changed since they were listed; "" if no change is found."""

    def change(row: Row) -> str:
        num_bytes, version = (row.num_bytes, row.version) if row.reason else storage.look(row.uri)
        if num_bytes < 0:
            return f"{row.uri!r} no longer exists"
        if num_bytes != row.num_bytes:
            return _resized(row, num_bytes)
        return "" if version == row.version else f"{row.uri!r} was modified"

    messages = list(filter(None, map_in_threads(change, rows, _READS_IN_FLIGHT)))
    return _changed(messages) if messages else ""


def _resized(row: Row, num_bytes: int) -> str:
    return f"{row.uri!r} has {num_bytes} bytes, previously {row.num_bytes}"


def _changed(messages: list[str]) -> str:
    subject = (
        "an input has changed since it was"
        if len(messages) == 1
        else f"{len(messages)} inputs have changed since they were"
    )
    return (
        f"{subject} listed: {enumerated(messages, 5)}; when the inputs no longer change, rerun the command with "
        "--overwrite, which lists them again"
    )


def _unavailable(row: Row, why: str) -> storage.Unavailable:
    return storage.Unavailable(f"{row.uri!r} cannot be read now: {why}; resolve this, the file is not the cause")
