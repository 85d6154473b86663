"""How far a conversion is: Beam counters on any runner, and a bar on a terminal where this process does the work."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from apache_beam.metrics.metric import Metrics
from tqdm import tqdm

_RECORDS = Metrics.counter("jpeg2tpu", "records")
_REJECTED = Metrics.counter("jpeg2tpu", "rejected")
_BYTES = Metrics.counter("jpeg2tpu", "bytes_written")
_bars: list[_Bar] = []  # the one that is shown; the writer may run where there is none


def count(num_bytes: int, written: bool) -> None:
    """Counts one input: the bytes written for it, and whether it became a record."""
    (_RECORDS if written else _REJECTED).inc()
    _BYTES.inc(num_bytes)
    for bar in _bars:
        bar.count(num_bytes, written)


@contextlib.contextmanager
def shown(num_inputs: int) -> Iterator[None]:
    """Shows a bar of so many inputs on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    _bars.append(_Bar(num_inputs))
    try:
        yield
    finally:
        _bars.pop().close()


class _Bar:
    def __init__(self, num_inputs: int) -> None:
        self._bar = tqdm(total=num_inputs, unit=" images", unit_scale=True, dynamic_ncols=True, leave=False)
        self._bytes, self._rejected, self._start = 0, 0, time.monotonic()

    def count(self, num_bytes: int, written: bool) -> None:
        self._bytes += num_bytes
        self._rejected += not written
        if self._bar.update():  # has just been drawn
            rate = self._bytes / 1e6 / max(time.monotonic() - self._start, 1e-3)
            self._bar.set_postfix_str(f"{rate:.0f} MB/s, {self._rejected} rejected", refresh=False)

    def close(self) -> None:
        self._bar.close()
