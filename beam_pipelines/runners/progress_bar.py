"""Progress of a conversion: Beam counters on any runner, and a bar on a terminal if this machine does the work."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

_bars: list[_Bar] = []  # the bar that is shown, if any: writers may run in processes without one


def is_wanted() -> bool:
    """Returns whether to show a progress bar: whether stderr is a terminal."""
    return sys.stderr.isatty()


def count(num_bytes: int, written: bool) -> None:
    """Counts one input of a Beam pipeline: the bytes written for it, and whether it became a record."""
    _counter("records" if written else "rejected").inc()
    _counter("bytes_written").inc(num_bytes)
    for bar in _bars:
        bar.show(bar.num_inputs + 1, bar.num_rejected + (not written), bar.num_bytes + num_bytes)


@functools.cache
def _counter(name: str) -> Any:
    from apache_beam.metrics.metric import Metrics  # imported here, as processes that only use the bar do not need Beam

    return Metrics.counter("jpeg2tpu", name)


def show(num_inputs: int, num_rejected: int, num_bytes: int) -> None:
    """Shows the given totals on the bar, if there is one."""
    for bar in _bars:
        bar.show(num_inputs, num_rejected, num_bytes)


@contextlib.contextmanager
def shown(num_inputs: int) -> Iterator[None]:
    """Context manager: shows a bar for `num_inputs` inputs on stderr during its body, if that is a terminal."""
    if not is_wanted():
        yield
        return
    _bars.append(_Bar(num_inputs))
    try:
        yield
    finally:
        _bars.pop().close()


class _Bar:
    def __init__(self, total: int) -> None:
        self._bar = tqdm(total=total, unit=" images", unit_scale=True, dynamic_ncols=True, leave=False)
        self._start = time.monotonic()
        self.num_inputs, self.num_rejected, self.num_bytes = 0, 0, 0

    def show(self, num_inputs: int, num_rejected: int, num_bytes: int) -> None:
        more, self.num_inputs = num_inputs - self.num_inputs, num_inputs
        self.num_rejected, self.num_bytes = num_rejected, num_bytes
        if self._bar.update(more):  # True if the bar was redrawn
            rate = num_bytes / 1e6 / max(time.monotonic() - self._start, 1e-3)
            self._bar.set_postfix_str(f"{rate:.0f} MB/s, {num_rejected} rejected", refresh=False)

    def close(self) -> None:
        self._bar.close()
